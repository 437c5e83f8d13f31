"""Which local process is behind a port, and what its command line says of the profiler (Linux).

The command line and the environment of that process are read here for the few values below and go no further.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
_LISTENING = "0A"
_ALIASES = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size"}
_SHORTENED = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size", "dp_size": "data_parallel_size"}
_URI = re.compile(r"\w{2,}://")
Identity = tuple[int, int]  # pid and start in clock ticks since boot: a pid is used again


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """What is known of the process.

    profiler: torch, cuda or proton (vLLM), None if none is named. folder: where it writes. remote_folder: an address
    such as gs://bucket in its place. ranks: processes that write a file. same_files: whether a path means the same
    there and here. same_user: whether it may write where we may. stages_only: SGLang's second profiler. identity: which
    process it is.
    """

    profiler: str | None = None
    folder: Path | None = None
    remote_folder: bool = False
    ranks: int | None = None
    same_files: bool = True
    same_user: bool = True
    stages_only: bool = False
    identity: Identity | None = field(default=None, compare=False)


def identity_of(pid: int) -> Identity | None:
    """Of a process that runs; None if there is none, or it is dead and only waits for its parent."""
    try:
        words = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in {"Z", "X"} else (pid, int(words[19]))


def is_running(process: Identity) -> bool:
    """Whether it still is there."""
    return identity_of(process[0]) == process


def serving(port: int) -> ServerProcess | None:
    """The process that listens on a TCP port of this machine; None if there is none to be seen."""
    best: ServerProcess | None = None
    for pid in _holders(_listening(port)):
        found = _look_at(_PROC / str(pid))
        if found is not None and (best is None or (best.folder is None and found.folder is not None)):
            best = found
    return best


def _listening(port: int) -> set[str]:
    """Socket inodes that listen on the port, in this network namespace."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{words[9]}]")
    return inodes


def _holders(sockets: set[str]) -> Iterator[int]:
    """Processes that hold one of the sockets open, oldest first; other users' are not shown to us."""
    if not sockets:
        return
    for pid in sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()):
        with contextlib.suppress(OSError):
            if any(_target(link) in sockets for link in (_PROC / str(pid) / "fd").iterdir()):
                yield pid


def _target(link: Path) -> str:
    """What an open file is; "" if it was closed meanwhile, as some of a busy server's are."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _look_at(process: Path) -> ServerProcess | None:
    try:
        words = [word.decode("utf-8", "replace") for word in (process / "cmdline").read_bytes().split(b"\0")[:-1]]
        entries = (process / "environ").read_bytes().split(b"\0")
        folder_now = (process / "cwd").readlink()
        user = process.stat().st_uid
        mounts = (process / "ns/mnt").readlink()
        ours = (_PROC / "self/ns/mnt").readlink()
    except OSError:  # it ended, or it is not ours to look at
        return None
    environment = dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)
    said = read_settings(words, environment, folder_now)
    return ServerProcess(
        said.profiler,
        said.folder,
        said.remote_folder,
        said.ranks,
        same_files=mounts == ours,
        same_user=user == os.geteuid(),
        stages_only=said.stages_only,
        identity=identity_of(int(process.name)),
    )


def read_settings(words: Sequence[str], environment: Mapping[str, str], folder_now: Path) -> ServerProcess:
    """What a command line and an environment say; `folder_now` is what relative paths start from."""
    options = _options(words)
    config: dict[str, object] = {}
    with contextlib.suppress(ValueError, TypeError):  # no JSON, or no object
        config = {**json.loads(options.get("profiler_config", "{}"))}
    for name, value in options.items():
        if name.startswith("profiler_config."):
            config[name.partition(".")[2]] = value
    profiler = config.get("profiler")
    place = config.get("torch_profiler_dir") or environment.get("VLLM_TORCH_PROFILER_DIR") or None
    uri = isinstance(place, str) and _URI.match(place) is not None
    folder = None
    if isinstance(place, str) and not uri:
        home = environment.get("HOME", "~")
        folder = folder_now / re.sub(r"^~(?=/|$)", lambda _: home, place)
    return ServerProcess(
        profiler if isinstance(profiler, str) else None,
        folder,
        remote_folder=uri,
        ranks=_ranks(options),
        stages_only=environment.get("SGLANG_PROFILE_V2", "").lower() in {"1", "true", "yes", "y"},
    )


def _options(words: Sequence[str]) -> dict[str, str]:
    """Values of `--name value`, `--name=value` and `-tp 2`, under names with underscores; the last one wins."""
    options: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        name = _ALIASES.get(name) or _SHORTENED.get(name) or name
        if equals:
            options[name] = value
        elif not following.startswith("-"):
            options[name] = following
    return options


def _ranks(options: Mapping[str, str]) -> int | None:
    """Workers: tensor x pipeline x data parallel (here); None if nothing is said, as a settings file may say it."""
    sizes = [options.get("tensor_parallel_size"), options.get("pipeline_parallel_size")]
    sizes.append(options.get("data_parallel_size_local") or options.get("data_parallel_size"))
    said = [size for size in sizes if size is not None]
    if not said or not all(size.isdecimal() and int(size) for size in said):
        return None
    return math.prod(map(int, said))
