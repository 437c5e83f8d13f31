"""Marks of `collect`: what `--step-module` names, called as programs call it, under the real profiler."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.marked_steps import steps

torch: Any = pytest.importorskip("torch", reason="the marks are around calls of torch modules")

from tracekit.collectors._in_process.step_hooks import hook_main, hooks_for, mark_calls  # noqa: E402
from tracekit.collectors._in_process.watch import watch  # noqa: E402

IDS = torch.ones(4, 7, dtype=torch.long)
PREFILL = ("prefill", 4, 28, None, None)
DECODE = ("decode", None, None, 4, 4)
UNKNOWN = ("unknown", None, None, None, None)


def module_with(**members: object) -> ModuleType:
    module = ModuleType("served")
    vars(module).update(members)
    return module


class Model(torch.nn.Module):
    """Reads its input by the name that most have."""

    def forward(self, positions: Any, input_ids: Any = None, scale: float = 1.0) -> Any:
        """Doc."""
        return None if input_ids is None else input_ids * scale


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Model, "forward", Model.forward)  # to be put back
    hooks_for(["served:Model.forward"])["served"](module_with(Model=Model))
    return Model()


# ---- phase and batch -------------------------------------------------------------------------------------------------


def test_phase_is_of_the_length_and_batch_of_the_input(model: Any, tmp_path: Path) -> None:
    def program() -> None:
        model(None, IDS)
        model(None, IDS[:, :1])
        model(torch.ones(9), input_ids=IDS[:, :1], scale=2.0)
        model(None, torch.ones(4, 7, 16))
        model(None, torch.ones(4, 1, 16))

    assert steps(program, tmp_path) == [PREFILL, DECODE, DECODE, PREFILL, DECODE]


def test_any_other_input_is_a_step_of_unknown_phase(model: Any, tmp_path: Path) -> None:
    inputs = [None, IDS[0], IDS.float(), IDS.bool(), torch.ones(4, 0, dtype=torch.long), torch.ones(2, 3, 4, 5)]

    def program() -> None:
        for one in inputs:
            model(None, one)

    assert steps(program, tmp_path) == [UNKNOWN] * 6


@pytest.mark.parametrize(
    "call",
    [
        lambda function: function(IDS, torch.ones(2, 1, 8)),  # neither name is known: the first tensor
        lambda function: function("text", torch.ones(4, 7, 16)),
        lambda function: function(torch.ones(2, 1, 8), b=0, hidden_states=torch.ones(4, 7, 16)),
    ],
    ids=["first", "only", "by name"],
)
def test_input_is_found_among_the_arguments(call: Callable[[Any], object], tmp_path: Path) -> None:
    def function(a: object, b: object, **others: object) -> None:
        pass

    module = module_with(function=function)
    hooks_for(["served:function"])["served"](module)
    assert steps(lambda: call(module.function), tmp_path) == [PREFILL]


# ---- what can be named -----------------------------------------------------------------------------------------------


class Engine:
    """Methods of all kinds."""

    def own(self, x: Any) -> str:
        """Doc."""
        return f"own {len(x)}"

    @staticmethod
    def static(x: Any) -> str:
        return f"static {len(x)}"

    @classmethod
    def of_class(cls, x: Any) -> str:
        return f"{cls.__name__} {len(x)}"

    async def awaited(self, x: Any) -> str:
        await asyncio.sleep(0)
        return f"awaited {len(x)}"

    class Inner:
        def run(self, x: Any) -> str:
            return f"inner {len(x)}"

    def tokens(self) -> Iterator[int]:
        yield 1

    size = 3


class Derived(Engine):
    """Inherits what is named."""


def test_methods_of_all_kinds(tmp_path: Path) -> None:
    kind: Any = type(
        "Engine", (Engine,), {name: vars(Engine)[name] for name in ("own", "static", "of_class", "awaited")}
    )
    inner = type("Inner", (Engine.Inner,), {})
    kind.Inner = inner
    paths = ["Engine.own", "Engine.static", "Engine.of_class", "Engine.awaited", "Engine.Inner.run", "Derived.own"]
    derived = type("Derived", (Engine,), {})
    hooks_for([f"served:{path}" for path in paths])["served"](module_with(Engine=kind, Derived=derived))
    engine: Any = kind()
    awaited: Callable[[Any], Awaitable[str]] = engine.awaited
    said: list[str] = []

    async def wait() -> None:
        said.append(await awaited(IDS))

    def program() -> None:
        said.extend([engine.own(IDS), kind.static(IDS), kind.of_class(IDS), inner().run(IDS), derived().own(IDS)])
        asyncio.run(wait())

    assert steps(program, tmp_path) == [PREFILL] * 6
    assert said == ["own 4", "static 4", "Engine 4", "inner 4", "own 4", "awaited 4"]
    assert (engine.own.__doc__, str(inspect.signature(kind.own))) == ("Doc.", "(self, x: 'Any') -> 'str'")
    assert inspect.iscoroutinefunction(kind.awaited)
    assert not hasattr(Engine.own, "_tracekit_marks")


def test_exceptions_pass_and_end_the_step(tmp_path: Path) -> None:
    def fail(x: Any) -> None:
        raise KeyError("inner")

    module = module_with(fail=fail)
    mark_calls(module, "fail", "served:fail")
    mark_calls(module, "fail", "served:fail")  # named twice: marked once

    def program() -> None:
        for one in (IDS, IDS[:, :1]):
            with pytest.raises(KeyError, match="inner"):
                module.fail(one)

    assert steps(program, tmp_path) == [PREFILL, DECODE]
    assert watch.thread.depth == 0


def test_what_is_not_there_is_told_and_the_rest_marked(tmp_path: Path) -> None:
    targets = ["Gone.forward", "Engine.gone", "Engine.size", "Engine", "Engine.tokens", "function"]
    module = module_with(Engine=Engine, function=lambda x: None)
    with pytest.raises(LookupError) as caught:
        hooks_for([f"served:{target}" for target in targets])["served"](module)
    assert caught.value.args[0].split("; --step-module: ") == [
        "--step-module: served has no Gone",
        "served:Engine.gone: Engine has no gone",
        "served:Engine.size is no function; name a function, or a method such as Class.forward",
        "served:Engine is no function; name a function, or a method such as Class.forward",
        "served:Engine.tokens is a generator function: it would be one step from its first value to its last; "
        "name what it calls for each step",
    ]
    assert steps(lambda: module.function(IDS), tmp_path) == [PREFILL]


def test_every_thread_has_its_steps(model: Any) -> None:
    def serve() -> None:
        for _ in range(50):
            model(None, IDS)

    watch.times.clear()
    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    name = "tracekit.step[prefill prefill_requests=4 prefill_tokens=28]"
    assert {key: len(durations) for key, durations in watch.times.items()} == {(name, False): 200}


# ---- compiled --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["torch.compile(model)", "model.compile()", "inside"])
def test_compiled_graph_is_whole_and_marked_around(model: Any, way: str) -> None:
    torch._dynamo.reset()
    graphs: list[object] = []

    def backend(graph: Any, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    called = model
    if way == "torch.compile(model)":
        called = torch.compile(model, backend=backend, fullgraph=True)
    elif way == "model.compile()":
        model.compile(backend=backend, fullgraph=True)
    else:
        called = torch.compile(lambda *inputs: model(*inputs) + 1, backend=backend, fullgraph=True)
    watch.times.clear()
    for _ in range(3):
        assert called(None, IDS).shape == (4, 7)
    assert len(graphs) == 1
    assert sum(map(len, watch.times.values())) == (0 if way == "inside" else 3)


def test_model_that_is_exported(model: Any) -> None:
    program = torch.export.export(model, (None, IDS), strict=True)
    assert [node.op for node in program.graph.nodes].count("call_function") == 1


# ---- the script ------------------------------------------------------------------------------------------------------

SCRIPT = """
import builtins
from tracekit.collectors._in_process.step_hooks import hook_main
from tracekit.collectors._in_process.watch import watch
import torch

class Early:
    def run(self, x): return x

plain = builtins.__build_class__
hook_main(TARGETS, print)

class Model(torch.nn.Module):
    def forward(self, input_ids): return input_ids

def main():
    class Local:
        def run(self, x): return x
    Early().run(torch.ones(4, 1, 8))
    Model()(torch.ones(4, 7, dtype=torch.long))
    Local().run(torch.ones(2, 1, 8))
    print(*watch.times, builtins.__build_class__ is plain)

main()
"""
SEEN = """\
('tracekit.step[decode decode_requests=4 decode_tokens=4]', False) \
('tracekit.step[prefill prefill_requests=4 prefill_tokens=28]', False) \
('tracekit.step[decode decode_requests=2 decode_tokens=2]', False) True
"""


@pytest.mark.parametrize(
    ("how", "module"),
    [(["serve.py"], "__main__"), (["serve.py"], "serve"), (["-m", "pkg.serve"], "pkg.serve")],
    ids=["main", "script", "module"],
)
def test_classes_of_the_script_are_marked_when_they_are_made(how: list[str], module: str, tmp_path: Path) -> None:
    targets = [f"{module}:{path}" for path in ("Early.run", "Model.forward", "Local.run")]
    (tmp_path / "pkg").mkdir()
    for path in ("serve.py", "pkg/serve.py"):
        (tmp_path / path).write_text(SCRIPT.replace("TARGETS", repr(targets)))
    done = subprocess.run(
        [sys.executable, "-W", "error", *how], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (SEEN, "", 0)


def test_function_of_the_script_is_refused() -> None:
    said: list[str] = []
    hook_main(["__main__:step", "served:step"], said.append)
    assert said == [
        "--step-module: step is a function of the script itself, whose calls nobody can catch; name a method of a "
        "class, move the function to a module of its own, or write `with tracekit.step(...):`"
    ]


def test_class_of_the_script_without_the_method_is_told_when_it_is_made() -> None:
    said: list[str] = []
    hook_main(["__main__:Late.forward"], said.append)
    wrapper = builtins.__build_class__
    exec("class Late: pass", {"__name__": "__main__"})
    assert said == ["--step-module: __main__:Late.forward: Late has no forward"]
    assert builtins.__build_class__ is not wrapper
