"""Marks each call of what `--step-module` names as a step: `pkg.mod:Class.forward`, `pkg.mod:function`.

The phase comes from the length of the input, the batch from its first dimension. Only shapes are read: reading data
would make the host wait for the device.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Sequence, Tuple

from .engine_hooks import hook_sglang, hook_vllm
from .generate_hooks import hook_transformers
from .marks import UNKNOWN, Mark, open_mark, step_name

if TYPE_CHECKING:
    from types import ModuleType

Hook = Callable[[Any], None]
Finder = Callable[[Tuple[Any, ...], Dict[str, Any]], Any]

# Known to site/sitecustomize.py, too, which watches for these imports.
_ENGINES: Dict[str, Hook] = {
    "vllm.v1.worker.gpu_worker": hook_vllm,
    "transformers.generation.utils": hook_transformers,
    "sglang.srt.model_executor.model_runner": hook_sglang,
}
_MAIN = ("__main__", "__mp_main__")  # the script; the script in a process that it has spawned
# What models call the tensor that holds the new tokens, the likeliest first.
_INPUTS = ("input_ids", "decoder_input_ids", "inputs_embeds", "hidden_states", "tokens", "ids", "x", "input", "inputs")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


def hooks_for(step_modules: Sequence[str]) -> Dict[str, Hook]:
    """What to call with which module, once it is imported: the engines', and those of the targets.

    A hook raises LookupError, with a text for the user, for targets that its module does not have.
    """
    wanted: Dict[str, List[str]] = {}
    for target in step_modules:
        module, path = _split(target)
        if module not in _MAIN:
            wanted.setdefault(module, []).append(path)
    hooks: Dict[str, Hook] = {module: functools.partial(_mark_all, paths) for module, paths in wanted.items()}
    for module, engine in _ENGINES.items():
        hooks[module] = functools.partial(_both, engine, hooks[module]) if module in hooks else engine
    return hooks


def hook_main(step_modules: Sequence[str], complain: Callable[[str], object]) -> None:
    """Mark methods of classes of the script, which is never imported: when they are made.

    They may be named by `__main__`, or by the module that the script would be. complain: told of those that cannot be
    marked, also later, when their class is made.
    """
    names = _main_names()
    paths = [path for module, path in map(_split, step_modules) if module in names]
    functions = [path for path in paths if "." not in path]
    classes = [path for path in paths if "." in path]
    if classes:
        _watch_classes(classes, complain)
    if functions:
        complain(
            f"--step-module: {', '.join(functions)} is a function of the script itself, whose calls nobody can catch; "
            "name a method of a class, move the function to a module of its own, or write `with tracekit.step(...):`"
        )


def _split(target: str) -> Tuple[str, str]:
    module, _, path = target.partition(":")
    return module, path


def _main_names() -> Tuple[str, ...]:
    """What the script may be called: with `python -m pkg.serve` also pkg.serve, with `python serve.py` also serve."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return (*_MAIN, spec.name)
    file = getattr(main, "__file__", None)
    return _MAIN if file is None else (*_MAIN, os.path.splitext(os.path.basename(file))[0])


def _both(first: Hook, second: Hook, module: ModuleType) -> None:
    first(module)
    second(module)


# ---- finding the targets ---------------------------------------------------------------------------------------------


def _mark_all(paths: List[str], module: ModuleType) -> None:
    missing = []
    for path in paths:
        try:
            _mark_path(module, path)
        except LookupError as error:
            missing.append(str(error))
    if missing:
        raise LookupError("; ".join(missing))


def _mark_path(module: ModuleType, path: str) -> None:
    owner: Any = module
    *above, name = path.split(".")
    for part in above:
        owner = getattr(owner, part, None)
        if owner is None:
            raise LookupError(f"--step-module: {module.__name__} has no {part}")
    mark_calls(owner, name, f"{module.__name__}:{path}")


def _watch_classes(paths: List[str], complain: Callable[[str], object]) -> None:
    """Mark the methods when the script makes their classes."""
    make_class: Any = builtins.__build_class__
    left = list(paths)

    def mark(kind: Any, path: str) -> None:
        left.remove(path)
        try:
            mark_calls(kind, path.rpartition(".")[2], f"__main__:{path}")
        except Exception as error:  # the program is in the middle of a class statement
            complain(str(error))

    def made(*arguments: Any, **keywords: Any) -> Any:
        kind = make_class(*arguments, **keywords)
        if left and getattr(kind, "__module__", None) in _MAIN:
            for path in [one for one in left if _is_class_of(kind, one)]:
                mark(kind, path)
            if not left and vars(builtins)["__build_class__"] is made:
                vars(builtins)["__build_class__"] = make_class
        return kind

    for path in paths:  # those made before torch was imported
        owner: Any = sys.modules.get("__main__")
        for part in path.split(".")[:-1]:
            owner = getattr(owner, part, None)
        if inspect.isclass(owner):
            mark(owner, path)
    if left:
        vars(builtins)["__build_class__"] = made


def _is_class_of(kind: Any, path: str) -> bool:
    """Whether the path is of a method of this class, which may be made inside a function."""
    name = str(getattr(kind, "__qualname__", ""))  # a metaclass may return anything
    return path.rpartition(".")[0] in (name, name.rpartition("<locals>.")[2])


def mark_calls(owner: Any, name: str, label: str) -> None:
    """Put a marked function in the place of the one that a class or a module has. LookupError where there is none."""
    try:
        found = inspect.getattr_static(owner, name)
    except AttributeError:
        raise LookupError(f"--step-module: {label}: {owner.__name__} has no {name}") from None
    wrapper = type(found) if isinstance(found, (staticmethod, classmethod)) else None
    function = found if wrapper is None else found.__func__
    if inspect.isclass(function) or not callable(function):
        raise LookupError(f"--step-module: {label} is no function; name a function, or a method such as Class.forward")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise LookupError(
            f"--step-module: {label} is a generator function: it would be one step from its first value to its last; "
            "name what it calls for each step"
        )
    if not hasattr(function, "_tracekit_marks"):
        marked = _marked(function)
        setattr(owner, name, marked if wrapper is None else wrapper(marked))


# ---- marking ---------------------------------------------------------------------------------------------------------


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    find = _finder(function)
    # In a graph that torch.compile makes there is no Python left to mark, and what opens a range would split it.
    is_compiling = getattr(sys.modules["torch"].compiler, "is_compiling", bool)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def marked(*args: Any, **kwargs: Any) -> Any:
            mark = _begin(find, args, kwargs)
            try:
                return await function(*args, **kwargs)
            finally:
                mark.close()

    else:

        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return function(*args, **kwargs)
            mark = _begin(find, args, kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                mark.close()

    vars(marked)["_tracekit_marks"] = function
    # Where what is compiled begins with this function, it is to begin with the one inside.
    _not_compiled(marked, below=False)
    _not_compiled(_begin, below=True)
    _not_compiled(Mark.close, below=True)
    return marked


def _begin(find: Finder, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Mark:
    return open_mark(name_of_input(find(args, kwargs)))


def _not_compiled(function: Any, *, below: bool) -> None:
    """Have torch.compile leave a function alone, and if below what it calls. Where torch cannot, nothing is marked."""
    try:
        frames = sys.modules["torch"]._C._dynamo.eval_frame
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.SKIP if below else action.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, strategy)
    except AttributeError:  # before torch 2.7
        pass


def _finder(function: Callable[..., Any]) -> Finder:
    """Of a function that returns the input among the arguments of a call: by its name, else the first tensor."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built in, without a signature
        parameters = []
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    places = [(names.index(name), name) for name in _INPUTS if name in names]
    others = [name for name in _INPUTS if name not in names]
    tensor = sys.modules["torch"].Tensor

    def find(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        for place, name in places:
            value = args[place] if place < len(args) else kwargs.get(name)
            if isinstance(value, tensor):
                return value
        if kwargs:
            for name in others:
                if isinstance(kwargs.get(name), tensor):
                    return kwargs[name]
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, tensor):
                return value
        return None

    return find


def name_of_input(tensor: Any) -> str:
    """[batch, length] integers or [batch, length, width] floats: a prefill, or with length 1 a decode step."""
    if tensor is None:
        return UNKNOWN
    try:
        return _name(tensor.shape, tensor.dtype)
    except Exception:  # sizes that are symbols, which have no hash: a model is being traced, a tensor is ragged
        return UNKNOWN


@functools.lru_cache(maxsize=4096)
def _name(shape: Tuple[int, ...], dtype: Any) -> str:
    integers = [getattr(sys.modules["torch"], name) for name in _INTEGERS]
    if len(shape) != 2 if dtype in integers else len(shape) != 3 or not dtype.is_floating_point:
        return UNKNOWN
    batch, length = shape[0], shape[1]
    if type(batch) is not int or type(length) is not int or not batch or not length:
        return UNKNOWN
    if length == 1:
        return step_name("decode", decode=(batch, batch))
    return step_name("prefill", prefill=(batch, batch * length))
