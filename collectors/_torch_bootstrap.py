"""Run a Python program as the interpreter itself would, with torch.profiler around the whole of it.

Executed by the interpreter being profiled, which need not have tracekit: the standard library and torch only, and
nothing newer than Python 3.8. `torch_profiler.START` compiles it under the name <tracekit>, so that recorded stacks do
not say where tracekit is installed, and calls `main`. The first argument is a JSON object, the others are the
program's:

    {"kind": "script" | "module" | "code", "target": path, name or code, "stacks": bool, "shapes": bool,
     "trace": file to write, "status": file that says how it went}

The profiler starts when the program has imported torch, not before: what a program sets up ahead of that import
(CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS) then works as ever. It stops in an exit handler registered before any of the
program's own, hence run after all of those and after its threads have been joined.
"""

# os.path computes what the interpreter computes, and os.replace needs no import of pathlib into the program:
# ruff: noqa: PTH100, PTH105, PTH109, PTH120, PTH123

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import linecache
import os
import pkgutil
import re
import runpy
import signal
import sys
import tempfile
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# The profiler's own bookkeeping on stderr, and what a CUDA build says of a machine without a GPU. Other warnings and
# errors are let through.
KINETO_CHATTER = re.compile(rb"(USDT|STAGE|INFO):|ERROR:.*gpuGetDeviceCount failed")
FATAL_SIGNALS = ("SIGTERM", "SIGHUP")
OWN_FILE = "<tracekit>"


class Recorder:
    """The profiler of this process and its state, told to the parent through a small file.

    States: waiting (torch not imported yet), recording, exported, displaced (the program started a profiler of its
    own, and the trace ends there), failed, no_torch.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.trace: str = settings["trace"]
        self.status: str = settings["status"]
        self.stacks: bool = settings["stacks"]
        self.shapes: bool = settings["shapes"]
        self.owner = os.getpid()
        self.state = ""
        self.facts: dict[str, Any] = {"python": sys.version.split()[0]}
        self.profiler: Any = None
        self.pending_signal = 0

    def tell(self, state: str, **facts: Any) -> None:
        """Write the state where the parent finds it, whatever kills this process next."""
        self.state = state
        self.facts.update(facts)
        with open(self.status + ".new", "w", encoding="utf-8") as file:
            json.dump({"state": state, **self.facts}, file)
        os.replace(self.status + ".new", self.status)

    def start(self, torch: Any) -> None:
        """Begin to record. Called by the import of torch; a failure is told, the program goes on."""
        if os.getpid() != self.owner or self.state != "waiting":
            return
        try:
            with filtered_stderr():
                activities = torch.profiler.supported_activities()
                self.profiler = torch.profiler.profile(
                    activities=activities,
                    record_shapes=self.shapes,
                    with_stack=self.stacks,
                    experimental_config=self.config(torch),
                )
                self.profiler.start()
            self.give_way(torch)
        except Exception as error:
            self.tell("failed", reason=f"the profiler did not start: {type(error).__name__}: {error}")
            return
        names = sorted(str(activity).rsplit(".", 1)[-1] for activity in activities)
        self.tell("recording", torch=str(torch.__version__), activities=names)

    def config(self, torch: Any) -> Any:
        """All threads, not only the importing one; no Python object per event at stop, where stacks allow that.

        Older versions know neither and get what they know.
        """
        wishes = {"profile_all_threads": True, "trace_only": not self.stacks}
        for _ in range(len(wishes) + 1):
            try:
                config = torch._C._profiler._ExperimentalConfig(**wishes)
            except TypeError:
                wishes.popitem()
                continue
            self.facts["all_threads"] = "profile_all_threads" in wishes
            return config
        return None

    def give_way(self, torch: Any) -> None:
        """Finish first when the program starts a profiler of its own: one at a time, a second crashes both."""
        backend = torch.autograd.profiler
        prepare = getattr(backend, "_prepare_profiler", None)
        if prepare is None:
            return

        def finish_then_prepare(*arguments: Any, **keywords: Any) -> Any:
            backend._prepare_profiler = prepare
            self.finish("displaced")
            return prepare(*arguments, **keywords)

        backend._prepare_profiler = finish_then_prepare

    def finish(self, state: str = "exported") -> None:
        """Stop and write the trace, once, in the recording process only. Signals wait meanwhile."""
        if os.getpid() != self.owner or self.state != "recording":
            return
        self.state = "exporting"
        with interrupts_ignored():
            try:
                with filtered_stderr():
                    self.profiler.stop()
                    self.profiler.export_chrome_trace(self.trace)
                self.tell(state)
            except Exception as error:
                self.tell("failed", reason=f"the export failed: {type(error).__name__}: {error}")
            self.profiler = None
        if self.pending_signal:
            die_of(self.pending_signal)

    def on_fatal_signal(self, number: int, _frame: object) -> None:
        """Write the trace, then die of the signal as the program would have."""
        if self.state == "exporting" and os.getpid() == self.owner:
            self.pending_signal = number
            return
        self.finish()
        die_of(number)


class TorchImport:
    """A finder on sys.meta_path that has `then(torch)` called once torch is imported."""

    def __init__(self, then: Callable[[Any], None]) -> None:
        self.then = then
        self.searching = False

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec the other finders give, with a loader that calls back."""
        if name != "torch" or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_then_call(module: types.ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self.then(module)

        loader.exec_module = execute_then_call
        return spec


def die_of(number: int) -> None:
    """End this process by a signal, unhandled."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Keep a second Ctrl-C from cutting the export short. Handlers belong to the main thread."""
    try:
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous if previous is not None else signal.SIG_DFL)


@contextlib.contextmanager
def filtered_stderr() -> Iterator[None]:
    """Hold back what the profiler's C++ side says on stderr, and let through all but its chatter."""
    try:
        saved = os.dup(2)
    except OSError:  # the program closed it
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held:
                if not KINETO_CHATTER.match(line):
                    os.write(2, line)


def hide_own_frames() -> None:
    """Print an uncaught exception from the program's first frame on, by whatever hook the program has set."""
    shown = sys.excepthook

    def is_own(trace: types.TracebackType | None) -> bool:
        return trace is not None and trace.tb_frame.f_code.co_filename == OWN_FILE

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        if trace is not None and is_own(trace.tb_next):  # the first frame is the -c that called us
            trace = trace.tb_next
            while trace is not None and is_own(trace):
                trace = trace.tb_next
        shown(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


def is_container(path: str) -> bool:
    """Whether a path is a folder or a zip file, to be run by its __main__.py."""
    return pkgutil.get_importer(path) is not None


def set_path(kind: str, target: str) -> None:
    """Make sys.path[0] what the interpreter makes it.

    The script's folder, the folder or zip file itself, the working folder for -m, nothing for -c.
    """
    isolated = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if kind == "script" and is_container(target):
        sys.path[: 0 if isolated else 1] = [os.path.abspath(target)]
    elif isolated:
        return
    elif kind == "script":
        sys.path[0] = os.path.dirname(os.path.realpath(target))
    else:
        sys.path[0] = os.getcwd() if kind == "module" else ""


def run_program(kind: str, target: str, arguments: Sequence[str]) -> None:
    """Run a script, module or code string with the argv and the __main__ that the interpreter would give it."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [{"script": target, "module": "-m", "code": "-c"}[kind], *arguments]
    run_module: Any = runpy._run_module_as_main  # type: ignore[attr-defined]  # what `python -m` itself calls
    if kind == "module":
        run_module(target)
    elif kind == "code":
        code = compile(target, "<string>", "exec", dont_inherit=True)
        show_in_tracebacks(code, target)
        exec(code, main.__dict__)
    elif is_container(target):
        run_module("__main__", False)
    else:
        path = os.path.abspath(target)
        main.__dict__.update(__file__=path, __cached__=None)
        main.__dict__["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
        with io.open_code(path) as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def show_in_tracebacks(code: types.CodeType, source: str) -> None:
    """Replace what Python 3.13 and later print as the lines of "<string>": those of the -c that started us."""
    register: Any = getattr(linecache, "_register_code", None)
    if register is not None:
        register(code if hasattr(linecache, "_interactive_cache") else "<string>", source, "<string>")


def correct_orig_argv(kind: str, target: str) -> None:
    """Leave no trace of this script for programs that start themselves anew from sys.orig_argv."""
    original = getattr(sys, "orig_argv", None)
    if original is not None:
        start = len(original) - len(sys.argv) - 1
        own = {"script": [target], "module": ["-m", target], "code": ["-c", target]}[kind]
        original[start : start + 3] = own  # in place of -c, its code and the JSON object


def prepare_processes() -> None:
    """Two things that take the C library, where it is Linux's.

    Should tracekit be killed, send SIGTERM: no server stays behind on the GPUs. And let forked children end: Kineto's
    destructor waits in them for ever for a thread that fork did not copy, so a child's exit() leaves by _exit() before
    it comes to that, with the same status.
    """
    if sys.platform == "linux":
        with contextlib.suppress(Exception):
            import ctypes

            library = ctypes.CDLL(None)
            library.prctl(1, int(signal.SIGTERM), 0, 0, 0)
            leave, flush = library._exit, library.fcloseall

            def in_child() -> None:
                library.on_exit(leave, None)  # handlers run last in, first out
                library.on_exit(flush, None)

            os.register_at_fork(after_in_child=in_child)


def main() -> None:
    """Set up the recording, then become the program."""
    settings = json.loads(sys.argv[1])
    kind, target, arguments = settings["kind"], settings["target"], sys.argv[2:]
    recorder = Recorder(settings)
    prepare_processes()
    correct_orig_argv(kind, target)
    set_path(kind, target)
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        recorder.tell("no_torch")
        sys.exit(1)
    recorder.tell("waiting")
    atexit.register(recorder.finish)
    for name in FATAL_SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, recorder.on_fatal_signal)
    if "torch" in sys.modules:  # by a .pth file or sitecustomize
        recorder.start(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, TorchImport(recorder.start))
    try:
        run_program(kind, target, arguments)
    except SystemExit:
        raise
    except BaseException:
        hide_own_frames()
        raise
