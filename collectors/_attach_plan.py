"""What to ask of an engine, where its files will be, and what to tell the user where that is not possible."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit.collectors._engine_api import Address, Engine, Reply
from tracekit.collectors._server_process import ServerProcess
from tracekit.collectors._trace_files import NewFiles, TraceFile
from tracekit.errors import CaptureError, TracekitError, UsageError
from tracekit.secrets import redact

_GROWTH_S = 0.5
_ENABLE_VLLM = (
    'Start it with --profiler-config \'{"profiler":"torch","torch_profiler_dir":"/abs/dir",'
    '"torch_profiler_with_stack":false}\' (vLLM before 0.13: the variable VLLM_TORCH_PROFILER_DIR=/abs/dir)'
)


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known before anything is asked. process: the server's, None if not to be seen. raw: a folder of ours."""

    address: Address
    engine: Engine
    process: ServerProcess | None
    profile_dir: Path | None
    raw: Path
    steps: int | None

    @property
    def known(self) -> ServerProcess:
        """The process; what is not seen may be anybody's, anywhere."""
        return self.process or ServerProcess(same_files=False, same_user=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of the server, and what is expected of it.

    body: of /start_profile; least_body: the same without what is only wished for. prefix: what file names may begin
    with. ranks: files to come, None if not known. stops_itself: after a number of steps no stop is wanted. is_here: the
    server runs on this machine and sees the same files.
    """

    folder: Path
    body: dict[str, object] | None
    least_body: dict[str, object] | None
    prefix: str
    ranks: int | None
    stops_itself: bool
    is_here: bool
    said_folder: Path | None = None


def make_plan(now: Situation) -> Plan:
    """Decide. CaptureError if the server, as started, cannot record; UsageError if the user has to say more."""
    if now.profile_dir is not None and not now.profile_dir.is_dir():
        raise UsageError(f"--profile-dir {now.profile_dir}: no such folder here")
    if now.engine.profiles is False:
        enable = _ENABLE_VLLM if now.engine.name == "vllm" else "It has no /start_profile: this SGLang is too old"
        raise CaptureError(f"the {now.engine.name} at {now.address} was not started with profiling enabled. {enable}")
    return _plan_vllm(now) if now.engine.name == "vllm" else _plan_sglang(now)


def _plan_vllm(now: Situation) -> Plan:
    """The folder was chosen when the server was started."""
    process = now.known
    if process.profiler not in {None, "torch"}:
        raise CaptureError(
            f"the vllm at {now.address} was started with the profiler {process.profiler}, which writes no file that "
            f"can be read here. {_ENABLE_VLLM}"
        )
    folder = now.profile_dir or (process.folder if process.same_files else None)
    if folder is None:
        raise UsageError(f"{_unknown_folder(now)}: name it with --profile-dir")
    keys = now.engine.keys or frozenset()
    least: dict[str, object] = {}
    if now.steps is not None:
        if "max_iterations" not in keys:
            raise UsageError(
                f"the vllm at {now.address} cannot be told to stop after a number of steps (newer ones can); use "
                "--duration, or start it with max_iterations in its --profiler-config"
            )
        least["max_iterations"] = now.steps
    prefix = _prefix() if "profile_prefix" in keys else ""
    return Plan(
        folder=folder,
        body=least | ({"profile_prefix": prefix} if prefix else {}) or None,
        least_body=least or None,
        prefix=prefix,
        ranks=process.ranks,
        stops_itself=False,  # the workers do, but the session lasts until it is told
        is_here=process.same_files,
        said_folder=process.folder,
    )


def _plan_sglang(now: Situation) -> Plan:
    """The folder is part of the request."""
    process, engine = now.known, now.engine
    if process.stages_only:
        raise CaptureError(
            f"the sglang at {now.address} was started with SGLANG_PROFILE_V2, whose profiler cannot be started and "
            "stopped from outside. Start it without"
        )
    if now.profile_dir is None and not (process.same_files and process.same_user):
        raise UsageError(
            f"{_unknown_folder(now)}: name with --profile-dir a folder that has the same path there and here, and that "
            "the server may write to"
        )
    folder = (now.profile_dir or now.raw).absolute()
    prefix = _prefix()
    least: dict[str, object] = {"output_dir": str(folder)}
    if now.steps is not None:
        least["num_steps"] = now.steps
    if engine.keys is not None and not least.keys() <= engine.keys:
        unknown = ", ".join(sorted(least.keys() - engine.keys))
        raise UsageError(f"the sglang at {now.address} does not take {unknown}; use a newer one")
    wished: dict[str, object] = {"profile_id": prefix, "record_shapes": True, "with_stack": False}
    keys = engine.keys or frozenset({"with_stack", "record_shapes"})
    return Plan(
        folder=folder,
        body=least | {key: value for key, value in wished.items() if key in keys},
        least_body=least,
        prefix=prefix,
        ranks=engine.ranks,
        stops_itself=True,
        is_here=process.same_files,
    )


def _prefix() -> str:
    return f"tracekit-{time.time_ns() // 1_000_000}-{os.getpid()}"


def _unknown_folder(now: Situation) -> str:
    process = now.process
    if not now.address.is_here():
        return f"{now.address} is another machine, and the profiler's files must be reachable from here"
    if process is None:
        return f"the process behind {now.address} cannot be seen (a container, or another user's)"
    if not process.same_files:
        return f"the server at {now.address} runs in a container, and the folder it writes to may be another one here"
    if process.remote_folder:
        return f"the server at {now.address} writes to remote storage; where that can be read as a folder here"
    return f"the command line of the server at {now.address} does not say where its profiler writes"


def refusal(address: Address, engine: Engine, steps: int | None, reply: Reply) -> TracekitError:
    """The error for a /start_profile that was answered by no."""
    said = _words_of(reply)
    if reply.status == 409:
        return CaptureError(
            f"{address} is recording already, for somebody else or since an earlier try. If it is yours to end: "
            f"curl -X POST {address}/stop_profile"
        )
    if reply.status in {404, 405}:
        enable = f" {_ENABLE_VLLM}" if engine.name == "vllm" else ""
        return CaptureError(f"{address} has no /start_profile: profiling is not enabled.{enable}")
    if reply.status in {401, 403}:
        return CaptureError(
            f"{address} refuses the key for /start_profile ({reply.status}); SGLang wants its admin key"
        )
    if reply.status in {400, 422} and steps is not None:
        return UsageError(f"{address} does not take --steps ({reply.status}{said}); use --duration")
    return CaptureError(
        f"{address} answered {reply.status} to /start_profile{said}. Its log says more. A recording that is still open "
        f"is ended by: curl -X POST {address}/stop_profile"
    )


def refuse_while_written(address: Address, plan: Plan, files: NewFiles) -> None:
    """Raise CaptureError if an earlier recording is being written to the folder."""
    if growing := files.growing(_GROWTH_S):
        raise CaptureError(
            f"{growing[0].name} in {plan.folder} is still being written, by an earlier recording: wait until it is "
            f"whole. A second one on top may end the server at {address}"
        )


def _words_of(reply: Reply) -> str:
    """What the server said, in one short line."""
    text = " ".join(reply.body[:2000].decode("utf-8", "replace").split())
    return f": {redact(text[:200])}" if text.isprintable() and text else ""


def no_file(address: Address, engine: Engine, plan: Plan, files: Sequence[TraceFile], unfinished: str) -> CaptureError:
    """The error for a recording that left nothing to read."""
    folder = plan.folder
    if unfinished:
        return CaptureError(
            f"no file can be read in {folder}. {unfinished}. Writing takes minutes where there are many events: record "
            f"less, and without stacks. It may be writing still; later `tracekit convert {folder}` reads what is whole"
        )
    if files:
        names = ", ".join(file.path.name for file in files)
        return CaptureError(f"nothing can be read of {names} in {folder}: cut short before the first event")
    elsewhere = ""
    if plan.said_folder is not None and plan.said_folder.absolute() != folder.absolute():
        elsewhere = f" Its command line says {plan.said_folder}."
    hint = "" if engine.name == "sglang" else f" {_ENABLE_VLLM}"
    return CaptureError(
        f"the {engine.name} at {address} recorded, it says, and no file appeared in {folder}. Is that where it writes?"
        f"{elsewhere}{hint}"
    )
