"""What a capture says of itself: which processes were recorded, how much, and what recording cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracekit.collectors._windows import NO_WORK, Attempt, Part, StepTimes, Window

_NAME_WIDTH = 60


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of one rank in the file: all, those of the device, marked steps."""

    events: int = 0
    device: int = 0
    steps: int = 0


def summary(
    window: Window, recorded: Sequence[tuple[Part, int]], counts: Mapping[int, Counts], *, several: bool
) -> list[str]:
    """Lines. recorded: parts that went into the file, and the rank that each was given.

    several: there are other windows, and this one is to be told by its number.
    """
    attempts = [window.attempts[part.process] for part, _ in recorded]
    begin = f"Window {window.number}: recorded" if several else "Recorded"
    total = len(window.attempts)
    lines = [
        f"{begin} {len(recorded)} of {total} process{'es' if total != 1 else ''} for {seconds_text(window.seconds)}: "
        f"{_torch(attempts)}.",
        *_table(recorded, counts),
        *_left_out(window, {part.process for part, _ in recorded}),
    ]
    for why in sorted({part.process.one_thread for part, _ in recorded} - {""}):
        lines.append(f"Only the thread that starts the profiler is recorded {why}: ops of other threads are missing.")
    stop = max((part.stop for part, _ in recorded), default=0.0)
    at_exit = all(part.reason in ("exit", "finish") for part, _ in recorded)
    if stop >= 0.05 and not at_exit:
        lines.append(f"Recording stopped the program for {stop:.2f} s at the end of the window.")
    measured = [times for part, _ in recorded for times in part.overhead]
    return [*lines, *overhead(measured, sum(one.steps for one in counts.values()))]


def size(count: int) -> str:
    """Bytes, in decimal units."""
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def seconds_text(seconds: float) -> str:
    """As people say it."""
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{1000 * seconds:.0f} ms"


def _torch(attempts: Sequence[Attempt]) -> str:
    versions = sorted({attempt.process.torch for attempt in attempts})
    activities = sorted({activity for attempt in attempts for activity in attempt.activities})
    return f"torch {' and '.join(versions)}" + (f", {' and '.join(activities)}" if activities else "")


def _table(recorded: Sequence[tuple[Part, int]], counts: Mapping[int, Counts]) -> list[str]:
    rows = []
    for part, rank in recorded:
        one = counts.get(rank, Counts())
        numbers = (str(rank), f"{one.events:,}", f"{one.device:,}", f"{one.steps:,}", size(part.size))
        rows.append((str(part.process), *numbers))
    return table(("process", "rank", "events", "device", "steps", "size"), rows)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a table; the first column is a name, the others are numbers."""
    named = [(name if len(name) <= _NAME_WIDTH else f"...{name[3 - _NAME_WIDTH :]}", *rest) for name, *rest in rows]
    rows = [head, *named]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(max(width, 6))
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _left_out(window: Window, recorded: set[object]) -> list[str]:
    """Processes without a part in the file, by the reason."""
    whys: dict[str, list[str]] = {}
    for attempt in sorted(window.attempts.values(), key=lambda attempt: attempt.process.number):
        if attempt.process not in recorded and attempt.state in ("idle", "saved"):
            why = NO_WORK if attempt.state == "saved" or attempt.why == "no torch work" else attempt.why
            whys.setdefault(why, []).append(str(attempt.process))
    return [f"  not recorded: {', '.join(names)}: {why}" for why, names in whys.items()]


def overhead(measured: Sequence[StepTimes], steps: int) -> list[str]:
    """What recording cost, by steps of the same kind with and without it. steps: how many there are in the file."""
    both = [times for times in measured if times.recorded and times.plain]
    best = max(both, key=lambda times: min(times.recorded, times.plain), default=None)
    if best is not None:
        return [_compared(best)]
    if steps:
        return ["Overhead unknown: too few steps ran before the window to compare with; --warmup lets some pass."]
    return []


def _compared(times: StepTimes) -> str:
    change = 100 * (times.recorded_ns - times.plain_ns) / max(1, times.plain_ns)
    longer = f"{change:.0f} % longer" if change >= 0.5 else "no longer"
    return (
        f"A step took {longer} recorded: {times.step}: "
        f"{times.recorded_ns / 1e6:.3g} ms, else {times.plain_ns / 1e6:.3g} ms "
        f"({times.recorded} and {times.plain} steps)."
    )
