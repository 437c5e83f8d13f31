"""The part of `tracekit collect` that runs inside the processes of the recorded program.

Loaded under the name `_tracekit_capture` by site/sitecustomize.py when a process has imported torch, in an environment
that need not have tracekit: the standard library and torch only, nothing newer than Python 3.8, relative imports.

    link       the connection to the collector: commands in, facts out
    recorder   torch.profiler in this process: opens and closes windows as told
    follower   in its place while Nsight Systems records: counts steps, and asks for windows at their boundaries
    watch      counts and times the marked steps, and has the recorder start and stop at their boundaries
    saving     writes what was recorded, in a forked process while the program goes on
    exits      records are saved when the process ends, forks or executes another program
    marks, step_hooks, engine_hooks: what marks steps; nvtx_ranges: by what Nsight Systems sees them
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .control import Process
from .watch import watch

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["at_exit", "begin", "module_imported", "watch"]

_process: Process | None = None


def begin(torch: Any, folder: str, imported: dict[str, ModuleType]) -> None:
    """Called when torch has been imported. `imported`: modules watched for that came before it."""
    global _process  # noqa: PLW0603  one process, one capture
    process = Process(torch, folder)
    if process.connect():
        _process = process
        for name, module in imported.items():
            process.module_imported(name, module)
        process.start()


def module_imported(name: str, module: ModuleType) -> None:
    """Called when one of the modules watched for has been imported after torch."""
    if _process is not None:
        _process.module_imported(name, module)


def at_exit() -> None:
    """Called when the interpreter exits."""
    if _process is not None:
        _process.at_exit()
