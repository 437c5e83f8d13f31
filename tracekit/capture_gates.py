"""Why a capture is empty or lacks something, and what to do about it: the texts, and what they follow from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit.collectors._child import Ended
from tracekit.collectors._windows import Part, Plan, Process, Window

_NO_PYTHON = (
    "no Python process of the program found the capture, if it ran Python at all. The capture is found through "
    "PYTHONPATH and TRACEKIT_CAPTURE in the environment: Python must run without -I, -E and -S, and what starts it "
    "must pass the environment on (`env -i`, sudo and containers do not)"
)
_NO_TORCH = "{seen} ran, and {none} imported torch: there was nothing to record"
_BEFORE_DELAY = "the program ended before the {delay:g} s of --delay were over; record with a shorter one"
_NEVER_STARTED = (
    "no window was opened: with --paused, `tracekit collect --control start` opens one while the program runs"
)
_NO_STEP = (
    "no marked step ran in the window, and --steps and --warmup count those. vLLM, SGLang and Transformers' generate() "
    "are marked by themselves; for others name the function that is a step, --step-module pkg.mod:Class.forward, or "
    "write `with tracekit.step(...)` around it; or record by time with --duration"
)
_NO_GPU = (
    "no process used the GPU while recording was on: record later (--delay, --paused) or longer, or without the GPU by "
    "--activities cpu"
)
_OWN_PROFILER = "a torch.profiler of the program's own ran all the time, and only one can; record without it"
_EMPTY = (
    "not one op ran in the {time}window. Send load while it is recorded: longer, or begun by hand with --paused and "
    "--control start"
)
_WARMING_UP = (
    "{passed} ran in the window, and the --warmup of {warmup} was not over: nothing was recorded. Let fewer pass, or "
    "send more load"
)
_THREADS = (
    "; {why} only the thread that starts the profiler is recorded, so mark steps (--step-module) and record with "
    "--steps"
)
_NOTHING_RAN = "not one op ran after torch was imported: there was nothing to record"
_NOT_ON_THREAD = "not one op was recorded after torch was imported"
_NOT_IMPORTED = "--step-module {target}: no process imported {module}"
_COMPLAINED = "not all could be done, as said above"
# What is missing, stored in the file with the pid for `who`; and what the terminal is told besides.
_FAILED = ("the profiler failed in {who}", ": {why}")
_LOST = (
    "{who} ended before the trace was saved",
    ": it crashed, or was killed, by its parent or by the system for want of memory. End the window earlier, or by "
    "--max-size",
)
_LOST_WHEN_STOPPED = (
    _LOST[0],
    ": its parent killed it when asked to stop. Close the window first: --duration, --control stop, or a signal to "
    "tracekit alone instead of Ctrl-C",
)
_LATE = (
    "{who} had not saved within the {timeout:g} s of --timeout",
    "; record a shorter window or give it longer",
)
_MAX_SIZE = (
    "{who} grew by the memory of --max-size, and recording ended there",
    "; record a shorter window or allow more",
)
_DISPLACED = (
    "the trace of {who} ends where the program started a torch.profiler of its own",
    "; only one can run: record without it",
)
_FEWER_STEPS = "{steps} of {wanted} steps in {{who}}, which {why}"  # why: by what its recording ended
_WHY_FEWER = {
    "exit": "ended first",
    "finish": "ended first",
    "signal": "was asked to stop first",
    "steps": "made no more while it was waited for",
}
_ALMOST = 0.95  # of the time that was asked for: the rest passes while a process is told
_SHORTER = "{seconds:g} of {wanted:g} s: the program {why}"
_RANKS = ("no trace of rank {missing} of {world}", ": did every rank work in the window, on this machine?")
_NO_KERNELS = (
    "the program launched work on the GPU {launches} times and not one kernel was recorded. Likely causes: no "
    "permission to use the GPU's counters (INSUFFICIENT_PRIVILEGES; a container needs SYS_ADMIN or the driver setting "
    "NVreg_RestrictProfilingToAdminUsers=0); another profiler attached (nsys, ncu, DCGM); a CUPTI that does not fit "
    "the driver (LD_LIBRARY_PATH). KINETO_LOG_LEVEL=0 in the environment makes the profiler say why. The trace holds "
    "the host side only"
)


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that a trace lacks. text: for the terminal, with names; stored: for the file, without."""

    text: str
    stored: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a window. said: it has been told already; written: there is a file nevertheless."""

    text: str
    said: bool
    written: bool


def in_conclusion(problems: Sequence[Problem]) -> list[str]:
    """What is wrong, to be told at the end; in short what was told."""
    texts = [problem.text for problem in problems if not problem.said]
    for written, one, several in ((False, "failed", "failed"), (True, "is incomplete", "are incomplete")):
        count = sum(problem.said and problem.written == written for problem in problems)
        if count:
            texts.append(f"{count} window{'s' if count > 1 else ''} {several if count > 1 else one}, as said above")
    return texts


def not_done(unhooked: Sequence[str], complaints: int) -> list[Missing]:
    """What was asked of the whole capture and not done. unhooked: targets whose module no process imported."""
    missing = [
        Missing(
            _NOT_IMPORTED.format(target=target, module=target.partition(":")[0]),
            "no process imported a module of --step-module",
        )
        for target in unhooked
    ]
    return [*missing, Missing(_COMPLAINED, "a process could not do all that was asked")] if complaints else missing


def why_empty(window: Window, *, seen: int, met: int, plan: Plan, named: str) -> str:
    """Why nothing of use came out of a window. seen: Python processes; met: those of them with torch.

    named: what ended, and how, or "" while the program runs.
    """
    missing = [one.text for one in _not_delivered(window, plan)]
    if missing:
        why = "; ".join(missing)
    elif not met:
        why = _no_torch(seen) if seen else _NO_PYTHON
    else:
        why = _why_idle(window, plan)
    return f"{named}; {why}" if named else why


def _why_idle(window: Window, plan: Plan) -> str:
    """Why no process that runs torch recorded an op, though none failed."""
    began = any(attempt.began is not None for attempt in window.attempts.values())
    if not began and (why := _why_not_begun(window)):
        return why
    limits = sorted({process.one_thread for process in window.attempts} - {""})
    threads = _THREADS.format(why=" and ".join(limits)) if limits else ""
    if plan == Plan(timeout=plan.timeout):
        return _NOT_ON_THREAD + threads if threads else _NOTHING_RAN
    return _EMPTY.format(time=f"{window.seconds:.1f} s of the " if began else "") + threads


def _why_not_begun(window: Window) -> str:
    """What every process waited for in vain, "" if that is not known."""
    whys = {attempt.why for attempt in window.of("idle") if attempt.why}
    by_step = window.steps is not None or window.warmup > 0
    if "own profiler" in whys:
        return _OWN_PROFILER
    if by_step and whys != {"GPU not used"} and not any(attempt.stepping for attempt in window.attempts.values()):
        return _NO_STEP
    if window.warmup and "GPU not used" not in whys:
        passed = max((attempt.passed or 0 for attempt in window.attempts.values()), default=0)
        steps = f"{passed} marked step{'s' if passed > 1 else ''}" if passed else "marked steps"
        return _WARMING_UP.format(passed=steps, warmup=window.warmup)
    return _NO_GPU if "GPU not used" in whys else ""


def why_no_window(plan: Plan, *, seen: int, met: int) -> str:
    """Why not one window was opened."""
    if not met and not plan.paused:
        return _no_torch(seen) if seen else _NO_PYTHON
    return _BEFORE_DELAY.format(delay=plan.delay) if plan.delay is not None else _NEVER_STARTED


def what_is_missing(window: Window, useful: Sequence[Part], plan: Plan) -> list[Missing]:
    """What a window should have brought and did not."""
    missing = _not_delivered(window, plan)
    missing += _of([part.process for part in useful if part.reason == "max_size"], _MAX_SIZE)
    missing += _of([part.process for part in useful if part.reason == "displaced"], _DISPLACED)
    missing += _fewer_steps(window.steps, useful) if window.steps is not None else _shorter(window, useful, plan)
    world = max((part.world_size or 0 for part in useful), default=0)
    absent = sorted(set(range(world)) - {part.rank for part in useful})
    if absent:
        stored, more = _RANKS
        stored = stored.format(missing=", ".join(map(str, absent)), world=world)
        missing.append(Missing(stored + more, stored))
    return missing


def _fewer_steps(wanted: int | None, useful: Sequence[Part]) -> list[Missing]:
    """Processes that recorded some of the steps, unless they ended by a limit that was given, too."""
    missing = []
    for part in useful:
        why = _WHY_FEWER.get(part.reason)
        if wanted is not None and part.steps < wanted and why is not None:
            missing += _of([part.process], (_FEWER_STEPS.format(steps=part.steps, wanted=wanted, why=why), ""))
    return missing


def _shorter(window: Window, useful: Sequence[Part], plan: Plan) -> list[Missing]:
    """The time that was asked for, if all that was recorded ended before it was over."""
    ended = {part.reason for part in useful} <= {"exit", "finish", "signal"}
    seconds = window.seconds
    if plan.duration is None or not ended or seconds >= _ALMOST * plan.duration:
        return []
    why = _WHY_FEWER["signal" if window.closed == "signal" else "exit"]
    text = _SHORTER.format(seconds=round(seconds, 1 if seconds >= 1 else 2), wanted=plan.duration, why=why)
    return [Missing(text, text)]


def no_kernels(launches: int) -> Missing:
    """Launches were recorded, and nothing of what they launched."""
    return Missing(_NO_KERNELS.format(launches=f"{launches:,}"), "launches, and no device activity")


def ended_badly(ended: Ended) -> str:
    """What to say of a program that did not end with 0, "" of one that did."""
    return "" if ended.status == 0 else f"the program {ended}"


def unconverted(error: BaseException, folder: Path | None, output: Path) -> str:
    """What to say when the parts of a window could not be made into a trace."""
    kept = "" if folder is None else f". What was recorded is in {folder}: tracekit convert {folder} -o {output}"
    return f"the recording could not be converted: {error}{kept}"


def _not_delivered(window: Window, plan: Plan) -> list[Missing]:
    """Processes that recorded, or were to, and left no part."""
    missing = [one for attempt in window.of("failed") for one in _of([attempt.process], _FAILED, why=attempt.why)]
    lost = window.of("lost")
    stopped = [attempt.process for attempt in lost if window.lost_when_stopped(attempt)]
    missing += _of([attempt.process for attempt in lost if attempt.process not in stopped], _LOST)
    missing += _of(stopped, _LOST_WHEN_STOPPED)
    late = [attempt.process for attempt in window.of("late")]
    return missing + _of(late, _LATE, timeout=plan.timeout)


def _of(processes: Sequence[Process], text: tuple[str, str], **facts: object) -> list[Missing]:
    """One text for all these processes, none if there are none."""
    if not processes:
        return []
    names = ", ".join(map(str, processes))
    plain = f"process {', '.join(str(process.pid) for process in processes)}"
    return [Missing("".join(text).format(who=names, **facts), text[0].format(who=plain, **facts))]


def _no_torch(seen: int) -> str:
    return _NO_TORCH.format(
        seen="one Python process" if seen == 1 else f"{seen} Python processes", none="it never" if seen == 1 else "none"
    )
