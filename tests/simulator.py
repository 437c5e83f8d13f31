"""A simulator of LLM serving steps: torch.profiler traces with known truth.

`simulate` writes one recording and returns what is true of it; `write_benchmark` streams files of any size.

    python -m tests.simulator trace OUT.json --mode full_graph --steps 5      # also OUT.json.truth.json
    python -m tests.simulator bench OUT.json --megabytes 1000
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Literal, cast, get_args, get_type_hints

import numpy as np

from tests.simulator_host import Rank
from tests.simulator_model import DEVICES, H100, LLAMA_8B, MODELS, TINY, Device, Layout, Model, Plant, Run
from tests.simulator_rows import BASE_NS, START_NS, Sections, document, sections
from tests.simulator_serving import serve
from tests.simulator_text import Document, Row, Template, template
from tests.simulator_truth import Truth, truth_of

__all__ = [
    "H100", "LLAMA_8B", "TINY", "Compress", "Device", "Layout", "Model", "Plant", "Run", "Truth", "simulate",
    "write_benchmark",
]  # fmt: skip

Compress = Literal["gz", "zst"]


def play(run: Run) -> list[Rank]:
    """Execute the run; nothing is written."""
    start = START_NS + (BASE_NS if run.time_unit == "absolute" else 0)
    ranks = [Rank(run, rank, start + 1_700 * rank) for rank in range(run.ranks)]
    serve(run, ranks)
    for rank in ranks:
        _skew(rank, run.clock_skew_ns)
    return ranks


def _skew(rank: Rank, ns: int) -> None:
    """Record device rows too early. A copy to the host then may seem to end before its call, which so seems to wait."""
    for work in rank.played:
        work.ts -= ns
        if "DtoH" in work.kernel.name and not work.call.row.cause and work.end <= work.call.row.end:
            work.call.row.cause = "sync"


def simulate(run: Run, path: Path) -> Truth:
    """Write the run's trace to path (one file per rank in the directory path if there are several) and tell the truth.

    A name that ends in .gz or .zst is compressed.
    """
    ranks = play(run)
    return truth_of(run, ranks, write(run, ranks, path))


def write(run: Run, ranks: list[Rank], path: Path) -> list[Sections]:
    """Write the files of ranks that have played, and return what is in each."""
    parts = [sections(rank) for rank in ranks]
    if run.ranks == 1:
        files = [path]
    else:
        path.mkdir(parents=True, exist_ok=True)
        files = [path / f"rank{rank.rank}.pt.trace.json" for rank in ranks]
    for rank, part, file in zip(ranks, parts, files, strict=True):
        text = document(run, rank.rank)
        rows = [*part.host, *part.python, *part.device, *part.last]
        with _writer(file, None) as out:
            out.write(text.opening().encode())
            out.write(text.between.join(map(text.row, rows)).encode())
            out.write(text.closing().encode())
    return parts


@contextmanager
def _writer(path: Path, compress: Compress | None) -> Iterator[BinaryIO]:
    """The file to write bytes to, compressed as asked or as its name says."""
    kind = compress or {".gz": "gz", ".zst": "zst"}.get(path.suffix)
    with path.open("wb") as raw:
        if kind == "gz":
            from isal import igzip

            with igzip.open(raw, "wb", 2) as out:  # type: ignore[no-untyped-call]
                yield cast(BinaryIO, out)
        elif kind == "zst":
            import zstandard

            with zstandard.ZstdCompressor(level=1).stream_writer(raw) as out:
                yield cast(BinaryIO, out)
        else:
            yield raw


# --- benchmark files


def _block(layout: Layout, events: int, seed: int, model: Model = LLAMA_8B) -> tuple[Run, Rank, Sections]:
    """Steps to repeat: one prefill and some decodes of a model whose depth suits the number of events."""
    layers = max(1, min(16, events // 4_000))
    model = replace(model, layers=layers)
    run = Run(
        model=model, steps=8, batch=16, prompt=128, streams=2, with_stack=True, record_shapes=True,
        profile_memory=True, layout=layout, seed=seed,
    )  # fmt: skip
    rank = play(run)[0]
    return run, rank, sections(rank)


def _cut(rows: list[Row], steps: int, text: Document) -> list[Template]:
    """A template for the rows of each step; rows after the last step belong to it."""
    by_step: list[list[Row]] = [[] for _ in range(steps)]
    for row in rows:
        by_step[min(row.step, steps - 1)].append(row)
    return [template(text, part) for part in by_step]


def write_benchmark(
    path: Path,
    events: int,
    layout: Layout = "kineto",
    seed: int = 0,
    compress: Compress | None = None,
    *,
    model: Model = LLAMA_8B,
) -> None:
    """Write a valid trace of about so many events (within a step, some thousands) in constant memory.

    A large model keeps the device busy, a tiny one makes it wait for the host before almost every kernel.
    A block of steps is simulated once and written again and again, later in time and with its own ids. As in real
    files all host ops come first, then all Python functions, then device work and API calls.
    """
    run, rank, part = _block(layout, events, seed, model)
    text = document(run, 0)
    marks = [row for row in part.last if row.cat == "gpu_user_annotation"]
    final = [row for row in part.last if row.cat != "gpu_user_annotation"]
    cuts = [_cut(rows, run.steps, text) for rows in (part.host, part.python, part.device, marks)]
    per_step = [sum(cut[step].rows for cut in cuts) for step in range(run.steps)]
    total, steps = len(final), 0
    while steps == 0 or total + per_step[steps % run.steps] // 2 < events:
        total += per_step[steps % run.steps]
        steps += 1
    cycles = -(-steps // run.steps)
    shift = {
        "us": -(-(rank.now - rank.start) // 1000) + 20,
        "external": rank.external,
        "correlation": rank.correlation,
        "python": rank.python,
        "index": len(part.host) + len(part.python),
    }
    for row in final:  # the recording's span and end
        if row.cat == "Trace":
            row.dur += (cycles - 1) * shift["us"] * 1000
        if row.name == "Record Window End":
            row.ts += (cycles - 1) * shift["us"] * 1000
    with _writer(path, compress) as out:
        out.write(text.opening().encode())
        for cut in cuts:
            for piece in _repeated(cut, steps, shift):
                out.write(piece)
                out.write(text.between.encode())
        out.write(text.between.join(map(text.row, final)).encode())
        out.write(text.closing().encode())


def _repeated(cut: list[Template], steps: int, shift: dict[str, int]) -> Iterator[bytes]:
    """The text of each step, with every number moved on by the block's share."""
    values = [np.array(part.values, np.int64) for part in cut]
    moves = [np.array([shift[kind] for kind in part.kinds], np.int64) for part in cut]
    for step in range(steps):
        cycle, at = divmod(step, len(cut))
        if cut[at].rows:
            numbers = values[at] + moves[at] * cycle
            yield (cut[at].text % tuple(numbers.tolist())).encode()


def events_for(megabytes: int, layout: Layout) -> int:
    """How many events fill so many megabytes, by the mean size of one in the layout."""
    run, _, part = _block(layout, 64_000, 0)
    text = document(run, 0)
    rows = [*part.host, *part.python, *part.device]
    return megabytes * 1_000_000 * len(rows) // sum(len(text.row(row)) + len(text.between) for row in rows)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description="Write simulated serving traces.")
    commands = parser.add_subparsers(dest="command", required=True)
    trace = commands.add_parser("trace", help="write a trace with known truth to OUT and OUT.truth.json")
    trace.add_argument("out", type=Path)
    trace.add_argument("--model", choices=MODELS, default="tiny")
    trace.add_argument("--device", choices=DEVICES, default="h100")
    _add_options(trace, Run)
    _add_options(trace, Plant)
    bench = commands.add_parser("bench", help="write a large trace quickly")
    bench.add_argument("out", type=Path)
    size = bench.add_mutually_exclusive_group(required=True)
    size.add_argument("--events", type=int)
    size.add_argument("--megabytes", type=int)
    bench.add_argument("--gz", action="store_true")
    bench.add_argument("--seed", type=int, default=0)
    bench.add_argument("--layout", choices=get_args(Layout), default="kineto")
    options = vars(parser.parse_args(arguments))
    command, out = options.pop("command"), options.pop("out")
    if command == "bench":
        events = options["events"] or events_for(options["megabytes"], options["layout"])
        write_benchmark(out, events, options["layout"], options["seed"], "gz" if options["gz"] else None)
        return
    plant = Plant(**{name: options.pop(name) for name in Plant.__slots__})
    model, device = MODELS[options.pop("model")], DEVICES[options.pop("device")]
    given = {
        name: type(getattr(Run(), name))(value) if isinstance(value, list) else value for name, value in options.items()
    }
    truth = simulate(Run(model=model, device=device, plant=plant, **given), out)
    out.with_name(out.name + ".truth.json").write_text(json.dumps(truth.to_json(), indent=1) + "\n")


def _add_options(parser: argparse.ArgumentParser, settings: type[Run] | type[Plant]) -> None:
    """An option for each number, switch and choice of the settings."""
    for name, kind in get_type_hints(settings).items():
        option, default = f"--{name.replace('_', '-')}", getattr(settings(), name)
        if kind is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=default)
        elif kind is int:
            parser.add_argument(option, type=int, default=default)
        elif isinstance(default, tuple | frozenset):
            choices = get_args(get_args(kind)[0]) or None
            parser.add_argument(option, nargs="*", type=str if choices else int, choices=choices, default=default)
        elif isinstance(default, str):
            parser.add_argument(option, choices=get_args(kind), default=default)


if __name__ == "__main__":
    main()
