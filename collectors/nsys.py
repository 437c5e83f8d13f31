"""Record a program with Nsight Systems: all of it, or windows of time or steps, while the program runs unchanged.

nsys wraps the program and sees its processes, but for those that are forked and no other program since. The processes
that run torch are met from inside, too, as with torch.profiler: they mark steps by NVTX ranges, say when a window of
steps begins and ends, and show which of them are missing in the report.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tracekit.collectors._child import Ended, Foreground, GaveUp, foreground
from tracekit.collectors._nsys_command import NsysSettings, plan_commands
from tracekit.collectors._nsys_run import NsysRun, check_temporary
from tracekit.collectors._nsys_session import NsysSession
from tracekit.collectors._nsys_tool import Nsys
from tracekit.collectors._program import Recording, environment, session_folder
from tracekit.collectors._session import Delivered
from tracekit.collectors._windows import Plan, Window
from tracekit.errors import CaptureError

_PROGRESS_S = 10.0
_UNFINISHED = (
    "nsys had not finished {seconds:g} s after the program ended, and was ended, too: with what status the program "
    "exited is unknown"
)
_SPAWN = "VLLM_WORKER_MULTIPROC_METHOD"
_SPAWNS = f"{_SPAWN}=spawn is set for vLLM: nsys sees no forked workers."
_STARTS = 3  # two of nsys that begin or end at the same moment may find each other's semaphores gone
_AGAIN_S = 1.0
_LOOK_S = 0.05
_FOLLOWED = (
    "nsys {ended} while the program runs; the program is followed to its end, and its status is not known. What nsys "
    "had recorded is taken from its agent, if that is left"
)


def record(
    command: Sequence[str],
    plan: Plan,
    settings: NsysSettings,
    nsys: Nsys,
    reports: Path,
    *,
    output: Path,
    deliver: Callable[[Window, NsysSession], Delivered],
    say: Callable[[str], None],
) -> Recording:
    """Run the command to its end with our standard streams; nsys writes its reports to the folder `reports`.

    output, deliver: as of torch_profiler.record. Raises UsageError for what this nsys cannot do, CaptureError if the
    command cannot be run.
    """
    check_temporary()
    by_step = plan.steps is not None or plan.warmup > 0
    at_once = plan.delay is None and not plan.paused and not by_step
    run = NsysRun(plan_commands(nsys, settings), reports, at_once=at_once, timeout=plan.timeout)
    with foreground(own_group=True) as program, session_folder() as folder:
        session = NsysSession(
            folder,
            plan,
            settings.step_modules,
            run,
            deliver=lambda window: deliver(window, session),
            say=say,
            wake=program.wake,
        )
        folder.write(session.modules, output)
        try:
            with _closed_if_not_started(session):
                # Once the program has begun, a request to stop waits until the session can end the recording: nsys by
                # itself would end without a report.
                program.before_stopping(lambda: None, lambda: not run.find_program())
                _start(program, run, command, _spawning(command, say) | environment(os.environ, folder))
            session.start()
            program.before_stopping(session.make_safe, session.safe.is_set)
            program.aim(run.send, run.runs)
            return _attend(program, session, run, say)
        except GaveUp as insisted:
            ended = Ended(0, program.stopped_by) if run.program_ended() else None
            session.abandon()
            run.kill()
            program.kill()
            return Recording.of(session, ended, insisted.number)
        finally:
            run.clean()


@contextmanager
def _closed_if_not_started(session: NsysSession) -> Iterator[None]:
    try:
        yield
    except BaseException:
        session.close()
        raise


def _start(program: Foreground, run: NsysRun, command: Sequence[str], variables: dict[str, str]) -> None:
    """Run nsys until the program has begun; anew where nsys fails before that, as it does now and then.

    Raises CaptureError where it does not begin.
    """
    for left in reversed(range(_STARTS)):
        wrapped, descriptors = run.command(command)
        run.started(program.start(wrapped, variables, descriptors))
        program.wait_for(lambda: run.find_program() or not program.child_runs(), _LOOK_S)
        if run.find_program():
            return
        if program.stopped_by is not None:
            error = CaptureError(f"stopped by {program.stopped_by} before nsys had run the program")
            error.exit_code = 128 + signal.Signals[program.stopped_by]
            raise error
        if left:
            run.end_sessions()
            time.sleep(_AGAIN_S)
    raise CaptureError(f"nsys did not run the program. It said: {run.said()}")


def _attend(program: Foreground, session: NsysSession, run: NsysRun, say: Callable[[str], None]) -> Recording:
    """Wait for the program, then for its reports. Raises GaveUp."""
    ended = _wait_for_nsys(program, run, say)
    if run.program_runs():
        run.killed = True
        session.complain(_FOLLOWED.format(ended=ended))
        program.wait_for(lambda: not run.program_runs())
        ended = Ended(0, program.stopped_by)
    else:
        run.ended()
    if run.late:
        session.complain(_UNFINISHED.format(seconds=run.timeout))
    if ended.stopped_by is not None:
        say(f"Stopped by {ended.stopped_by}; the program {ended}.")
    for complaint in session.folder.complaints():
        session.complain(complaint)
    session.finish(ended)
    program.wait_for(session.finished.is_set)
    return Recording.of(session, ended, None)


def _wait_for_nsys(program: Foreground, run: NsysRun, say: Callable[[str], None]) -> Ended:
    """Wait for nsys, which ends after the program; not for ever, as it may hang over its report."""
    finishing = _Finishing(run, say)
    program.wait_for(lambda: not program.child_runs() or finishing.is_overdue())
    if not program.child_runs():
        return program.wait()
    run.late = True
    program.kill()
    return Ended(0, program.stopped_by)


class _Finishing:
    """How long nsys has been at its report since the program ended; says so now and then."""

    def __init__(self, run: NsysRun, say: Callable[[str], None]) -> None:
        self._run, self._say = run, say
        self._since: float | None = None
        self._next = _PROGRESS_S

    def is_overdue(self) -> bool:
        """Whether it has been at it for longer than the user would wait."""
        if not self._run.program_ended():
            return False
        self._since = self._since or time.monotonic()
        waited = time.monotonic() - self._since
        if waited >= self._next:
            self._next += _PROGRESS_S
            self._say(f"Waiting for nsys to finish its report: {waited:.0f} s, at most {self._run.timeout:.0f} s.")
        return waited > self._run.timeout


def _spawning(command: Sequence[str], say: Callable[[str], None]) -> dict[str, str]:
    """What has vLLM spawn its workers rather than fork them, unless the user says otherwise."""
    if _SPAWN not in os.environ and any("vllm" in word for word in command):
        say(_SPAWNS)
    return {_SPAWN: "spawn"}
