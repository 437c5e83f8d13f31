"""Marks the steps of Transformers' `generate`: from one forward of the model to the next, so with the sampling.

Where a step begins is where `prepare_inputs_for_generation` has made the input of a forward. All ways to generate call
it, outside of what is compiled; a hook on the model's forward would be inside, and would split or recompile the graph.
A model that drafts for another runs `generate` inside the other's: its forwards are steps of their own, which end the
other's step.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from .marks import Mark, open_mark, step_name

if TYPE_CHECKING:
    from types import ModuleType

_INPUTS = ("decoder_input_ids", "input_ids", "inputs_embeds", "decoder_inputs_embeds")


class _Generation:
    """One call of generate. assisted: it verifies drafts. drafts: it makes them. prompt: it reads the prompt."""

    __slots__ = ("assisted", "begun", "drafts", "model", "prompt")

    def __init__(self, model: Any, drafts: bool) -> None:
        self.model = model
        self.drafts = drafts
        self.assisted = False
        self.begun = False
        self.prompt = False


class _Thread(threading.local):
    """What this thread generates, the innermost last, and its open step."""

    def __init__(self) -> None:
        self.generations: List[_Generation] = []
        self.mark: Optional[Mark] = None
        self.preparing = False

    def close(self) -> None:
        mark, self.mark = self.mark, None
        if mark is not None:
            mark.close()


_HERE = _Thread()


def hook_transformers(module: ModuleType) -> None:
    """transformers.generation.utils: mark what its GenerationMixin generates."""
    mixin = getattr(module, "GenerationMixin", None)
    if mixin is None or not hasattr(mixin, "generate"):
        return
    generate = mixin.generate
    is_compiling = getattr(sys.modules["torch"].compiler, "is_compiling", bool)

    @functools.wraps(generate)
    def marked_generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return generate(self, *args, **kwargs)
        _mark_preparation(type(self))
        config = args[1] if len(args) > 1 else kwargs.get("generation_config")
        _HERE.generations.append(_Generation(self, bool(getattr(config, "is_assistant", False))))
        try:
            return generate(self, *args, **kwargs)
        finally:
            _HERE.close()
            _HERE.generations.pop()

    mixin.generate = marked_generate
    _note(mixin, "_get_candidate_generator", "assisted", lasts=True)  # asked for by assisted generation only
    _note(mixin, "_prefill", "prompt", lasts=False)  # from Transformers 5 on


def _note(mixin: Any, name: str, flag: str, *, lasts: bool) -> None:
    """Have a method raise a flag of the innermost generation, for good or for as long as it runs."""
    method = getattr(mixin, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _HERE.generations:
            return method(self, *args, **kwargs)
        generation = _HERE.generations[-1]
        setattr(generation, flag, True)
        try:
            return method(self, *args, **kwargs)
        finally:
            setattr(generation, flag, lasts)

    setattr(mixin, name, noting)


def _mark_preparation(model: type) -> None:
    """Have the class whose prepare_inputs_for_generation this model uses tell of each call."""
    name = "prepare_inputs_for_generation"
    owner: Any = next((kind for kind in model.__mro__ if name in vars(kind)), None)
    prepare = None if owner is None else vars(owner)[name]
    if not callable(prepare) or hasattr(prepare, "_tracekit_marks"):
        return

    @functools.wraps(prepare)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = _HERE
        # Called by a user's own loop, by another model's, or by the method of a subclass, which has still to return.
        if not here.generations or here.preparing or here.generations[-1].model is not self:
            return prepare(self, *args, **kwargs)
        here.preparing = True
        try:
            inputs = prepare(self, *args, **kwargs)
        finally:
            here.preparing = False
        here.close()
        here.mark = open_mark(_name(here.generations[-1], inputs))
        return inputs

    vars(marked)["_tracekit_marks"] = prepare
    setattr(owner, name, marked)


def _name(generation: _Generation, inputs: Any) -> str:
    """Name of the step whose forward gets these inputs."""
    first, generation.begun = not generation.begun, True
    size = _size(inputs)
    counts = None if size is None else (size[0], size[0] * size[1])
    length = None if size is None else size[1]
    if generation.drafts:
        return step_name("draft", decode=counts)
    if first or generation.prompt:
        return step_name("prefill", prefill=counts)
    if length is None:
        return step_name("unknown")
    if length > 1 and generation.assisted:
        return step_name("verify", decode=counts)
    if length > 1 and inputs.get("use_cache", True):  # the prompt comes in chunks
        return step_name("prefill", prefill=counts)
    return step_name("decode", decode=counts)


def _size(inputs: Any) -> Optional[Tuple[int, int]]:
    """Rows and length of the input of a forward; beams are rows."""
    if not isinstance(inputs, dict):
        return None
    for name in _INPUTS:
        shape = getattr(inputs.get(name), "shape", None)
        if shape is not None:
            fits = len(shape) == (3 if name.endswith("embeds") else 2)
            return (int(shape[0]), int(shape[1])) if fits else None
    return None
