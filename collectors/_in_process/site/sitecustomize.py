"""Start-up of each Python process of a capture: the program's own sitecustomize, and a hook on `import torch`.

`tracekit collect` puts this folder first on PYTHONPATH. It runs before the program, in whatever interpreter (3.8 or
later) and environment the program has, so it uses builtins and what the interpreter has loaded anyway: what a program
sets up ahead of `import torch` (CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS) works as ever, and a process that never imports
torch pays a file and a finder. All else is in the package above, loaded once torch is there.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "_tracekit_capture"
# Modules whose functions are marked as steps (engine_hooks.py): known before torch is, as they may import it.
ENGINES = ("vllm.v1.worker.gpu_worker", "transformers.generation.utils", "sglang.srt.model_executor.model_runner")


class Capture:
    """What this process has imported so far of the modules watched for, and the package once torch is imported."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.package: Any = None
        self.imported: dict[str, ModuleType] = {}

    def on_import(self, name: str, module: ModuleType) -> None:
        """Called when one of the modules has run. What goes wrong here is told to the collector, not to the program."""
        try:
            if name != "torch":
                self.imported[name] = module
                if self.package is not None:
                    self.package.module_imported(name, module)
            elif self.package is None:
                self.package = load_package()
                self.package.begin(module, self.folder, self.imported)
        except Exception:
            self.complain()

    def at_exit(self) -> None:
        """The last exit handler of all, as it is registered first: threads are joined, handlers have run."""
        if self.package is not None:
            self.package.at_exit()

    def seen(self) -> None:
        """Leave word that Python started here."""
        with open(os.path.join(self.folder, "seen", str(os.getpid())), "a", encoding="utf-8"):
            pass

    def complain(self) -> None:
        """Write what went wrong to where the collector looks."""
        import traceback

        try:
            with open(os.path.join(self.folder, "seen", str(os.getpid())), "a", encoding="utf-8") as file:
                file.write(traceback.format_exc())
        except OSError:  # the capture is over
            pass


class ImportHook:
    """A finder on sys.meta_path that calls `then(name, module)` once one of the named modules has run."""

    def __init__(self, names: Sequence[str], then: Callable[[str, ModuleType], None]) -> None:
        self.names = frozenset(names)
        self.then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec that the other finders give, with a loader that calls back."""
        if name not in self.names:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                self.wrap(name, spec.loader)
                return spec
        return None

    def wrap(self, name: str, loader: Any) -> None:
        """Have the loader call back. One that cannot be changed (a loader in C) is left alone."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def execute_then_call(module: ModuleType) -> None:
            if module.__name__ != name:  # a zip file's loader serves all its modules
                execute(module)
                return
            try:
                del loader.exec_module
            except AttributeError:  # wrapped a second time by a search that loaded nothing
                pass
            execute(module)
            self.then(name, module)

        try:
            loader.exec_module = execute_then_call
        except AttributeError:
            pass


def load_package() -> Any:
    """The rest, under a name of its own: tracekit need not be in the program's environment, and may be in it."""
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(HERE)
    spec: Any = spec_from_file_location(
        PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package = module_from_spec(spec)
    sys.modules[PACKAGE] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules[PACKAGE]
        raise
    return package


def modules_of(folder: str) -> list[str]:
    """Names of the modules to watch for."""
    with open(os.path.join(folder, "modules"), encoding="utf-8") as file:
        return ["torch", *ENGINES, *file.read().split()]


def start(folder: str) -> None:
    """Set up the capture in this process; nothing at all if it is over."""
    try:
        names = modules_of(folder)
        capture = Capture(folder)
        capture.seen()
    except OSError:
        return
    atexit.register(capture.at_exit)
    finders: Any = sys.meta_path  # whose declared type asks for methods that are optional
    finders.insert(0, ImportHook(names, capture.on_import))
    for name in names:  # by a .pth file
        if name in sys.modules:
            capture.on_import(name, sys.modules[name])


def chain() -> None:
    """Run the sitecustomize that this one hides, as if it had been found first. Its errors are its own."""
    sys.path[:] = [entry for entry in sys.path if entry != HERE]
    own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)  # the importer looks this one up when it is done


if __name__ == "sitecustomize":
    if "TRACEKIT_CAPTURE" in os.environ:
        start(os.environ["TRACEKIT_CAPTURE"])
    chain()
