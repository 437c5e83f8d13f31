"""Record a serving engine that runs already, through its own profiler's endpoints: start, wait, stop, fetch the files.

The engine's workers write one file each, into a folder on their machine. What comes back is checked: whole files, of
every rank, in which steps ran. The server is told to stop whatever happens here, so that it is not left recording.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tracekit.collectors._attach_plan import Plan, Situation, make_plan, no_file, refusal
from tracekit.collectors._engine_api import Call, Engine, Server, identify, parse_address
from tracekit.collectors._server_process import serving
from tracekit.collectors._trace_files import NewFiles, TraceFile
from tracekit.errors import CaptureError, UsageError

DEFAULT_DURATION_S = 5.0
_TICK_S = 0.2
_QUIET_S = {"vllm": 3.0, "sglang": 10.0}  # without a change in the folder, once the engine has said that it is done
_ANSWER_S = 5.0  # for an answer when every file is there
_LONGEST_SILENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Attached:
    """What was recorded.

    files: the profiler's, one a rank, in place or below `raw`; those of a partial capture may end early. partial: why
    it is not whole, if so. capture: for the trace's footer. ranks: of the files, where what they say of themselves
    names one rank twice (data-parallel replicas count from 0 each).
    """

    files: tuple[Path, ...]
    partial: tuple[str, ...]
    capture: dict[str, object]
    ranks: Mapping[Path, int] = field(default_factory=dict)


def attach(
    address: str,
    *,
    engine: str,
    duration: float | None,
    steps: int | None,
    profile_dir: Path | None,
    timeout: float,
    raw: Path,
    say: Callable[[str], None],
) -> Attached:
    """Have the engine at `address` record `duration` seconds or `steps` steps (5 s if neither is given), and stop.

    With both, whichever is over first. profile_dir: where the engine writes, if that cannot be found out. timeout:
    seconds for the engine to come to `steps`, and again for it to stop and write. raw: a folder for what can be
    written elsewhere. say: gets lines about what goes on. Ctrl-C and SIGTERM end the window early and the recording is
    kept; a second one gives up waiting, and the server has been told to stop.

    Raises UsageError for what cannot be asked of this server, CaptureError if nothing was recorded.
    """
    if (duration is not None and duration <= 0) or (steps is not None and steps < 1) or timeout <= 0:
        raise UsageError("--duration, --steps and --timeout must be more than 0")
    server = Server(parse_address(address))
    found = identify(server, engine)
    process = serving(server.address.port) if server.address.is_here() else None
    plan = make_plan(Situation(server.address, found, process, profile_dir, raw, steps))
    if duration is None and steps is None:
        duration = DEFAULT_DURATION_S
    window = _Window(duration, steps)
    with _Interrupts() as interrupts:
        session = _Session(server, found, plan, window, NewFiles(plan.folder, plan.prefix), timeout, say, interrupts)
        return session.run()


@dataclass(slots=True)
class _Window:
    """What was asked for, and what came of it. ended_by: duration, steps, timeout or interrupt."""

    duration: float | None
    steps: int | None
    ended_by: str = ""
    recorded_s: float = 0.0

    def __str__(self) -> str:
        limits = [] if self.duration is None else [f"{self.duration:g} s"]
        if self.steps is not None:
            limits.insert(0, "1 step" if self.steps == 1 else f"{self.steps} steps")
        return ", at most ".join(limits)


class _Interrupts:
    """The first Ctrl-C or SIGTERM is noted; once the server has been told to stop, another one raises."""

    def __init__(self) -> None:
        self._seen = threading.Event()
        self._count = 0
        self._previous: dict[int, Any] = {}
        self.may_raise = False

    @property
    def seen(self) -> bool:
        """Whether there was one."""
        return self._seen.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, until there is one at most; returns whether there was."""
        return self._seen.wait(max(0.0, seconds))

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        self._seen.set()
        if self.may_raise and self._count > 1:
            raise KeyboardInterrupt


@dataclass(slots=True)
class _Session:
    """One recording, from start to files."""

    server: Server
    engine: Engine
    plan: Plan
    window: _Window
    files: NewFiles
    timeout: float
    say: Callable[[str], None]
    interrupts: _Interrupts
    begun: bool = False
    stop: Call | None = None

    def run(self) -> Attached:
        try:
            self._start()
            self._record()
        except BaseException:  # whatever it was, the server is not left recording
            if self.begun:
                self._send_stop()
            raise
        try:
            if self.window.ended_by != "steps" or not self.plan.stops_itself:
                self._send_stop()
            self._await_files()
        except KeyboardInterrupt:
            raise CaptureError(
                f"given up. {self.server.address} has been told to stop recording, and may still be writing into "
                f"{self.plan.folder}: once it has, `tracekit convert` reads the files there"
            ) from None
        return self._result()

    # ---- the window --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Have the recording begin. Raises if the server refuses; returns early, unanswered, on an interrupt."""
        body = self.plan.body
        while True:
            self.begun = True
            call = self.server.post("/start_profile", body, self.timeout)
            while not call.wait(_TICK_S):
                if self.interrupts.seen:
                    return
            reply = call.reply()
            if reply.ok:
                return
            self.begun = False  # what may be open there is somebody else's
            if reply.status not in {400, 422} or body == self.plan.least_body:
                raise refusal(self.server.address, self.engine, self.window.steps, reply)
            body = self.plan.least_body  # a server that refuses keys it does not know

    def _record(self) -> None:
        """Wait until the window is over."""
        name = " ".join(part for part in (self.engine.name, self.engine.version) if part)
        if not self.interrupts.seen:
            self.say(f"{name} at {self.server.address} records {self.window}; send it requests. Ctrl-C ends it early.")
        begun = time.monotonic()
        news = _News(self.say)
        limit = self.timeout if self.window.duration is None else self.window.duration
        self.window.ended_by = "timeout" if self.window.duration is None else "duration"
        while (left := begun + limit - time.monotonic()) > 0:
            if self.interrupts.wait(min(_TICK_S, left)):
                self.window.ended_by = "interrupt"
                break
            if self.window.steps is not None:
                if self.files.look():  # the profiler writes once it has stopped
                    self.window.ended_by = "steps"
                    break
                news.tell(f"Waiting for {self.window.steps} steps of the server (limit {limit:g} s)")
        self.window.recorded_s = round(time.monotonic() - begun, 3)
        if self.interrupts.seen:
            self.say("Interrupted: the window ends here. The trace is kept; once more gives up.")

    def _send_stop(self) -> None:
        self.stop = self.server.post("/stop_profile", None, self.timeout + _ANSWER_S)
        self.stop.sent.wait(_ANSWER_S)
        self.interrupts.may_raise = True

    # ---- the files ---------------------------------------------------------------------------------------------------

    def _await_files(self) -> None:
        """Wait until the files are there, until no more can come, or for the time limit."""
        news = _News(self.say)
        begun = changed = time.monotonic()
        answered: float | None = None
        before: list[TraceFile] = []
        told = self.interrupts.seen
        while (now := time.monotonic()) - begun < self.timeout:
            files = self.files.look()
            if files != before:
                before, changed = files, now
            if answered is None and (self.stop is None or self.stop.done):
                answered = now
            if self._complete(files) and (answered is not None or now - changed > _ANSWER_S):
                return
            quiet = 0.0 if answered is None else now - max(changed, answered)
            if quiet > _QUIET_S[self.engine.name] and self._no_more(files):
                return
            done = f"{sum(file.size for file in files) / 1e6:.1f} MB in {len(files)} file{'s' * (len(files) != 1)}"
            state = "writes its files" if files else "prepares its files"
            news.tell(f"The server {state}: {done} so far (limit {self.timeout:g} s)")
            if self.interrupts.seen and not told:
                told = True
                self.say("The recording has ended, and the server is writing it; once more gives up.")
            time.sleep(_TICK_S)

    def _no_more(self, files: list[TraceFile]) -> bool:
        """Whether, by what the engine answered, there are no more files to come."""
        if self.stop is not None and not self._stop_succeeded():
            return True
        # Older SGLang answers before it writes; on a shared folder, files show late.
        return self.plan.is_here and (self.engine.name == "vllm" or any(file.whole for file in files))

    def _stop_succeeded(self) -> bool:
        try:
            return self.stop is not None and self.stop.done and self.stop.reply().ok
        except CaptureError:
            return False

    def _expected(self, files: list[TraceFile]) -> int | None:
        """How many ranks write a file; None if nobody says."""
        said = [file.world_size for file in files if file.world_size is not None]
        return max([*said, self.plan.ranks or 0]) or None

    def _complete(self, files: list[TraceFile]) -> bool:
        expected = self._expected(files) or 1
        return len({(file.replica, file.rank, file.path if file.rank is None else None) for file in files}) >= (
            expected
        ) and all(file.whole for file in files)

    def _result(self) -> Attached:
        files = self.files.look()
        usable = [file for file in files if file.worked]
        if not usable:
            self._raise_empty(files)
        partial = [*self._missing(files), *self._cut(files), *self._short(usable)]
        if not partial and self.stop is not None and not self._stop_succeeded():
            self.say(f"The files are whole. {self._why_unfinished()}")
        replicated = max(Counter(file.rank for file in usable).values()) > 1
        ranks = {file.path: self._overall(file) for file in usable} if replicated else {}
        window: dict[str, object] = {
            "duration_s": self.window.duration,
            "steps": self.window.steps,
            "recorded_s": self.window.recorded_s,
            "ended_by": [self.window.ended_by],
        }
        capture: dict[str, object] = {
            "engine": self.engine.name,
            "engine_version": self.engine.version,
            "window": window,
            "processes": [self._process(file, ranks) for file in usable],
        }
        return Attached(tuple(file.path for file in usable), tuple(partial), capture, ranks)

    def _process(self, file: TraceFile, ranks: Mapping[Path, int]) -> dict[str, object]:
        return {"rank": ranks.get(file.path, file.rank), "steps": file.steps if file.marks else None}

    def _overall(self, file: TraceFile) -> int:
        return file.replica * (file.world_size or 1) + (file.rank or 0)

    def _missing(self, files: list[TraceFile]) -> list[str]:
        expected = self._expected(files)
        if expected is None or len(files) >= expected:
            return []
        ranks = {file.rank for file in files}
        missing = ", ".join(str(rank) for rank in range(expected) if rank not in ranks)
        which = f"no file of rank {missing}" if not any(file.replica for file in files) else "no file of the others"
        return [f"{len(files)} of {expected} ranks wrote a file: {which}. {self._why_unfinished()}"]

    def _cut(self, files: list[TraceFile]) -> list[str]:
        return [f"{file.path.name} ends early. {self._why_unfinished()}" for file in files if not file.whole]

    def _short(self, files: list[TraceFile]) -> list[str]:
        least = min(file.marks for file in files)
        marked = least > 0  # versions without marks ran them all the same
        if self.window.steps is None or not marked or least >= self.window.steps or self.window.ended_by == "interrupt":
            return []
        return [f"{least} of {self.window.steps} steps ran before the window ended"]

    def _why_unfinished(self) -> str:
        if self.stop is None:
            return f"The server had {self.timeout:g} s for it"
        if not self.stop.done:
            return f"The server has not answered /stop_profile (limit {self.timeout:g} s, see --timeout)"
        if not self._stop_succeeded():
            return "The server failed when told to stop; its log says why"
        return "The server says it is done; ranks on other machines write to folders of theirs"

    def _raise_empty(self, files: list[TraceFile]) -> None:
        if files and all(file.whole for file in files):
            raise CaptureError(
                f"empty window: no step ran in the {self.window.recorded_s:.1f} s that the server recorded. Send "
                "requests while it records"
            )
        unfinished = self._why_unfinished() if self.stop is not None and not self._stop_succeeded() else ""
        raise no_file(self.server.address, self.engine, self.plan, files, unfinished)


class _News:
    """Says the latest state after 2, 4, 8 and 16 s, then every 10 s."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begun = time.monotonic()
        self._next = 2.0
        self._pause = 2.0

    def tell(self, text: str) -> None:
        elapsed = time.monotonic() - self._begun
        if elapsed >= self._next:
            self._say(f"{text}, {elapsed:.0f} s")
            self._next = elapsed + self._pause
            self._pause = min(2 * self._pause, _LONGEST_SILENCE_S)
