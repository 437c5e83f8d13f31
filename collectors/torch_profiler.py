"""Record a program's Python processes with torch.profiler, each from inside, by windows of time.

The program is run as it is. Its environment makes every Python process in it load `_in_process/site/sitecustomize.py`,
which waits for `import torch` and then connects to this collector. The program needs no tracekit where it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tracekit.collectors._child import Ended, Foreground, GaveUp, foreground
from tracekit.collectors._program import Recording, environment, session_folder
from tracekit.collectors._session import Delivered, Session
from tracekit.collectors._windows import Plan, Window

Activity = Literal["cpu", "cuda"]

_SILENT = "99"  # of KINETO_LOG_LEVEL: its bookkeeping is not the program's output


@dataclass(frozen=True, slots=True)
class Recorder:
    """What each process records. activities: None for all there are; max_bytes: growth of memory at which it stops."""

    shapes: bool = True
    stacks: bool = False
    memory: bool = False
    activities: tuple[Activity, ...] | None = None
    max_bytes: int | None = None
    step_modules: tuple[str, ...] = ()

    def as_settings(self, parts: Path) -> dict[str, Any]:
        """What the processes are told."""
        return {
            "profiler": "torch",
            "parts": str(parts.absolute()),
            "shapes": self.shapes,
            "stacks": self.stacks,
            "memory": self.memory,
            "activities": None if self.activities is None else list(self.activities),
            "max_bytes": self.max_bytes,
            "step_modules": list(self.step_modules),
        }


def record(
    command: Sequence[str],
    plan: Plan,
    recorder: Recorder,
    parts: Path,
    *,
    output: Path,
    deliver: Callable[[Window, Session], Delivered],
    say: Callable[[str], None],
) -> Recording:
    """Run the command to its end with our standard streams; its processes write Kineto files to the folder `parts`.

    output: what `--control` calls this capture by, where several run. deliver is called, in another thread, with each
    window that is over. Raises CaptureError if the command cannot be
    run, UsageError on a system without processes and signals as we need them.
    """
    with foreground() as program, session_folder() as folder:
        session = Session(
            folder,
            plan,
            recorder.as_settings(parts),
            parts,
            deliver=lambda window: deliver(window, session),
            say=say,
            wake=program.wake,
        )
        folder.write(session.modules, output)
        try:
            program.start(command, {"KINETO_LOG_LEVEL": _SILENT, **environment(os.environ, folder)})
        except BaseException:
            session.close()
            raise
        session.start()
        program.before_stopping(session.make_safe, session.safe.is_set)
        return _attend(program, session, say)


def _attend(program: Foreground, session: Session, say: Callable[[str], None]) -> Recording:
    """Wait for the program, then for its trace; at a second Ctrl-C for neither."""
    ended: Ended | None = None
    gave_up: int | None = None
    try:
        ended = program.wait()
        if ended.stopped_by is not None:
            say(f"Stopped by {ended.stopped_by}; the program {ended}.")
        for complaint in session.folder.complaints():
            session.complain(complaint)
        session.finish(ended)
        program.wait_for(session.finished.is_set)
    except GaveUp as insisted:
        gave_up = insisted.number
        session.abandon()
        program.kill()
    return Recording.of(session, ended, gave_up)
