"""Which commands of `nsys` record a program as asked, with what the installed version can do?

One session of a name of our own holds all: `nsys profile` where recording begins with the program, `nsys launch` where
it begins later; `nsys start` and `nsys stop` begin and end it in either, and leave the program running.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from tracekit.collectors._nsys_tool import Nsys
from tracekit.errors import UsageError

GraphTrace = Literal["graph", "node"]

DEFAULT_TRACE = ("cuda", "nvtx", "osrt")
_DEFAULTS = ("--sample=none", "--cpuctxsw=none")  # sampling costs much, and is none of what the event table holds
_OURS = {
    "capture-range", "capture-range-end", "command-file", "delay", "duration", "export", "force-overwrite", "help",
    "inherit-environment", "kill", "output", "session", "session-new", "show-output", "start-later", "stats",
    "stop-on-exit", "trace", "wait",
}  # fmt: skip
_OURS_TOO = {"trace": "--trace", "cuda-graph-trace": "--cuda-graph-trace", "output": "--keep-raw"}
_OPTION = re.compile(r"^\t(?:-\w, )?--([\w-]+(?:\[[\w|]+\])?)", re.MULTILINE)
_ANSWER_S = 60.0
# Leaves word of the program's pid, as nothing else says that nsys has come so far. Gives the program our own streams
# instead of nsys' copies of them: a terminal stays one, nothing of nsys gets among the output, and the output does not
# get into the report. And our umask: under nsys' own, 0, anyone could write to the program's files.
_SAY_PID = 'umask {:o}; echo $$ > "$0"; '
_WITH_STREAMS = 'exec "$@" <&{0} >&{1} 2>&{2} {0}<&- {1}>&- {2}>&-'


@dataclass(frozen=True, slots=True)
class NsysSettings:
    """What nsys is asked to record. trace: None for the default; options: as nsys takes them, `--name=value`."""

    trace: tuple[str, ...] | None = None
    cuda_graph_trace: GraphTrace | None = None
    options: tuple[str, ...] = ()
    step_modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NsysCommands:
    """The commands of one session. Reports are written to `output`, without the suffix that nsys adds."""

    nsys: Nsys
    trace: tuple[str, ...]
    of_program: tuple[str, ...]
    of_window: tuple[str, ...]
    waits: bool
    session: str = "tracekit"

    def profile(self, output: Path, program: Sequence[str]) -> list[str]:
        """Run the program, recorded from its beginning."""
        options = [*self._of_output(output), *self.of_program, *self.of_window, "--kill=none"]
        return [str(self.nsys.path), "profile", f"--session-new={self.session}", *options, *self._wait, *program]

    def launch(self, program: Sequence[str]) -> list[str]:
        """Run the program, not recorded yet."""
        options = [f"--session-new={self.session}", *self.of_program, *self._wait]
        return [str(self.nsys.path), "launch", *options, *program]

    def start(self, output: Path) -> list[str]:
        """Begin to record."""
        options = [f"--session={self.session}", *self._of_output(output), *self.of_window]
        return [str(self.nsys.path), "start", *options]

    def stop(self) -> list[str]:
        """End recording and write the report; returns when it is written."""
        return [str(self.nsys.path), "stop", f"--session={self.session}"]

    def shutdown(self) -> list[str]:
        """End the session, and only this one; the program is left alone."""
        return [str(self.nsys.path), "shutdown", "--kill=none", f"--session={self.session}"]

    @property
    def _wait(self) -> list[str]:
        return ["--wait=primary"] if self.waits else []

    @staticmethod
    def _of_output(output: Path) -> list[str]:
        name = str(output).replace("%", "%%")  # %h and the like stand for something
        return [f"--output={name}", "--export=none", "--force-overwrite=true"]


def plan_commands(nsys: Nsys, settings: NsysSettings) -> NsysCommands:
    """The commands for what is asked. Raises UsageError for what this nsys does not have, or we set ourselves."""
    known = {command: _known(nsys.path, command) for command in ("launch", "start")}
    of_program: list[str] = []
    of_window = [one for one in _DEFAULTS if _name(one) not in map(_name, settings.options)]
    for option in settings.options:
        (of_program if _place(option, known, nsys) == "launch" else of_window).append(option)
    trace = _trace(settings.trace, nsys)
    if settings.cuda_graph_trace is not None:
        if "cuda" not in {kind.partition("-")[0] for kind in trace}:
            raise UsageError("--cuda-graph-trace says how cuda is traced; add cuda to --trace")
        if known["launch"] and "cuda-graph-trace" not in known["launch"]:
            raise UsageError(
                f"--cuda-graph-trace: nsys {nsys.text} ({nsys.path}) has no such option and records each kernel of a "
                "graph; install a newer Nsight Systems to record graphs as a whole"
            )
        of_program.append(f"--cuda-graph-trace={settings.cuda_graph_trace}")
    of_program.append(f"--trace={','.join(trace) or 'none'}")
    return NsysCommands(nsys, trace, tuple(of_program), tuple(of_window), "wait" in known["launch"])


def as_program(command: Sequence[str], streams: Sequence[int], pid_file: Path, umask: int) -> list[str]:
    """The command, run with the descriptors `streams`, if there are any, as standard input, output and error.

    Its pid is in pid_file when it begins.
    """
    execute = _WITH_STREAMS.format(*streams) if streams else 'exec "$@"'
    return ["sh", "-c", _SAY_PID.format(umask) + execute, str(pid_file), *command]


def free_descriptors() -> list[int]:
    """Three that the program does not inherit anyway, and that any shell can name; none where there are not three."""
    free = []
    for number in range(9, 2, -1):
        try:
            taken = os.get_inheritable(number)
        except OSError:
            taken = False
        if not taken:
            free.append(number)
    return free[:3] if len(free) >= 3 else []


def _name(option: str) -> str:
    return option.removeprefix("--").partition("=")[0]


def _place(option: str, known: dict[str, frozenset[str]], nsys: Nsys) -> str:
    """The command that an option of the user's goes to: launch or start."""
    name = _name(option)
    if not option.startswith("--") or not name:
        raise UsageError(f"--nsys-option {option}: write it in its long form, --nsys-option=--name=value")
    if name in _OURS or name in _OURS_TOO:
        instead = f"; use tracekit's own {_OURS_TOO[name]}" if name in _OURS_TOO else ""
        raise UsageError(f"--nsys-option {option}: tracekit sets --{name} itself{instead}")
    for command in ("start", "launch"):
        if name in known[command]:
            return command
    if not known["start"]:
        return "start"
    raise UsageError(
        f"--nsys-option {option}: nsys {nsys.text} ({nsys.path}) knows no --{name}; see nsys profile --help"
    )


def _trace(asked: tuple[str, ...] | None, nsys: Nsys) -> tuple[str, ...]:
    offered = _traces(nsys.path)
    if asked is None:
        return tuple(kind for kind in DEFAULT_TRACE if not offered or kind in offered)
    unknown = [kind for kind in asked if offered and kind not in offered]
    if unknown:
        names = ", ".join(sorted(offered))
        raise UsageError(f"--trace: nsys {nsys.text} ({nsys.path}) does not trace {unknown[0]!r}; it traces {names}")
    return () if asked == ("none",) else asked


@cache
def _help(path: Path, command: str) -> str:
    try:
        done = subprocess.run(
            [path, command, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _known(path: Path, command: str) -> frozenset[str]:
    """Names of the options of a command; empty if its help cannot be read."""
    names = set()
    for name in _OPTION.findall(_help(path, command)):
        stem, _, rest = name.partition("[")
        names |= {stem + end for end in rest.rstrip("]").split("|")} if rest else {name}
    return frozenset(names)


def _traces(path: Path) -> frozenset[str]:
    """What --trace takes; empty if that cannot be read."""
    _, _, after = _help(path, "launch").partition("-t, --trace=")
    values = re.search(r"Possible values are(.*?)\.", after, re.DOTALL)
    return frozenset(re.findall(r"'([\w-]+)'", values[1])) if values else frozenset()
