"""Record a serving engine that runs already, through its own profiler's endpoints: start, wait, stop, fetch the files.

The engine's workers write one file each, into a folder on their machine. What comes back is checked: whole files, of
every rank, in which steps ran. The server is told to stop whatever happens here, so that it is not left recording.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.collectors._attach_note import Note
from tracekit.collectors._attach_plan import Plan, Situation, make_plan, no_file, refusal, refuse_while_written
from tracekit.collectors._attach_wait import Interrupts, News, Pulse
from tracekit.collectors._engine_api import Call, Engine, Server, identify, parse_address
from tracekit.collectors._server_process import serving
from tracekit.collectors._trace_files import NewFiles, TraceFile
from tracekit.errors import CaptureError, UsageError
from tracekit.wording import counted

DEFAULT_DURATION_S = 5.0
_TICK_S = 0.2
_QUIET_S = {"vllm": 3.0, "sglang": 10.0}  # without a change in the folder, once the engine has said that it is done
_ANSWER_S = 5.0  # for an answer when every file is there
_LAST_S = 2.0  # without a change in the folder, once the server is gone


@dataclass(frozen=True, slots=True)
class Attached:
    """What was recorded.

    files: the profiler's, one a rank, in place or below `raw`; those of a partial capture may end early. partial: why
    it is not whole, if so. capture: for the trace's footer. ranks: of the files, where what they say of themselves
    names one rank twice (data-parallel replicas count from 0 each). unfinished: says, once the trace is written, what
    the server still is at, "" if nothing.
    """

    files: tuple[Path, ...]
    partial: tuple[str, ...]
    capture: dict[str, object]
    ranks: Mapping[Path, int] = field(default_factory=dict)
    unfinished: Callable[[], str] = str


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
    identity = None if process is None else process.identity
    note, files = Note(server.address, identity), NewFiles(plan.folder, plan.prefix)
    note.check()
    refuse_while_written(server.address, plan, files)
    with Interrupts() as interrupts:
        pulse = Pulse(server, identity)
        return _Session(server, found, plan, window, files, timeout, say, interrupts, pulse, note).run()


@dataclass(slots=True)
class _Window:
    """What was asked for, and what came of it. ended_by: duration, steps, timeout, interrupt or server."""

    duration: float | None
    steps: int | None
    ended_by: str = ""
    recorded_s: float = 0.0

    def __str__(self) -> str:
        limits = [] if self.duration is None else [f"{self.duration:g} s"]
        if self.steps is not None:
            limits.insert(0, counted(self.steps, "step"))
        return ", at most ".join(limits)


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
    interrupts: Interrupts
    pulse: Pulse
    note: Note
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
            if self.window.ended_by != "server" and (self.window.ended_by != "steps" or not self.plan.stops_itself):
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
        self.note.write()
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
            self.note.remove()
            if reply.status not in {400, 422} or body == self.plan.least_body:
                raise refusal(self.server.address, self.engine, self.window.steps, reply)
            body = self.plan.least_body  # a server that refuses keys it does not know
            self.note.write()

    def _record(self) -> None:
        """Wait until the window is over."""
        name = " ".join(part for part in (self.engine.name, self.engine.version) if part)
        if not self.interrupts.seen:
            self.say(f"{name} at {self.server.address} records {self.window}; send it requests. Ctrl-C ends it early.")
        begun = time.monotonic()
        news = News(self.say)
        limit = self.timeout if self.window.duration is None else self.window.duration
        self.window.ended_by = "timeout" if self.window.duration is None else "duration"
        while (left := begun + limit - time.monotonic()) > 0:
            if self.interrupts.wait(min(_TICK_S, left)):
                self.window.ended_by = "interrupt"
                break
            if self.pulse.look():
                self.window.ended_by = "server"
                break
            if self.window.steps is not None:
                if self.files.look():  # the profiler writes once it has stopped
                    self.window.ended_by = "steps"
                    break
                news.tell(f"Waiting for {counted(self.window.steps, 'step')} of the server", f"limit {limit:g} s")
        self.window.recorded_s = round(time.monotonic() - begun, 3)
        if self.interrupts.seen:
            self.say("Interrupted: the window ends here. The trace is kept; once more gives up.")

    def _send_stop(self) -> None:
        self.note.write()
        self.stop = self.server.post("/stop_profile", None, self.timeout + _ANSWER_S, self.note.remove)
        self.stop.sent.wait(_ANSWER_S)
        self.interrupts.may_raise = True

    # ---- the files ---------------------------------------------------------------------------------------------------

    def _await_files(self) -> None:
        """Wait until the files are there, until no more can come, or for the time limit."""
        news = News(self.say)
        begun = changed = time.monotonic()
        answered: float | None = None
        before: list[TraceFile] = []
        told, was_there = self.interrupts.seen, True
        while (now := time.monotonic()) - begun < self.timeout:
            files = self.files.look()
            if files != before:
                before, changed = files, now
            if was_there and self.pulse.look():
                was_there = False
                self.say(f"The server at {self.server.address} is gone{self._when_gone()}.")
            if answered is None and (self.stop is None or self.stop.done or self.pulse.gone):
                answered = now
            if self._complete(files) and (answered is not None or now - changed > _ANSWER_S):
                break
            quiet = 0.0 if answered is None else now - max(changed, answered)
            if quiet > (_LAST_S if self.pulse.ended else _QUIET_S[self.engine.name]) and self._no_more(files):
                break
            self._tell(news, files)
            if self.interrupts.seen and not told:
                told = True
                self.say("The recording has ended, and the server is writing it; once more gives up.")
            time.sleep(_TICK_S)
        if self.pulse.gone or (self.stop is None and self._complete(self.files.look())):
            self.note.remove()

    def _tell(self, news: News, files: list[TraceFile]) -> None:
        done = f"{sum(file.size for file in files) / 1e6:.1f} MB in {counted(len(files), 'file')}"
        if self._complete(files):
            news.tell("The files are whole; waiting for the server to be done", done)
        else:
            state = "is still writing" if files else "has not begun to write"
            news.tell(f"The server {state}", f"{done} so far (limit {self.timeout:g} s)")

    def _when_gone(self) -> str:
        return f", {self.window.recorded_s:.1f} s into the window" if self.window.ended_by == "server" else ""

    def _no_more(self, files: list[TraceFile]) -> bool:
        """Whether, by what the engine answered, there are no more files to come."""
        if self.pulse.gone:
            return self.pulse.ended
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
        partial = [*self._ended(), *self._missing(files), *self._cut(files), *self._short(usable)]
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
        unfinished = str if partial else self._unfinished
        return Attached(tuple(file.path for file in usable), tuple(partial), capture, ranks, unfinished)

    def _unfinished(self) -> str:
        """What a server that has delivered everything still owes us."""
        if self.stop is None or self._stop_succeeded():
            return ""
        if self.stop.done:
            return f"All files are whole. {self._why_unfinished()}"
        return (
            "All files are whole, though the server has not answered /stop_profile yet: it is busy still. Record it "
            "again once its log says that the profiler has stopped"
        )

    def _ended(self) -> list[str]:
        return [f"the server ended{self._when_gone()} of {self.window}"] if self.window.ended_by == "server" else []

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
        return [f"{least} of {counted(self.window.steps, 'step')} ran before the window ended"]

    def _why_unfinished(self) -> str:
        if self.pulse.gone:
            return "The server is gone; its log says why"
        if self.stop is None:
            return f"The server had {self.timeout:g} s for it"
        if not self.stop.done:
            return f"The server has not answered /stop_profile (limit {self.timeout:g} s, see --timeout)"
        if not self._stop_succeeded():
            return "The server failed when told to stop; its log says why"
        return "The server says it is done; ranks on other machines write to folders of theirs"

    def _raise_empty(self, files: list[TraceFile]) -> None:
        if self.pulse.gone:
            left = "no file in which a step ran" if files else "no file"
            raise CaptureError(
                f"the server at {self.server.address} ended{self._when_gone() or ' while it was writing'}, and left "
                f"{left} in {self.plan.folder}. Its log says why"
            )
        if files and all(file.whole for file in files):
            raise CaptureError(
                f"empty window: no step ran in the {self.window.recorded_s:.1f} s that the server recorded. Send "
                "requests while it records"
            )
        unfinished = self._why_unfinished() if self.stop is not None and not self._stop_succeeded() else ""
        raise no_file(self.server.address, self.engine, self.plan, files, unfinished)
