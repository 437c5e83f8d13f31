"""Record a Python program with torch.profiler, from `import torch` to its end, in the program's own interpreter.

One process is recorded: the one started. The program needs no change and no tracekit in its environment. On a machine
with GPUs the profiler initialises CUDA in that process as soon as torch is imported, so a program that forks workers
which then use the GPU cannot be recorded this way.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tracekit.collectors._child import Ended, run_child
from tracekit.errors import CaptureError, UsageError

Kind = Literal["script", "module", "code"]

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?d?(\.exe)?$")
_FLAGS_WITH_VALUE = frozenset("WX")
_BOOTSTRAP = Path(__file__).with_name("_torch_bootstrap.py")
# Run by -c, whose sys.path begins with the working folder: a json.py there is the program's and not for us.
START = f"""
import sys
path, sys.path, names = sys.path, [entry for entry in sys.path if entry], {{"__name__": "tracekit"}}
with open({str(_BOOTSTRAP)!r}, encoding="utf-8") as file:
    exec(compile(file.read(), "<tracekit>", "exec"), names)
sys.path = path
names["main"]()
"""
_POSSIBLE = (
    "A Python program can be recorded today: `python script.py ...`, `python -m module ...`, with any interpreter, "
    "or a command that is a Python script."
)


@dataclass(frozen=True, slots=True)
class Program:
    """A Python command taken apart. `target` is a path, a module or source code, by `kind`."""

    interpreter: str
    flags: tuple[str, ...]
    kind: Kind
    target: str
    arguments: tuple[str, ...]

    @property
    def label(self) -> str:
        """What messages call it. Its arguments may hold secrets and are never repeated."""
        if self.kind == "code":
            return "python -c"
        return f"-m {self.target}" if self.kind == "module" else Path(self.target).name


@dataclass(frozen=True, slots=True)
class Recording:
    """A Kineto file and how it came about.

    displaced: the program started a torch.profiler of its own, and the file ends there.
    all_threads: False if only the thread that imported torch was recorded (an old torch).
    """

    path: Path
    ended: Ended
    seconds: float
    torch: str
    activities: tuple[str, ...]
    displaced: bool
    all_threads: bool


def parse_command(command: Sequence[str]) -> Program:
    """Understand a command line as the interpreter would.

    Raises UsageError if it is not a Python program, or one that cannot be recorded.
    """
    if not command:
        raise UsageError(f"no command given. {_POSSIBLE}")
    executable = shutil.which(command[0])
    if executable is None:
        raise UsageError(f"{command[0]}: no such command. {_POSSIBLE}")
    if not _PYTHON.match(Path(executable).name):
        shebang = _python_shebang(Path(executable))
        if shebang is None:
            raise UsageError(f"{command[0]} is not Python, and torch.profiler runs inside Python. {_POSSIBLE}")
        return parse_command([*shebang, executable, *command[1:]])
    flags: list[str] = []
    rest = list(command[1:])
    while rest:
        word = rest.pop(0)
        if word == "--check-hash-based-pycs" and rest:
            flags += [word, rest.pop(0)]
        elif word == "-" or word.startswith("--"):
            break
        elif word.startswith("-"):
            kind, value, kept = _split_flags(word, rest)
            flags += kept
            if kind is not None:
                return Program(executable, tuple(flags), kind, value, tuple(rest))
        else:
            if not Path(word).exists():
                raise UsageError(f"{word}: no such script")
            return Program(executable, tuple(flags), "script", word, tuple(rest))
    raise UsageError(f"the command names no script and no module. {_POSSIBLE}")


def _split_flags(word: str, rest: list[str]) -> tuple[Kind | None, str, list[str]]:
    """Read one word of single-letter flags such as `-uX`, taking a value from `rest` where one needs it."""
    for position, letter in enumerate(word[1:], start=1):
        if letter in "mc" or letter in _FLAGS_WITH_VALUE:
            value = word[position + 1 :]
            if not value:
                if not rest:
                    raise UsageError(f"-{letter} in the command needs a value")
                value = rest.pop(0)
            before = [word[:position]] if position > 1 else []
            if letter in _FLAGS_WITH_VALUE:
                return None, "", [*before, f"-{letter}", value]
            return ("module" if letter == "m" else "code"), value, before
    return None, "", [word]


def files_of(program: Program, command: Sequence[str]) -> Iterator[Path]:
    """Files that a command names, or that its arguments may name, whether or not they exist."""
    for word in (program.interpreter, *command, *(word.partition("=")[2] for word in command)):
        if word:
            yield Path(word)
    place = Path(*program.target.split(".")) if program.kind == "module" else Path(program.target)
    if program.kind != "code":
        yield place / "__main__.py"
    if program.kind == "module":
        yield Path(f"{place}.py")
        yield place / "__init__.py"


def _python_shebang(path: Path) -> list[str] | None:
    """The interpreter of a script such as a pip-made command, with its flags; None if it is no Python script."""
    with path.open("rb") as file:
        lines = file.read(4096).decode("utf-8", "replace").splitlines()
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if words and Path(words[0]).name == "env":
        words = words[1:] if words[1:2] != ["-S"] else words[2:]
    elif words == ["/bin/sh"] and len(lines) > 1 and lines[1].startswith("'''exec' "):  # pip, for long paths
        words = [lines[1].removeprefix("'''exec' ").removesuffix(' "$0" "$@"').strip('"')]
    if not words or not _PYTHON.match(Path(words[0]).name):
        return None
    return words


def record(program: Program, trace: Path, *, stacks: bool = False, shapes: bool = False) -> Recording:
    """Run the program to its end with our standard streams, and have it write a Kineto file.

    stacks, shapes: have the profiler record Python stacks and op input shapes.
    Raises CaptureError if no file came out of it. A program that fails after that does not raise: see `ended`.
    """
    status_file = trace.with_suffix(".status")
    settings = {
        "kind": program.kind,
        "target": program.target,
        "stacks": stacks,
        "shapes": shapes,
        "trace": str(trace.absolute()),
        "status": str(status_file.absolute()),
    }
    started = time.monotonic()
    ended = run_child([program.interpreter, *program.flags, "-c", START, json.dumps(settings), *program.arguments])
    status = json.loads(status_file.read_text()) if status_file.exists() else {}
    _check(program, status, ended)
    return Recording(
        path=trace,
        ended=ended,
        seconds=time.monotonic() - started,
        torch=status["torch"],
        activities=tuple(status["activities"]),
        displaced=status["state"] == "displaced",
        all_threads=status["all_threads"],
    )


def _check(program: Program, status: dict[str, Any], ended: Ended) -> None:
    """Raise CaptureError with the reason unless the file is whole."""
    state = status.get("state")
    if state in ("exported", "displaced"):
        return
    name = program.label
    if state is None:
        reason = f"the interpreter {ended} before it reached the program"
    elif state == "no_torch":
        reason = (
            f"{program.interpreter} (Python {status['python']}) has no torch, so {name} was not run. "
            f"Install it there: {program.interpreter} -m pip install 'torch>=2.1'; or name another interpreter"
        )
    elif state == "waiting":
        reason = f"{name} {ended} and had not imported torch: there was nothing to record"
    elif state == "failed":
        reason = f"{name} {ended}, and {status['reason']}"
    else:
        reason = f"{name} {ended} and wrote no trace: {_why_no_export(ended)}"
    raise CaptureError(reason)


def _why_no_export(ended: Ended) -> str:
    if ended.status == -9:
        return "killed outright, often by the system for want of memory. Record a shorter run"
    if ended.status < 0:
        return "a crash, or a signal that the program took for itself, leaves no time to write one"
    return (
        "it left without Python's exit handlers (os._exit, or exec of another program). "
        "Let it end by returning, sys.exit or an exception"
    )
