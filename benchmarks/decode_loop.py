"""The program that benchmarks.collect records: the sample's model, decoding as many steps as it is asked to.

One request a line on standard input, one answer in JSON a line on standard output; the end of input ends it:

    steps 64    {"begin": [...], "wall": [...], "used": [...], "cpu": [...], "rss": bytes}

for each step its start, in ns since an unknown time, and its length; the CPU time that all threads of the process had
used before it, in ns, and what they used in it.

    ranges 1000    {"step": ns, "other": ns}

what an empty range of torch.profiler takes, with the name of a step and with another.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parent.parent))
from sample_traces.serve import Model, Size

_PROMPT = 32


class Loop:
    """Decodes the same tokens again and again, so that every 64 steps do the same work."""

    def __init__(self, batch: int, layers: int) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.batch = batch
        self.model = Model(Size(layers=layers, positions=_PROMPT + 64), batch, "cpu").eval()
        self.ids = torch.zeros((batch, 1), dtype=torch.long)
        self.done = 0
        self.model(self.ids.expand(batch, _PROMPT), 0)

    def step(self) -> None:
        """One decode step, marked as vLLM marks its own."""
        with torch.profiler.record_function(f"execute_context_0(0)_generation_{self.batch}({self.batch})"):
            logits = self.model(self.ids, _PROMPT + self.done % 64)
            self.ids = logits.argmax(dim=-1, keepdim=True)
            self.ids.tolist()
        self.done += 1

    def steps(self, count: int) -> dict[str, list[int] | int]:
        """Run steps; the answer."""
        begin, wall, used, cpu = [], [], [], []
        for _ in range(count):
            begin.append(time.perf_counter_ns())
            used.append(time.process_time_ns())
            self.step()
            cpu.append(time.process_time_ns() - used[-1])
            wall.append(time.perf_counter_ns() - begin[-1])
        return {"begin": begin, "wall": wall, "used": used, "cpu": cpu, "rss": _resident()}


def ranges(count: int) -> dict[str, float]:
    """The ranges on request."""
    taken = {}
    for key, name in (("step", "execute_context_0(0)_generation_4(4)"), ("other", "attention")):
        start = time.process_time_ns()
        for _ in range(count):
            with torch.profiler.record_function(name):
                pass
        taken[key] = (time.process_time_ns() - start) / count
    return taken


def _resident() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


@torch.inference_mode()
def main() -> None:
    """Answer until there are no more requests."""
    parser = argparse.ArgumentParser(description="Decode steps on request, for benchmarks.collect.")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    loop = Loop(options.batch, options.layers)
    print(json.dumps({"ready": True}), flush=True)
    requests = {"steps": loop.steps, "ranges": ranges}
    for line in sys.stdin:
        kind, count = line.split()
        print(json.dumps(requests[kind](int(count))), flush=True)


if __name__ == "__main__":
    main()
