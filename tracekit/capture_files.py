"""The windows of a capture become files: converted, checked, described, or their parts kept where that fails."""

from __future__ import annotations

import itertools
import mmap
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tracekit.capture_gates import (
    Missing,
    Problem,
    ended_badly,
    no_kernels,
    not_done,
    unconverted,
    what_is_missing,
    why_empty,
)
from tracekit.capture_summary import Counts, size, summary
from tracekit.collectors._session import Delivered, Session
from tracekit.collectors._windows import Part, Plan, Window
from tracekit.secrets import redact

_WORK = re.compile(rb'"cat"\s*:\s*"(?:cpu_op|kernel|gpu_memcpy|gpu_memset)"')
_LARGE = 100_000_000  # bytes of parts that take some seconds to convert
_COUNTS = """
    SELECT
        rank,
        count(*) AS events,
        count(*) FILTER (WHERE kind IN ('kernel', 'memcpy', 'memset', 'graph')) AS device
    FROM events
    GROUP BY rank
"""
_STEPS = "SELECT rank, count(*) AS steps FROM steps GROUP BY rank"
_KERNEL_LAUNCHES = """
    SELECT
        count(*) FILTER (
            WHERE kind = 'launch' AND regexp_matches(name, 'launch', 'i') AND NOT regexp_matches(name, 'hostfunc', 'i')
        ) AS launches,
        count(*) FILTER (WHERE kind IN ('kernel', 'graph')) AS kernels
    FROM events
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to become of a capture. named: files of the program, never written to; keep_raw: folder for the parts."""

    output: Path
    force: bool
    keep_raw: Path | None
    command: tuple[str, ...] | None
    named: tuple[Path, ...] = ()


class CaptureFiles:
    """Makes the files of one capture. folder: temporary, on the output's file system; say: prints a line.

    problems: what is wrong with its windows.
    """

    def __init__(self, wanted: Wanted, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self.wanted, self.plan, self.folder, self.say = wanted, plan, folder, say
        self.problems: list[Problem] = []

    def deliver(self, window: Window, session: Session) -> Delivered:
        """Write the file of a window that is over. Does not raise."""
        try:
            problem, told = self._deliver(window, session)
        except Exception as error:
            output = self.output_of(window.number)
            kept = keep_parts(self.raw_of(window), output)
            problem, told = unconverted(error, kept, output), None
        if problem is None:
            return Delivered(True, told or "")
        self.problems.append(Problem(problem, said=not session.ended, written=told is not None))
        if not session.ended:
            self.say(f"tracekit: {problem}")
        return Delivered(False, problem if told is None else f"{problem}. {told}")

    def output_of(self, number: int) -> Path:
        """Where the file of a window goes: over no file that was not asked to go, and over none of the program's."""
        wanted = self.wanted.output
        for later in itertools.count(number):
            path = wanted if later == 1 else wanted.with_stem(f"{wanted.stem}-{later}")
            free = not path.exists() or (self.wanted.force and later == number)
            if free and not any(same_file(path, other) for other in self.wanted.named):
                return path
        raise AssertionError

    def raw_of(self, window: Window) -> list[Path]:
        """The profiler's own files of a window."""
        return [part.path for part in window.parts]

    def _deliver(self, window: Window, session: Session) -> tuple[str | None, str | None]:
        """The problem, if there is one, and what was written, if anything."""
        useful = [part for part in window.parts if has_work(part.path)]
        if not useful:
            named = "" if session.outcome is None else ended_badly(session.outcome)
            seen, met = session.folder.seen(), len(session.met)
            return why_empty(window, seen=seen, met=met, plan=self.plan, named=named), None
        amount = sum(part.size for part in useful)
        if amount >= _LARGE:
            self.say(f"Converting {size(amount)} of recordings.")
        draft = self.folder / f"draft-{window.number}.parquet"
        missing = what_is_missing(window, useful, self.plan)
        of_all = not_done(session.unhooked if session.ended else (), len(session.complaints))  # told at the end
        counts, missing = self._convert(window, useful, draft, missing, of_all)
        ranks = ranks_of(useful)
        recorded = [(part, ranks[part.path]) for part in useful]
        for line in summary(window, recorded, counts, several=window.number > 1):
            self.say(line)
        return self._put(window, draft, missing)

    def _put(self, window: Window, draft: Path, missing: Sequence[Missing]) -> tuple[str | None, str]:
        """Give the draft its name, and keep the raw files if that is wanted; the problem, and what was written."""
        output = self.output_of(window.number)
        written = f"Wrote {output} ({size(draft.stat().st_size)})"
        draft.replace(output)
        self.say(written)
        problems = ["; ".join(one.text for one in missing) + f". {output} holds what there is"] if missing else []
        try:
            self._keep_raw(self.raw_of(window))
        except OSError as error:
            problems.append(f"the profiler's files could not be kept: {error}")
        return "; ".join(problems) or None, written

    def _convert(
        self, window: Window, useful: Sequence[Part], draft: Path, missing: list[Missing], of_all: Sequence[Missing]
    ) -> tuple[dict[int, Counts], list[Missing]]:
        """Convert, and once more if the file shows that something is missing, so that it says so."""
        from tracekit.convert import convert

        ranks = ranks_of(useful)
        for _ in range(2):
            capture = self._capture(window, useful, ranks, [*missing, *of_all])
            paths = [part.path for part in useful]
            convert(paths, draft, force=True, allow_partial=True, ranks=ranks, capture=capture)
            counts, launches, kernels = count_rows(draft)
            if not launches or kernels or missing[-1:] == [no_kernels(launches)]:
                break
            missing = [*missing, no_kernels(launches)]
        return counts, missing

    def _capture(
        self, window: Window, useful: Sequence[Part], ranks: Mapping[Path, int], missing: Sequence[Missing]
    ) -> dict[str, object]:
        """What the file is to say of its recording. No names, no paths, no environment."""
        plan = self.plan
        reasons = {part.reason for part in useful} | ({window.closed} if window.closed else set())
        capture: dict[str, object] = {
            "window": {
                "delay_s": plan.delay,
                "duration_s": round(window.seconds, 3),
                "steps": window.steps,
                "warmup": window.warmup,
                "ended_by": sorted(reasons),
            },
            "processes": [
                {
                    "pid": part.process.pid,
                    "rank": ranks[part.path],
                    "steps": part.steps,
                    "torch": redact(part.process.torch),
                }
                for part in useful
            ],
            "partial": [one.stored for one in missing],
            "overhead": [
                {"step": redact(times.step), "recorded": [times.recorded, times.recorded_ns]}
                | {"plain": [times.plain, times.plain_ns]}
                for part in useful
                for times in part.overhead
            ],
        }
        if self.wanted.command is not None:
            capture["command"] = redacted_command(self.wanted.command)
        return capture

    def _keep_raw(self, paths: Sequence[Path]) -> None:
        if self.wanted.keep_raw is not None:
            self.wanted.keep_raw.mkdir(exist_ok=True)
            for path in paths:
                move_in(path, self.wanted.keep_raw)
            self.say(f"Wrote {self.wanted.keep_raw}: the profiler's own files; they may hold secrets")


def count_rows(trace: Path) -> tuple[dict[int, Counts], int, int]:
    """Rows by rank; calls that asked for a kernel or a graph; kernels and graphs."""
    import tracekit

    with tracekit.open(trace) as opened:
        found = opened.sql(_KERNEL_LAUNCHES).to_pylist()[0]
        steps = {row["rank"]: row["steps"] for row in opened.sql(_STEPS).to_pylist()}
        counts = {
            row["rank"]: Counts(row["events"], row["device"], steps.get(row["rank"], 0))
            for row in opened.sql(_COUNTS).to_pylist()
        }
    return counts, int(found["launches"]), int(found["kernels"])


def redacted_command(command: Sequence[str]) -> list[str]:
    """A command without what looks like a credential: word by word, and a word by the option before it."""
    words: list[str] = []
    for position, word in enumerate(command):
        blanked = redact(word)
        if position and command[position - 1].startswith("-") and not word.startswith("-"):
            pair = redact(f"{command[position - 1]} {word}")
            blanked = blanked if pair.endswith(word) else pair.partition(" ")[2]
        words.append(blanked)
    return words


def has_work(path: Path) -> bool:
    """Whether a Kineto file has an op or device activity: a process that did nothing leaves the profiler's own rows."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return _WORK.search(content) is not None


def ranks_of(parts: Sequence[Part]) -> dict[Path, int]:
    """A rank for each part: its own; a number after those for one that has none, or one that is taken.

    Two parts of one rank, as of two data-parallel groups, would be added up as if they were one process.
    """
    ranks: dict[Path, int] = {}
    for part in parts:
        if part.rank is not None and part.rank not in ranks.values():
            ranks[part.path] = part.rank
    free = itertools.count(max(ranks.values(), default=-1) + 1)
    for part in parts:
        if part.path not in ranks:
            ranks[part.path] = next(free)
    return ranks


def keep_parts(paths: Sequence[Path], output: Path) -> Path | None:
    """Move parts into a new folder beside the output; None if there are none."""
    paths = [path for path in paths if path.exists()]
    if not paths:
        return None
    for number in itertools.count(1):
        folder = output.with_name(f"{output.stem}.parts" if number == 1 else f"{output.stem}-{number}.parts")
        with suppress(FileExistsError):
            folder.mkdir()
            for path in paths:
                move_in(path, folder)
            return folder
    raise AssertionError


def move_in(path: Path, folder: Path) -> None:
    """Move a file into a folder, under a name that is free there."""
    tries = (
        folder / (path.name if number == 1 else f"{path.stem}-{number}{path.suffix}") for number in itertools.count(1)
    )
    shutil.move(path, next(other for other in tries if not other.exists()))


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, which need not exist."""
    try:
        return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))
    except (OSError, RuntimeError, ValueError):  # a word of a command that cannot be a path
        return False
