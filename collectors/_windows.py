"""What a capture knows: the program's processes that run torch, and how far each of them is in each window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# asked: told of the window, not recording yet. lost: ended before it saved. late: had not saved when time was up.
State = Literal["asked", "recording", "stopped", "saved", "idle", "failed", "lost", "late"]
_FINAL = frozenset({"saved", "idle", "failed", "lost", "late"})

NO_WORK = "no torch work in the window"
OLD_TORCH = "with torch before 2.7"  # Process.one_thread
WITH_MEMORY = "with --memory"
_AT_ONCE_S = 1.0  # a process may be killed before its collector knows of the signal


@dataclass(frozen=True, slots=True)
class Plan:
    """When to record. Times in seconds; `duration` counts from the first process that records.

    paused: no window before `tracekit collect --control start`. timeout: longest wait for processes to save.
    """

    delay: float | None = None
    duration: float | None = None
    steps: int | None = None
    warmup: int = 0
    paused: bool = False
    timeout: float = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """A process that has imported torch. number: order of first contact; pid: as this process sees it.

    one_thread: what has the profiler record no more than the thread that starts it, "" where it records all. forked:
    from a process that runs torch, and no other program since.
    """

    number: int
    pid: int
    name: str
    python: str
    torch: str
    one_thread: str
    forked: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long steps of one name took in one process: how many and their median in ns, recorded and not recorded."""

    step: str
    recorded: int
    recorded_ns: int
    plain: int
    plain_ns: int


@dataclass(frozen=True, slots=True)
class Part:
    """A Kineto file that one process wrote in one window. size in bytes; stop: seconds for which the program stood."""

    process: Process
    path: Path
    size: int
    reason: str
    steps: int
    rank: int | None
    world_size: int | None
    stop: float
    overhead: tuple[StepTimes, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """What one process says of a window that Nsight Systems recorded: its steps in it, and why it counted no more."""

    steps: int
    reason: str
    rank: int | None
    world_size: int | None
    overhead: tuple[StepTimes, ...]


@dataclass(slots=True)
class Attempt:
    """One process in one window. Times are of the collector's monotonic clock, in seconds.

    passed: marked steps that it let pass, if it has said so.
    """

    process: Process
    state: State = "asked"
    stepping: bool = False
    closed: bool = False
    activities: tuple[str, ...] = ()
    began: float | None = None
    ended: float | None = None
    lost: float | None = None
    passed: int | None = None
    reason: str = ""
    why: str = ""
    part: Part | None = None
    counted: Counted | None = None

    def end(self, message: Mapping[str, Any], now: float) -> None:
        """Take in when recording ended: before the stop and the saving, which take their time."""
        if self.began is not None:
            self.ended = self.began + float(message.get("recorded", now - self.began))

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be expected of it."""
        return self.state in _FINAL


@dataclass(slots=True)
class Window:
    """A time in which processes record.

    closed: by what, None while it is open. steps_done: a process has recorded its steps. outside: what records is no
    part of the processes, and has not delivered yet. converting: nothing more is taken in; delivered: its file is
    written, or it is known why not.
    """

    number: int
    opened: float
    warmup: int
    steps: int | None
    attempts: dict[Process, Attempt] = field(default_factory=dict)
    first: float | None = None
    closed: str | None = None
    closed_at: float = 0.0
    steps_done: bool = False
    outside: bool = False
    converting: bool = False
    delivered: bool = False

    @property
    def as_settings(self) -> dict[str, Any]:
        """What a process is told of it."""
        return {"window": self.number, "warmup": self.warmup, "steps": self.steps}

    @property
    def settled(self) -> bool:
        """Whether it is closed and all that took part has saved, failed or ended."""
        return self.closed is not None and not self.outside and all(one.settled for one in self.attempts.values())

    @property
    def seconds(self) -> float:
        """The longest time for which a process recorded."""
        times = [
            attempt.ended - attempt.began
            for attempt in self.attempts.values()
            if attempt.began is not None and attempt.ended is not None
        ]
        return max(times, default=0.0)

    @property
    def parts(self) -> list[Part]:
        """What was saved, in order of process start."""
        saved = [attempt.part for attempt in self.attempts.values() if attempt.part is not None]
        return sorted(saved, key=lambda part: part.process.number)

    def of(self, *states: State) -> list[Attempt]:
        """Attempts in one of these states, in order of process start."""
        found = [attempt for attempt in self.attempts.values() if attempt.state in states]
        return sorted(found, key=lambda attempt: attempt.process.number)

    def join(self, process: Process) -> Attempt:
        """The attempt of a process, made if it has none."""
        return self.attempts.setdefault(process, Attempt(process))

    def hear(self, process: Process, message: Mapping[str, Any], parts: Path, now: float) -> None:
        """Take in what a process says of this window. A message that makes no sense raises ValueError or KeyError."""
        attempt = self.join(process)
        said = message["say"]
        if attempt.state == "late" or (said == "stopped" and attempt.settled):  # another process has saved, and faster
            return
        if said == "recording":
            attempt.state, attempt.began = "recording", now
            attempt.activities = tuple(str(one) for one in message.get("activities", ()))
            self.first = now if self.first is None else self.first
        elif said == "stepping":
            attempt.stepping = True
        elif said == "stopped":
            attempt.state, attempt.reason = "stopped", str(message.get("reason", ""))
            attempt.end(message, now)
        elif said == "saved":
            attempt.part = _part(process, message, parts, self.number)
            attempt.state, attempt.reason = "saved", attempt.part.reason
            attempt.end(message, now)
        elif said == "counted":
            attempt.state, attempt.counted = "saved", _counted(message)
            attempt.end(message, now)
        elif said in ("idle", "failed"):
            attempt.state = "idle" if said == "idle" else "failed"
            attempt.why = str(message.get("why") or NO_WORK)
            attempt.passed = None if message.get("passed") is None else int(message["passed"])

    def part_with(self, process: Process, now: float) -> None:
        """A process has ended."""
        attempt = self.attempts.get(process)
        if attempt is None or attempt.settled:
            return
        attempt.state = "idle" if attempt.state == "asked" else "lost"
        attempt.why = NO_WORK if attempt.state == "idle" else "ended before it saved"
        attempt.lost = now

    def lost_when_stopped(self, attempt: Attempt) -> bool:
        """Whether a process was lost because the program had been asked to stop."""
        return self.closed == "signal" and attempt.lost is not None and attempt.lost > self.closed_at - _AT_ONCE_S

    def count_silent_as_idle(self) -> None:
        """A process that has said nothing of this window for long has nothing to save."""
        for attempt in self.of("asked"):
            attempt.state, attempt.why = "idle", "no answer: the process was busy or stopped"

    def give_up_waiting(self) -> None:
        """What has not come by now is not waited for."""
        for attempt in self.attempts.values():
            if not attempt.settled:
                attempt.state = "late"


def not_imported(
    targets: Iterable[str], hooked: Set[str], processes: Sequence[Process], complaints: Sequence[str]
) -> list[str]:
    """Targets, `module:function`, whose module no process has imported, as far as is known.

    hooked: modules that were. complaints: of those that were, and had no such function. A script is never imported; and
    without a process that runs torch nothing is known.
    """
    words = [process.name.split()[0] for process in processes]
    scripts = {*words, *(Path(word).stem for word in words), "__main__", "__mp_main__"}
    found = []
    for target in targets:
        module = target.partition(":")[0]
        told = any(f"--step-module: {module}{end}" in text for text in complaints for end in ": ")
        is_script = bool({module, module.rpartition(".")[2]} & scripts)
        if words and module not in hooked and not told and not is_script:
            found.append(target)
    return found


def _part(process: Process, message: Mapping[str, Any], parts: Path, window: int) -> Part:
    """The part told of, under a name of its own: a process that became another one has the same pid."""
    name = str(message["file"])
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"not a file name: {name!r}")
    seconds = message.get("seconds") or [0.0]
    path = parts / f"window-{window}-process-{process.number}-pid-{process.pid}.json"
    (parts / name).replace(path)
    return Part(
        process=process,
        path=path,
        size=int(message.get("bytes", 0)),
        reason=str(message.get("reason", "")),
        steps=int(message.get("steps", 0)),
        rank=_number(message, "rank"),
        world_size=_number(message, "world_size"),
        stop=float(seconds[0]),
        overhead=_step_times(message),
    )


def _counted(message: Mapping[str, Any]) -> Counted:
    return Counted(
        steps=int(message["steps"]),
        reason=str(message["reason"]),
        rank=_number(message, "rank"),
        world_size=_number(message, "world_size"),
        overhead=_step_times(message),
    )


def _number(message: Mapping[str, Any], name: str) -> int | None:
    return None if message.get(name) is None else int(message[name])


def _step_times(message: Mapping[str, Any]) -> tuple[StepTimes, ...]:
    return tuple(
        StepTimes(str(one["step"]), *(int(number) for number in (*one["recorded"], *one["plain"])))
        for one in message.get("overhead", ())
    )
