"""Why a capture by Nsight Systems is empty or lacks something, and what to do about it: nsys itself ends with 0."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from tracekit.capture_gates import Missing
from tracekit.collectors._windows import Attempt, Plan, Process, Window

_NO_REPORT = "nsys left no report. It said: {said}"
_KILLED = "nsys left no report: it was killed, and what it had recorded is lost with it"
_LATE = (
    "nsys had not finished its report {seconds:.0f} s after the program ended, and was ended, too: what it had "
    "recorded is lost. It may do with less (--trace, shorter windows, no samples); --timeout waits longer"
)
_NOTHING = (
    "Nsight Systems recorded not one event. Likely causes: the program did nothing in the window that it traces "
    "({trace}); its work is in forked processes, which nsys does not see (have them spawned); it was started without "
    "our environment (containers, sudo, a daemon that runs already)"
)
_NO_CUDA = (
    "this machine has a GPU, CUDA is traced, and not one CUDA call was recorded. Likely causes: the GPU's work is in "
    "forked processes, which nsys does not see (have them spawned), or in a server that ran before; none ran in the "
    "window"
)
_NO_KERNELS = (
    "the program launched work on the GPU {launches} times and not one kernel was recorded. Likely causes: another "
    "user of CUPTI (a torch.profiler of the program's own, ncu, DCGM); an nsys older than the driver; no permission "
    "(INSUFFICIENT_PRIVILEGES). The trace holds the host side only"
)
_FORKED = (
    "{who} forked from a process that runs torch, and nsys does not see forked processes",
    ": have them spawned (multiprocessing.set_start_method('spawn'))",
)
_ABSENT = ("{who} ran steps in the window and is not in the report", "")
_NO_STEPS = ("no step in the report", ": {counted} were counted in the program. {why}")
_NO_RANGES = (
    "Steps get there as NVTX ranges, by torch built for CUDA or by the package nvtx; what hinders is said above"
)
_NOT_TRACED = "Steps get there as NVTX ranges, and --trace leaves out nvtx"
_FEWER_STEPS = "{steps} of {wanted} steps in the report"
_SHORTER = "{seconds:.2g} of {wanted:g} s: the program ended first"
_ALMOST = 0.9


def why_no_report(said: str, *, killed: bool, late_s: float | None = None) -> str:
    """Why there is none. said: the last words of nsys. late_s: how long it was waited for in vain, if it was."""
    if killed:
        return _KILLED
    if late_s is not None:
        return _LATE.format(seconds=late_s)
    return _NO_REPORT.format(said=said)


def why_nothing(trace: Sequence[str]) -> str:
    """Why the report has no events."""
    return _NOTHING.format(trace=", ".join(trace) or "nothing: --trace none")


def not_in_report(window: Window, present: AbstractSet[int]) -> list[Missing]:
    """Processes that run torch and of which there is nothing. present: pids in the report."""
    absent = [one for one in window.attempts.values() if one.process.pid not in present]
    forked = [one.process for one in absent if one.process.forked]
    stepped = [one.process for one in absent if not one.process.forked and _steps(one)]
    return [*_of(forked, _FORKED), *_of(stepped, _ABSENT)]


def steps_missing(window: Window, in_report: int, trace: Sequence[str]) -> list[Missing]:
    """Steps that were counted, or asked for, and are not in the report."""
    counted = max(map(_steps, window.attempts.values()), default=0)
    if not in_report and counted:
        why = _NO_RANGES if "nvtx" in trace else _NOT_TRACED
        return [Missing("".join(_NO_STEPS).format(counted=counted, why=why), _NO_STEPS[0])]
    if window.steps is not None and in_report < window.steps:
        text = _FEWER_STEPS.format(steps=in_report, wanted=window.steps)
        return [Missing(text, text)]
    return []


def time_missing(window: Window, seconds: float, plan: Plan) -> list[Missing]:
    """The time that was asked for, if the program ended before it was over."""
    if plan.duration is None or window.closed not in ("finish", "signal") or seconds >= _ALMOST * plan.duration:
        return []
    text = _SHORTER.format(seconds=seconds, wanted=plan.duration)
    return [Missing(text, text)]


def device_missing(launches: int, calls: int, *, traced: bool, has_gpu: bool) -> list[Missing]:
    """Device activity that should be there and is not. launches: of kernels or graphs; calls: of CUDA at all."""
    if launches:
        return [Missing(_NO_KERNELS.format(launches=f"{launches:,}"), "launches, and no device activity")]
    if traced and has_gpu and not calls:
        return [Missing(_NO_CUDA, "no CUDA call")]
    return []


def _steps(attempt: Attempt) -> int:
    return 0 if attempt.counted is None else attempt.counted.steps


def _of(processes: Sequence[Process], text: tuple[str, str]) -> list[Missing]:
    if not processes:
        return []
    plain = f"process {', '.join(str(process.pid) for process in processes)}"
    return [Missing("".join(text).format(who=", ".join(map(str, processes))), text[0].format(who=plain))]
