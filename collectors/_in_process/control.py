"""This process as part of a capture: its connection, its recorder, and the thread that obeys the collector."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from .exits import Exits
from .follower import Follower
from .link import Link
from .recorder import Recorder, Window
from .saving import Saver
from .step_hooks import hook_main, hooks_for
from .torch_facts import knows
from .watch import watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_ANSWER_S = 10.0
_LOOK_S = 0.2  # how often memory is looked at while a window is open: recording may begin on another thread


class Process:
    """One process of the recorded program."""

    def __init__(self, torch: Any, folder: str) -> None:
        self.torch = torch
        self.link = Link(folder)
        self.recorder: Recorder | Follower | None = None
        self.exits: Exits | None = None
        self.hooks: dict[str, Callable[[ModuleType], None]] = {}
        self.first: dict[str, Any] | None = None

    def connect(self) -> bool:
        """Whether the collector is there and has given its settings."""
        settings = self._greet()
        if settings is None:
            return False
        self.first = settings["window"]
        if settings["profiler"] == "nsys":
            self.recorder = Follower(self.torch, settings, watch, self.link.tell)
        else:
            self.recorder = Recorder(self.torch, settings, watch, Saver(self.link.in_fork), self.link.tell)
            self.exits = Exits(self.recorder, self._forked)
        self.hooks = hooks_for(settings["step_modules"])
        return True

    def start(self) -> None:
        """Obey from now on, and begin at once if a window is open: the first operation is to be in it."""
        if self.recorder is None:
            return
        watch.install(self.torch)
        if self.exits is not None:
            self.exits.install()
        else:
            os.register_at_fork(after_in_child=self._forked_unseen)
        try:
            hook_main(self.recorder.settings["step_modules"], self._complain)
        except Exception as error:
            self._complain(str(error))
        self._take_part(self.first)

    def module_imported(self, name: str, module: ModuleType) -> None:
        """Mark the steps of an engine, or of a function that the user named."""
        hook = self.hooks.get(name)
        if hook is not None:
            try:
                hook(module)
                self.link.tell("hooked", module=name)
            except Exception as error:
                self._complain(str(error))

    def _complain(self, text: str) -> None:
        """Have the collector tell the user what this process could not do."""
        self.link.tell("complaint", text=text)

    def at_exit(self) -> None:
        """The interpreter exits."""
        if self.exits is not None:
            self.exits.save()
        elif self.recorder is not None:
            self.recorder.finish("exit")
            self.link.tell("bye")
        self.link.close()

    def _greet(self, *, forked: bool = False) -> dict[str, Any] | None:
        """Say who this is; the settings, if the collector is there."""
        if not self.link.connect():
            return None
        self.link.tell(
            "hello",
            pid=os.getpid(),
            name=_name(),
            python=sys.version.split()[0],
            torch=str(self.torch.__version__),
            all_threads=knows(self.torch, "profile_all_threads"),
            forked=forked,
        )
        settings = None
        with contextlib.suppress(EOFError):
            settings = self.link.receive(_ANSWER_S)
        if settings is None:
            self.link.close()
        return settings

    def _forked(self) -> None:
        """A forked child is a process of its own, which begins on its own: its work may be on any thread."""
        self.link.after_fork()
        watch.after_fork()
        settings = self._greet(forked=True)
        if settings is not None:
            self._take_part(settings["window"])

    def _forked_unseen(self) -> None:
        """A forked child of a process that nsys records. What subprocess forks is another program in a moment."""
        if self.recorder is not None and sys._getframe(1).f_code.co_name != "_execute_child":
            self.recorder.after_fork()
            self._forked()

    def _open(self, window: dict[str, Any] | None, *, on_work_thread: bool) -> None:
        if window is not None and self.recorder is not None:
            of_this = Window(window["window"], window["warmup"], window["steps"])
            self.recorder.open(of_this, on_work_thread=on_work_thread)

    def _take_part(self, window: dict[str, Any] | None) -> None:
        """Begin with the window that is open, if one is, then do as told."""
        try:
            self._open(window, on_work_thread=True)
        except Exception as error:
            self._complain(f"{type(error).__name__}: {error}")
        threading.Thread(target=self._obey, name="tracekit", daemon=True).start()

    def _obey(self) -> None:
        """Do what the collector says until it or this process is gone."""
        recorder = self.recorder
        while recorder is not None:
            try:
                command = self.link.receive(_LOOK_S if recorder.window is not None else None)
            except EOFError:
                recorder.finish("finish")
                return
            try:
                self._do(recorder, command)
            except Exception as error:
                self._complain(f"{type(error).__name__}: {error}")

    def _do(self, recorder: Recorder | Follower, command: dict[str, Any] | None) -> None:
        if command is None:
            recorder.check_memory()
        elif command["do"] == "go" and isinstance(recorder, Follower):
            recorder.begin(command["window"])
        elif command["do"] == "open":
            self._open(command, on_work_thread=False)
        elif command["do"] == "close":
            recorder.close(command["reason"])
        else:
            recorder.finish("finish")


def _name() -> str:
    """What messages call this process: its script, and its name within the program if it has one."""
    path = (getattr(sys, "argv", None) or [""])[0]
    words = getattr(sys, "orig_argv", ())
    if path == "-m" and "-m" in words[:-1]:  # its package imports torch, before the module itself is found
        path = words[words.index("-m") + 1]
    script = os.path.basename(os.path.dirname(path) if path.endswith("__main__.py") else path) or "python"
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return script
    own = str(multiprocessing.current_process().name)
    return script if own == "MainProcess" else f"{script} {own}"
