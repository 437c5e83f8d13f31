"""How far is the replay of each step from what was recorded, and how long does playing it take?

    python -m benchmarks.replay TRACE...

Each trace is a Parquet file made by tracekit, or a profiler's own. One line a step that is replayed: its calls, device
rows, edges across streams that were inferred, recorded and replayed time, error, and the time of one play (median of
seven), also as a share of the time in which Python adds up as many integers as the step has calls and rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import tracekit
from tracekit.analysis import duration
from tracekit.replay_choice import groups

ROUNDS = 7


def seconds(work: Callable[[], object]) -> float:
    """Of one round."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def added(count: int) -> int:
    """The yardstick: a loop of as many turns."""
    total = 0
    for one in range(count):
        total += one
    return total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    print("| trace | step | calls | rows | inferred edges | recorded | replayed | error | play | x a loop |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    errors = []
    for path in parser.parse_args().traces:
        with tracekit.open(path, allow_partial=True) as trace:
            for group in groups(trace):
                for step in group.chosen:
                    count = len(step.calls) + len(step.rows)
                    loop_of = partial(added, count)
                    rounds = [(seconds(step.schedule.times), seconds(loop_of)) for _ in range(ROUNDS)]
                    play, loop = zip(*rounds, strict=True)
                    ratio = median(one / other for one, other in zip(play, loop, strict=True))
                    errors.append(step.error)
                    name = path.name.partition(".")[0]
                    where = f"{name} {step.rank}:{step.device}" if len(trace.footer.ranks) > 1 else name
                    print(
                        f"| {where} | {'all' if step.step is None else step.step} {group.label} | {len(step.calls):,} "
                        f"| {len(step.rows):,} | {step.inferred_edges:,} | {duration(step.measured_ns)} "
                        f"| {duration(step.replayed_ns)} | {step.error:.2%}{' (refused)' if group.refusal else ''} "
                        f"| {1e3 * median(play):.1f} ms | {ratio:.0f} |"
                    )
    print(f"\n{len(errors)} steps: error at the median {median(errors):.2%}, at most {max(errors):.2%}")


if __name__ == "__main__":
    main()
