"""`tracekit collect`: the options, and which of the three ways to record they ask for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tracekit.cli import Named
from tracekit.errors import UsageError

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]  # which only click 8.4 and later can be asked for when it runs
else:
    _ParamType = click.ParamType

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_GROUPS = {
    "Files": ("output", "force", "keep_raw", "keep_command"),
    "When to record": ("delay", "duration", "steps", "warmup", "step_module", "paused", "timeout"),
    "By which profiler": ("profiler",),
    "With torch.profiler": ("shapes", "stacks", "memory", "activities", "max_size"),
    "With Nsight Systems": ("trace", "cuda_graph_trace", "nsys_option"),
    "A capture that runs": ("control", "session"),
    "A server that runs": ("attach", "engine", "profile_dir"),
}
_OF_TORCH = {"shapes", "stacks", "memory", "activities", "max_size"}
_OF_NSYS = {"trace", "cuda_graph_trace", "nsys_option"}
_WITH_CONTROL = {"control", "session", "timeout"}
_WHEN = {"delay", "warmup", "paused"}
_WITH_ATTACH = {"attach", "engine", "profile_dir", "duration", "steps", "timeout", "output", "force", "keep_raw"}
_WIDTH = 100


class _Grouped(click.Command):
    """Lists its options by subject."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        listed = {name for names in _GROUPS.values() for name in names}
        groups = {**_GROUPS, "Other": tuple(name for name in records if name is not None and name not in listed)}
        for title, names in groups.items():
            found = [record for name in names if (record := records[name]) is not None]
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)


class _Size(_ParamType):
    """A number of bytes such as 4G; 0 for no limit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """In bytes."""
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no size; write 500M or 4G", param, ctx)
        return int(float(match[1]) * _UNITS[match[2].upper()])


class _Seconds(_ParamType):
    """A positive time in seconds."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As a number."""
        try:
            seconds = float(str(value).removesuffix("s"))
        except ValueError:
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        if not 0 < seconds < 1e8:
            self.fail(f"{value!r} should be more than 0", param, ctx)
        return seconds


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """All options. What each costs is said where it is chosen."""
    file, folder = Named(dir_okay=False, path_type=Path), Named(file_okay=False, path_type=Path)
    seconds, count = _Seconds(), click.IntRange(min=1)
    for option in reversed(
        [
            click.option("-o", "--output", type=file, default=Path("trace.parquet"), show_default=True, metavar="FILE",
                         help="File to write; of later windows, trace-2.parquet and so on."),
            click.option("--force", is_flag=True, help="Overwrite the file; only once something was recorded."),
            click.option("--keep-raw", type=folder, metavar="DIR",
                         help="Keep the profiler's own files there. They may hold secrets; the Parquet file does not."),
            click.option("--keep-command", is_flag=True,
                         help="Store the command in the file, what looks like a secret blanked."),
            click.option("--delay", type=seconds, metavar="S", help="Begin S seconds after the program."),
            click.option("--duration", type=seconds, metavar="S",
                         help="End after S seconds of recording; the program goes on."),
            click.option("--steps", type=count, metavar="N", help="End after N marked steps (of one thread)."),
            click.option("--warmup", type=click.IntRange(min=0), default=0, metavar="N",
                         help="Let N marked steps pass first."),
            click.option("--step-module", multiple=True, metavar="MOD:FUNC",
                         help="Mark each call as a step: pkg.mod:Class.forward. Repeatable. vLLM, SGLang and "
                         "Transformers' generate() are marked without."),
            click.option("--paused", is_flag=True, help="Record only between --control start and stop."),
            click.option("--max-size", type=_Size(), default="1G", show_default=True, metavar="SIZE",
                         help="End in a process that has grown by this much memory; the end itself takes four "
                         "times that. 0: no limit."),
            click.option("--timeout", type=seconds, default=300, show_default=True, metavar="S",
                         help="Longest wait for processes to save."),
            click.option("--profiler", type=click.Choice(["auto", "torch", "nsys"]), default="auto", show_default=True,
                         help="torch.profiler, or Nsight Systems. auto: nsys where its options are given."),
            click.option("--shapes/--no-shapes", default=True, show_default=True,
                         help="Input shapes of ops: about 1 us an op, and a file 1.7 times as large."),
            click.option("--stacks", is_flag=True, help="Python stacks: the host severalfold slower; for few steps."),
            click.option("--memory", is_flag=True, help="Allocations, of the one thread that runs the steps."),
            click.option("--activities", metavar="LIST", help="cpu, cuda or cpu,cuda.  [default: what there is]"),
            click.option("--trace", metavar="LIST", help="As nsys' own --trace.  [default: cuda,nvtx,osrt]"),
            click.option("--cuda-graph-trace", type=click.Choice(["graph", "node"]),
                         help="graph: one row per replay of a CUDA graph, at next to no cost, and no kernels in it. "
                         "node: each kernel, at a cost that can make decode look idle.  "
                         "[default: nsys' own, which is graph where the driver can]"),
            click.option("--nsys-option", multiple=True, metavar="OPT",
                         help="Passed on to nsys: --nsys-option=--gpu-metrics-device=all. Repeatable."),
            click.option("--control", type=click.Choice(["start", "stop", "status"]),
                         help="Begin or end a window of a capture that runs, or show its state."),
            click.option("--session", type=count, metavar="PID", help="Which one, where several run."),
            click.option("--attach", metavar="URL",
                         help="Record vLLM or SGLang, started with profiling enabled, through its own endpoints."),
            click.option("--engine", type=click.Choice(["auto", "vllm", "sglang"]), default="auto", show_default=True,
                         help="What answers there."),
            click.option("--profile-dir", type=folder, metavar="DIR",
                         help="Where that server writes, if it cannot be found out."),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


@click.command(
    cls=_Grouped,
    context_settings={"allow_interspersed_args": False, "max_content_width": _WIDTH},
    options_metavar="[OPTIONS]",
)
@_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND ...]")
@click.pass_context
def collect(
    context: click.Context,
    /,
    *,
    output: Path,
    force: bool,
    keep_raw: Path | None,
    keep_command: bool,
    delay: float | None,
    duration: float | None,
    steps: int | None,
    warmup: int,
    step_module: tuple[str, ...],
    paused: bool,
    max_size: int,
    timeout: float,
    profiler: str,
    shapes: bool,
    stacks: bool,
    memory: bool,
    activities: str | None,
    trace: str | None,
    cuda_graph_trace: Literal["graph", "node"] | None,
    nsys_option: tuple[str, ...],
    control: str | None,
    session: int | None,
    attach: str | None,
    engine: str,
    profile_dir: Path | None,
    command: tuple[str, ...],
) -> None:
    """Run a program under torch.profiler or Nsight Systems and write its trace.

    \b
    Examples:
      tracekit collect -o trace.parquet -- python serve.py --batch 32
      tracekit collect --delay 60 --duration 5 -- vllm serve MODEL      # under load, not the start-up
      tracekit collect --paused -- vllm serve MODEL                     # and from another terminal:
      tracekit collect --control start; sleep 5; tracekit collect --control stop
      tracekit collect --attach http://localhost:8000 --duration 5      # a server that runs
      tracekit collect --profiler nsys --steps 50 -- python serve.py    # with Nsight Systems

    torch.profiler records every Python process of the program that runs torch, Nsight Systems every process but forked
    ones; both all threads. The program is run unchanged, and Ctrl-C ends it and keeps the trace (a second one gives
    up). Without options of time the whole run is recorded. The exit code is the program's, or 5 if it was 0 and
    nothing, or not all, was recorded.
    """
    given = {
        name for name in context.params if (source := context.get_parameter_source(name)) and source.name != "DEFAULT"
    } - {"command"}
    _check_mode(given, command, control, attach)
    from tracekit import cli_record

    if control is not None:
        cli_record.send(control, session, timeout)
    elif attach is not None:
        cli_record.attach_to(
            attach,
            cli_record.Destination(output, force, keep_raw),
            engine=engine,
            duration=duration,
            steps=steps,
            profile_dir=profile_dir,
            timeout=timeout,
        )
    else:
        _check_window(delay=delay, steps=steps, warmup=warmup, paused=paused, memory=memory)
        recorder: cli_record.Recorder | cli_record.NsysSettings
        if _is_for_nsys(profiler, given):
            recorder = cli_record.NsysSettings(
                trace=None if trace is None else _words(trace),
                cuda_graph_trace=cuda_graph_trace,
                options=nsys_option,
                step_modules=_functions(step_module),
            )
        else:
            recorder = cli_record.Recorder(
                shapes=shapes,
                stacks=stacks,
                memory=memory,
                activities=_activities(activities),
                max_bytes=max_size or None,
                step_modules=_functions(step_module),
            )
        _check_cupti(activities, Path(command[0]).name)
        cli_record.run(
            command,
            cli_record.Destination(output, force, keep_raw),
            cli_record.Plan(delay, duration, steps, warmup, paused, timeout),
            recorder,
            keep_command=keep_command,
        )


def _check_mode(given: set[str], command: Sequence[str], control: str | None, attach: str | None) -> None:
    """Refuse options of another mode than the one asked for."""
    if control is not None and attach is not None:
        raise UsageError("--control is for a capture that runs here, --attach for a server's own profiler; give one")
    if control is not None:
        if command:
            raise UsageError("--control talks to a capture that runs already; leave the command away")
        _refuse(given - _WITH_CONTROL, "--control, but with the command that began the capture")
    elif attach is not None:
        if command:
            raise UsageError("--attach records a server that runs already; leave the command away, or --attach")
        _refuse(given & _WHEN, "--attach, whose window begins at once: wait, and attach then")
        _refuse(given - _WITH_ATTACH, "--attach: there the server's own settings say what is recorded")
    elif not command:
        raise UsageError(
            "no command given: tracekit collect [options] -- python serve.py. For a server that runs, --attach URL; "
            "for a capture that runs, --control start, stop or status"
        )
    else:
        _refuse(given & {"session"}, "a command, but with --control")
        _refuse(given & {"engine", "profile_dir"}, "a command, but with --attach")


def _refuse(names: set[str], why: str) -> None:
    if names:
        raise UsageError(f"{_listed(names)} cannot go with {why}")


def _listed(names: set[str]) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _is_for_nsys(profiler: str, given: set[str]) -> bool:
    """Whether Nsight Systems is to record; refuses options of the other profiler."""
    of_torch, of_nsys = given & _OF_TORCH, given & _OF_NSYS
    if profiler == "torch":
        _refuse(of_nsys, "--profiler torch, but with --profiler nsys")
        return False
    if profiler == "auto" and not of_nsys:
        return False
    what = "--profiler nsys" if profiler == "nsys" else f"{_listed(of_nsys)}, which has Nsight Systems record"
    _refuse(of_torch, f"{what}, but with --profiler torch")
    return True


def _check_cupti(activities: str | None, program: str) -> None:
    """Refuse to be the second user of CUPTI; who records no device is none."""
    from tracekit.collectors._program import owner_of_cupti

    if program in ("nsys", "ncu") and activities != "cpu":
        raise UsageError(
            f"the command is {program}, another profiler of the GPU, and CUPTI has one owner: give the program itself "
            "(--profiler nsys records it with Nsight Systems), or record the host alone with --profiler torch "
            "--activities cpu"
        )
    owner = owner_of_cupti(os.environ)
    if owner is not None and activities != "cpu":
        raise UsageError(
            f"this runs inside another profiler of the GPU ({owner} is set), and CUPTI has one owner: run tracekit "
            "outside of nsys and ncu, or record the host alone with --profiler torch --activities cpu"
        )


def _check_window(*, delay: float | None, steps: int | None, warmup: int, paused: bool, memory: bool) -> None:
    if paused and delay is not None:
        raise UsageError("--paused begins by hand, --delay by the clock; give one")
    by_step = steps is not None or warmup > 0
    if memory and (paused or delay is not None) and not by_step:
        later = "--paused" if paused else "--delay"
        raise UsageError(
            f"--memory records one thread, and with {later} nothing says which: add --steps N, to begin on the thread "
            f"that runs the steps, or leave {later} away"
        )


def _activities(text: str | None) -> tuple[Any, ...] | None:
    if text is None:
        return None
    names = _words(text)
    unknown = [name for name in names if name not in ("cpu", "cuda")]
    if unknown:
        raise UsageError(f"--activities: no activity {unknown[0]!r}; there are cpu and cuda (cpu,cuda for both)")
    return names


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))


def _functions(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if _FUNCTION.fullmatch(name) is None:
            raise UsageError(f"--step-module {name}: write it as package.module:Class.method or module:function")
    return tuple(dict.fromkeys(names))
