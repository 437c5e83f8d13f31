"""`tracekit collect` on a distributed program: each rank is recorded as what it is, and one that is lost is named."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.collecting import collect, ranges, write
from tracekit.store import read_footer

torch = pytest.importorskip("torch", reason="collect runs programs that import torch")

# Rank 1 is started first: numbers are not by order of start.
PROGRAM = """
    import os, signal, sys
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def work(rank, file, killed):
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        with torch.profiler.record_function(f"tracekit.step[decode decode_requests={rank + 1} decode_tokens=1]"):
            dist.all_reduce(torch.ones(4))
        dist.barrier()
        if rank == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.destroy_process_group()

    if __name__ == "__main__":
        context = mp.get_context("fork")
        arguments = os.path.abspath("rendezvous"), int(sys.argv[1])
        ranks = [context.Process(target=work, args=(rank, *arguments)) for rank in (1, 0)]
        [process.start() for process in ranks]
        [process.join() for process in ranks]
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize(
    ("killed", "code", "ranks", "partial"),
    [
        (-1, 0, [(0, 1), (1, 2)], []),
        (1, 5, [(0, 1)], ["ended before the trace was saved", "no trace of rank 1 of 2"]),
    ],
    ids=["whole", "one rank killed"],
)
def test_ranks(tmp_path: Path, killed: int, code: int, ranks: list[tuple[int, int]], partial: list[str]) -> None:
    write(tmp_path / "program.py", PROGRAM)
    done = collect(tmp_path, "--", sys.executable, "program.py", str(killed))
    assert done.returncode == code, done.stderr
    file = tmp_path / "trace.parquet"
    found = [
        (rank, int(requests)) for rank, name in ranges(file) for requests in re.findall(r"decode_requests=(\d)", name)
    ]
    assert sorted(found) == ranks
    stored = read_footer(file).partial
    assert len(stored) == len(partial)
    assert all(expected in text for expected, text in zip(partial, stored, strict=True))
