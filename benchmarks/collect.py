"""What does being recorded cost a program, and what does it cost while nothing is recorded?

    python -m benchmarks.collect                       # all four, some ten minutes
    python -m benchmarks.collect --only outside --rounds 12

The program is `decode_loop.py`, which runs as many decode steps as it is asked to and answers with their times. Plain
and captured ones are alive at the same time and take turns, 64 steps each, so that whatever else the machine does hits
both alike; what is compared is the median step of a turn with that of the plain program's turn beside it. Even so two
plain processes differ by some per cent for as long as they live, hence the rounds of new ones.

* `outside`: under `tracekit collect --paused`, with no window opened; and plain against plain, which is the noise. What
  differs then in a step is its range, so empty ranges are timed as well: that is above the noise.
* `inside`: while a window is open, by what is recorded of an op.
* `stop`: how long the program stands still when a window ends, and its steps while the trace is saved and converted.
* `memory`: resident memory of the program before, in and after two windows.

Nothing is asserted: the exit code is 0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.store import read_footer

TURN = 64  # steps; the program does the same work in each
_LOOP = Path(__file__).with_name("decode_loop.py")
_WARM_TURNS = 5
_RANGES = 20_000
_GOAL = 0.01
_DETAIL = {"no shapes": ("--no-shapes",), "shapes (default)": (), "shapes and stacks": ("--stacks",)}


@dataclass(frozen=True, slots=True)
class Steps:
    """Times of steps in ns, as decode_loop.py says, and resident bytes at the end."""

    begin: list[int]
    wall: list[int]
    used: list[int]
    cpu: list[int]
    rss: int

    @property
    def ends(self) -> list[int]:
        """When each step ended."""
        return [start + length for start, length in zip(self.begin, self.wall, strict=True)]

    @property
    def used_at_end(self) -> list[int]:
        """CPU time used by the process until then."""
        return [used + more for used, more in zip(self.used, self.cpu, strict=True)]


class Program:
    """One running decode loop. ready_s: seconds from its start, or that of its collector, until it answers."""

    def __init__(self, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self.talk = tempfile.TemporaryFile()  # noqa: SIM115  closed in `end`
        start = time.perf_counter()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(_LOOP)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.talk,
            text=True,
            env=None if environment is None else dict(environment),
        )
        self._answer()
        self.ready_s = time.perf_counter() - start

    def steps(self, count: int = TURN) -> Steps:
        """Have it run so many steps."""
        return Steps(**self.ask(f"steps {count}"))

    def ask(self, request: str) -> dict[str, Any]:
        """The answer to a request."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self.process.stdin.write(f"{request}\n")
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.talk.seek(0)
            raise RuntimeError(f"the program ended:\n{self.talk.read().decode(errors='replace')[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Close its input and wait."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.talk.close()


class Captured(Program):
    """A decode loop under `tracekit collect --paused`, which is the only capture in its runtime folder."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self.output = folder / "trace.parquet"
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        collect = [sys.executable, "-m", "tracekit", "collect", "--paused", "--force", "-o", str(self.output), *options]
        super().__init__([*collect, "--"], self.environment)

    def control(self, do: str) -> None:
        """Open or close a window, and wait until that has happened: recording, or the file written."""
        command = [sys.executable, "-m", "tracekit", "collect", "--control", do]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"--control {do} ended with {done.returncode}: {done.stderr}")


@contextmanager
def captured(options: Sequence[str] = ()) -> Iterator[Captured]:
    """A captured program that is ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="tk-") as name:  # a short one: a socket's address has 100 bytes
        program = Captured(Path(name), options)
        try:
            yield program
        finally:
            program.end()


@contextmanager
def plain() -> Iterator[Program]:
    """The program as it is."""
    program = Program()
    try:
        yield program
    finally:
        program.end()


def take_turns(programs: Mapping[str, Program], turns: int) -> dict[str, list[Steps]]:
    """Run turns of each program by turns, each round in another order."""
    taken: dict[str, list[Steps]] = {name: [] for name in programs}
    order = list(programs)
    for turn in range(turns):
        shift = turn % len(order)
        for name in order[shift:] + order[:shift]:
            taken[name].append(programs[name].steps())
    return taken


def cost(of: Sequence[Steps], base: Sequence[Steps], clock: str) -> float:
    """Median over turns of how much longer the median step took than that of the turn of `base` beside it."""
    pairs = [(statistics.median(getattr(turn, clock)) for turn in pair) for pair in zip(of, base, strict=True)]
    return float(statistics.median(mine / other - 1 for mine, other in pairs))


def spread(values: Sequence[float], form: str = "+.2%") -> str:
    """The median and the range of what rounds gave."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def outside(rounds: int, turns: int) -> None:
    """Print what a capture costs in which nothing is recorded."""
    costs: dict[tuple[str, str], list[float]] = {}
    ranges: dict[str, list[float]] = {}
    lengths: list[int] = []
    ready: dict[str, list[float]] = {"plain": [], "paused": []}
    for _ in range(rounds):
        with plain() as base, plain() as again, captured() as paused:
            programs = {"plain": base, "plain again": again, "paused": paused}
            take_turns(programs, _WARM_TURNS)
            taken = take_turns(programs, turns)
            for name in ("plain again", "paused"):
                for clock in ("wall", "cpu"):
                    costs.setdefault((name, clock), []).append(cost(taken[name], taken["plain"], clock))
            lengths += [length for turn in taken["plain"] for length in turn.wall]
            for name, program in programs.items():
                for kind, ns in program.ask(f"ranges {_RANGES}").items():
                    ranges.setdefault(f"{name}, {kind}", []).append(ns)
            ready["plain"] += [base.ready_s, again.ready_s]
            ready["paused"].append(paused.ready_s)
    print(f"\noutside the window, {rounds} rounds of {turns} turns: time of a step against plain, median (range)")
    for (name, clock), values in costs.items():
        print(f"  {name:12}{clock:6}{spread(values)}")
    print("an empty range in ns of CPU time, with the name of a step and with another")
    for name, values in ranges.items():
        print(f"  {name:20}{spread(values, ',.0f')}")
    more = [paused - plain for paused, plain in zip(ranges["paused, step"], ranges["plain, step"], strict=True)]
    share = statistics.median(more) / statistics.median(lengths)
    met = "met" if share <= _GOAL else "NOT met"
    print(
        f"  a step has one: {share:+.2%} of {statistics.median(lengths) / 1e6:.2f} ms; goal, at most {_GOAL:.0%}: {met}"
    )
    print("start until the program is ready, in seconds, with the start of the collector")
    for name, values in ready.items():
        print(f"  {name:12}{spread(values, '.2f')}")


def inside(rounds: int, turns: int) -> None:
    """Print what recording costs a step, by what is recorded of an op."""
    print(f"\ninside the window, {rounds} rounds of {turns} turns: time of a step against plain, median (range)")
    for detail, options in _DETAIL.items():
        costs: dict[str, list[float]] = {"wall": [], "cpu": []}
        each, per_event = [], []
        for _ in range(rounds):
            with plain() as base, captured(options) as recorded:
                programs = {"plain": base, "recorded": recorded}
                take_turns(programs, _WARM_TURNS)
                recorded.control("start")
                recorded.steps()  # the first ones pay for buffers
                taken = take_turns(programs, turns)
                recorded.control("stop")
                for clock, values in costs.items():
                    values.append(cost(taken["recorded"], taken["plain"], clock))
                events = read_footer(recorded.output).ledger.read / ((turns + 1) * TURN)
                step_ns = statistics.median(sum(one.wall) / TURN for one in taken["plain"])
                each.append(events)
                per_event.append(costs["wall"][-1] * step_ns / events)
        print(f"  {detail:20}wall  {spread(costs['wall'], '+.1%')}")
        print(f"  {'':20}cpu   {spread(costs['cpu'], '+.1%')}")
        print(f"  {'':20}{statistics.median(each):,.0f} events a step, {spread(per_event, ',.0f')} ns an event")


def stop(detail: str, windows: Sequence[int], options: Sequence[str]) -> None:
    """Print how a program fares at the end of a window."""
    print(f"\nend of a window, {detail}: a freeze; then steps, against those before, until the trace is written")
    head = ("events", "freeze", "of CPU time", "us an event", "written after", "steps by then", "longest")
    print("  " + "".join(f"{one:>14}" for one in head))
    for length in windows:
        with captured(options) as program:
            program.steps(TURN * _WARM_TURNS)
            before = program.steps(TURN * 20)
            program.control("start")
            program.steps(length)
            _print_stop(program, before)


def _print_stop(program: Captured, before: Steps) -> None:
    asked = time.perf_counter()
    control = threading.Thread(target=program.control, args=("stop",))
    control.start()
    turns = []
    while control.is_alive():
        turns.append(program.steps())
    export = time.perf_counter() - asked
    periods = [later - earlier for earlier, later in itertools.pairwise(end for turn in turns for end in turn.ends)]
    used = [later - earlier for earlier, later in itertools.pairwise(end for turn in turns for end in turn.used_at_end)]
    at = max(range(len(periods)), key=periods.__getitem__)
    usual = statistics.median(before.wall)
    frozen = used[at] - statistics.median(before.cpu)
    after = [wall for turn in turns for wall in turn.wall][at + 2 :]
    events = read_footer(program.output).ledger.read
    cells = (
        f"{events:,}",
        f"{(periods[at] - usual) / 1e9:.2f} s",
        f"{frozen / 1e9:.2f} s",
        f"{frozen / 1e3 / events:.1f}",
        f"{export:.1f} s",
        f"{statistics.median(after) / usual - 1:+.0%}",
        f"{max(after) / 1e6:.0f} ms",
    )
    print("  " + "".join(f"{one:>14}" for one in cells))


def memory(steps: int) -> None:
    """Print the resident memory of a program around two short windows of a long run."""
    print(f"\nresident memory in MB; each line after {steps:,} more steps, windows of {TURN * 8:,} steps")
    with captured() as program:
        rows = [("before", program.steps(TURN * _WARM_TURNS).rss)]
        rows.append(("before", program.steps(steps).rss))
        for window in ("first", "second"):
            program.control("start")
            rows.append((f"in the {window} window", program.steps(TURN * 8).rss))
            program.control("stop")
            rows.append((f"just after the {window}", program.steps(TURN).rss))
            rows += [(f"after the {window}", program.steps(steps).rss) for _ in range(2)]
    for name, rss in rows:
        print(f"  {name:24}{rss / 1e6:8,.0f}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collect", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("outside", "inside", "stop", "memory"), action="append")
    parser.add_argument("--rounds", type=int, default=12, help="times that the programs are started")
    parser.add_argument("--turns", type=int, default=20, help="turns of each program in a round")
    parser.add_argument("--steps", type=int, default=6_400, help="between the lines of memory")
    parser.add_argument("--windows", type=int, nargs="+", default=[640, 2_560, 10_240], help="steps, for stop")
    options = parser.parse_args()
    chosen = options.only or ("outside", "inside", "stop", "memory")
    if "outside" in chosen:
        outside(options.rounds, options.turns)
    if "inside" in chosen:
        inside(max(1, options.rounds // 4), options.turns)
    if "stop" in chosen:
        for detail, recorded in list(_DETAIL.items())[:2]:
            stop(detail, options.windows, recorded)
    if "memory" in chosen:
        memory(options.steps)


if __name__ == "__main__":
    main()
