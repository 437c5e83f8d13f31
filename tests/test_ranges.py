"""`tracekit.step` and `tracekit.annotate`: both profilers get the range, whatever the program does between its ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tracekit import annotate, ranges, step
from tracekit.collectors._in_process.watch import Watch

torch = pytest.importorskip("torch", reason="half of the ranges are torch.profiler's")

ROOT = Path(__file__).resolve().parent.parent
DECODE = "tracekit.step[decode decode_requests=4 decode_tokens=4]"


# ---- the name --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (step("unknown"), "tracekit.step[unknown]"),
        (step("decode", decode_requests=4, decode_tokens=4), DECODE),
        (step("prefill", prefill_tokens=0), "tracekit.step[prefill prefill_tokens=0]"),
        (
            step("mixed", decode_tokens=4, decode_requests=3, prefill_tokens=2, prefill_requests=1),
            "tracekit.step[mixed prefill_requests=1 prefill_tokens=2 decode_requests=3 decode_tokens=4]",
        ),
    ],
)
def test_name_says_what_was_given_and_no_more(made: step, name: str) -> None:
    assert made.name == name


def test_count_may_be_numpys() -> None:
    counted: Any = np.array([3, 4]).sum()
    assert step("decode", decode_tokens=counted).name == "tracekit.step[decode decode_tokens=7]"


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="phase is 'd'; it is one of prefill, decode, mixed, verify, draft, unknown"):
        step("d")
    with pytest.raises(ValueError, match="decode_tokens is -1; a count is not negative"):
        step("decode", decode_tokens=-1)
    step("decode", decode_requests=1)  # which equals True and 1.0, and is remembered
    wrong: Any
    for wrong in (True, 1.0, "1", torch.tensor(1)):
        with pytest.raises(TypeError, match=r"decode_requests is of type \w+; a count is an int or None"):
            step("decode", decode_requests=wrong)


def test_annotation_is_no_step_by_its_name() -> None:
    assert annotate("detokenize {batch} 100 %").name == "detokenize {batch} 100 %"
    for text in (DECODE, "step[DECODE bs=1]", "ProfilerStep#1", "execute_context_1(5)_generation_0(0)"):
        with pytest.raises(ValueError, match=r"reads as the mark of a serving step: use tracekit\.step, or"):
            annotate(text)
    wrong: Any = 1
    with pytest.raises(TypeError, match="the text is of type int; a range has a str for a name"):
        annotate(wrong)


# ---- torch.profiler --------------------------------------------------------------------------------------------------


def profile(work: Callable[[], object], path: Path) -> Path:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        work()
    profiler.export_chrome_trace(str(path))
    return path


def recorded(work: Callable[[], object], folder: Path) -> list[str]:
    """Names of the ranges recorded, in order of their start."""
    with tracekit.open(profile(work, folder / "raw.json")) as trace:
        return [str(name) for name in trace.sql("SELECT name FROM annotations ORDER BY ts")["name"]]


def test_no_step_no_range(tmp_path: Path) -> None:
    assert recorded(lambda: torch.ones(2) + 1, tmp_path) == []


def test_steps_of_a_recorded_program(tmp_path: Path) -> None:
    def program() -> None:
        with tracekit.step("prefill", prefill_requests=1, prefill_tokens=32):
            torch.ones(2) + 1
        for _ in range(2):
            with tracekit.step("decode", decode_requests=4, decode_tokens=4):
                torch.ones(2) + 1

    path = profile(program, tmp_path / "raw.json")
    assert DECODE in path.read_text()
    query = "SELECT step, phase, prefill_requests, prefill_tokens, decode_requests, decode_tokens, source FROM steps"
    with tracekit.open(path) as trace:
        assert [tuple(row.values()) for row in trace.sql(f"{query} ORDER BY step").to_pylist()] == [
            (0, "prefill", 1, 32, None, None, "tracekit"),
            (1, "decode", None, None, 4, 4, "tracekit"),
            (2, "decode", None, None, 4, 4, "tracekit"),
        ]
        ops = "SELECT name, step FROM ops WHERE name IN ('aten::ones', 'aten::add') ORDER BY ts"
        assert trace.sql(ops)["step"].to_pylist() == [0, 0, 1, 1, 2, 2]


def test_nested_reused_and_decorated(tmp_path: Path) -> None:
    again = step("draft")

    @step("verify")
    def verify(depth: int) -> int:
        """Doc."""
        return depth if depth == 0 else verify(depth - 1)

    def program() -> None:
        with again, step("mixed"), again:
            pass
        with again:
            assert verify(1) == 0

    expected = ["draft", "mixed", "draft", "draft", "verify", "verify"]
    assert recorded(program, tmp_path) == [f"tracekit.step[{phase}]" for phase in expected]
    assert (verify.__name__, verify.__doc__) == ("verify", "Doc.")


def test_annotations_are_recorded_and_part_of_their_step(tmp_path: Path) -> None:
    @annotate("load weights")
    def load() -> None:
        torch.ones(2) + 1

    def program() -> None:
        load()
        with step("decode"), annotate("sample"):
            torch.ones(2) + 1

    with tracekit.open(profile(program, tmp_path / "raw.json")) as trace:
        rows = trace.sql("SELECT name, step FROM annotations ORDER BY ts").to_pylist()
        assert [tuple(row.values()) for row in rows] == [
            ("load weights", None),
            ("tracekit.step[decode]", 0),
            ("sample", 0),
        ]
        assert trace.sql("SELECT phase FROM steps")["phase"].to_pylist() == ["decode"]


def test_nothing_is_opened_while_nothing_records() -> None:
    assert ranges._open("a", True) is None
    opened: list[object] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        thread = threading.Thread(target=lambda: opened.append(ranges._open("a", True)))
        thread.start()
        thread.join()
    assert isinstance(opened[0], ranges._Range)
    assert ranges._open("a", True) is None


def test_range_may_outlive_the_recording() -> None:
    again = step("decode")
    with again:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            again.__enter__()
        with again:
            pass
        again.__exit__(None, None, None)
    assert again._open == []


def test_steps_are_counted_under_collect_but_annotations_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    capture: Any = ModuleType("_tracekit_capture")
    monkeypatch.setitem(sys.modules, "_tracekit_capture", capture)
    with step("decode"):  # as while the capture is being set up
        pass
    capture.watch = Watch()
    for _ in range(2):
        with step("decode"), annotate("sample"), step("draft"):
            pass
    counted = {key: len(durations) for key, durations in capture.watch.times.items()}
    assert counted == {("tracekit.step[decode]", False): 2}


def test_exceptions_pass_and_end_the_range(tmp_path: Path) -> None:
    @step("draft")
    def failing() -> None:
        raise KeyError("inner")

    def program() -> None:
        with pytest.raises(KeyError, match="inner"), step("decode"):
            failing()
        with step("prefill"):
            pass

    path = profile(program, tmp_path / "raw.json")
    query = "SELECT name, ts + dur < (SELECT max(ts) FROM annotations) AS over FROM annotations ORDER BY ts"
    with tracekit.open(path) as trace:
        assert [tuple(row.values()) for row in trace.sql(query).to_pylist()] == [
            ("tracekit.step[decode]", True),
            ("tracekit.step[draft]", True),
            ("tracekit.step[prefill]", False),
        ]


def test_coroutines_that_overlap(tmp_path: Path) -> None:
    @step("prefill")
    async def first(started: asyncio.Event, go: asyncio.Event) -> str:
        started.set()
        await go.wait()
        return "first"

    async def second(started: asyncio.Event, go: asyncio.Event) -> str:
        await started.wait()
        with step("decode"):
            go.set()
            await asyncio.sleep(0.01)
        return "second"

    async def both() -> tuple[str, str]:
        events = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(first(*events), second(*events))

    def program() -> None:
        assert tuple(asyncio.run(both())) == ("first", "second")

    path = profile(program, tmp_path / "raw.json")
    query = "SELECT name, rank() OVER (ORDER BY ts + dur) AS ended FROM annotations ORDER BY ts"
    with tracekit.open(path) as trace:
        assert [tuple(row.values()) for row in trace.sql(query).to_pylist()] == [
            ("tracekit.step[prefill]", 1),
            ("tracekit.step[decode]", 2),
        ]


def test_what_is_no_function_of_one_step_is_not_decorated() -> None:
    def tokens() -> Iterator[int]:
        yield 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    for generator in (tokens, stream):
        with pytest.raises(TypeError, match=r"is a generator function: .* `with tracekit\.step\(\.\.\.\):` inside it"):
            step("decode")(generator)
    with pytest.raises(TypeError, match=r"tracekit\.step decorates functions, and Path is none"):
        step("decode")(Path)


# ---- NVTX ------------------------------------------------------------------------------------------------------------


class Nvtx(ModuleType):
    """The `nvtx` package with a tool that listens: push_range and pop_range act on the calling thread's stack."""

    def __init__(self) -> None:
        super().__init__("nvtx")
        self.stacks: dict[int, list[str]] = {}
        self.log: list[str] = []

    @property
    def stack(self) -> list[str]:
        return self.stacks.setdefault(threading.get_ident(), [])

    def push_range(self, message: str) -> None:
        self.stack.append(message)
        self.log.append(f"+{message}")

    def pop_range(self) -> None:
        self.log.append(f"-{self.stack.pop()}")


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have who may record looked up again."""
    ranges._nvtx.cache_clear()
    monkeypatch.setattr(ranges, "_seers", None)


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvtx]:
    package = Nvtx()
    monkeypatch.setitem(sys.modules, "nvtx", package)
    forget(monkeypatch)
    yield package
    ranges._nvtx.cache_clear()


def short(log: list[str]) -> str:
    return " ".join(entry.replace("tracekit.step", "").strip("[]").replace("[", "").replace("]", "") for entry in log)


def test_nvtx_ranges_nest_and_end_also_by_exceptions(nvtx: Nvtx) -> None:
    with pytest.raises(KeyError), step("decode", decode_tokens=4), step("draft"):
        raise KeyError
    with step("verify"):
        pass
    assert short(nvtx.log) == "+decode decode_tokens=4 +draft -draft -decode decode_tokens=4 +verify -verify"


def test_nvtx_ranges_that_overlap_are_split(nvtx: Nvtx) -> None:
    first, second = step("prefill"), step("decode")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert short(nvtx.log) == "+prefill +decode -decode -prefill +decode -decode"


PHASES = st.sampled_from(ranges.PHASES)


@given(st.lists(PHASES | st.integers(0, 3), max_size=12))
def test_nvtx_always_shows_what_is_open(plan: list[str | int]) -> None:
    """A phase enters a new step; a number leaves the one at that position."""
    nvtx, opened = Nvtx(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "_nvtx", lambda torch: ranges._Nvtx(nvtx.push_range, nvtx.pop_range))
        patch.setattr(ranges, "_seers", None)
        for action in [*plan, *[0] * len(plan)]:
            if isinstance(action, str):
                opened.append(step(action).__enter__())
            elif action < len(opened):
                opened.pop(action).__exit__(None, None, None)
            assert nvtx.stack == [one.name for one in opened]


def test_step_left_on_another_thread_ends_at_the_next_on_its_own(nvtx: Nvtx) -> None:
    def tokens() -> Generator[int, None, None]:
        with step("prefill"):
            yield 1

    generator = tokens()
    next(generator)

    def elsewhere() -> None:
        with step("draft"):
            generator.close()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    with step("decode"):
        assert nvtx.stack == ["tracekit.step[decode]"]
    assert sorted(map(tuple, nvtx.stacks.values())) == [(), ()]
    assert short(nvtx.log) == "+prefill +draft -draft -prefill +decode -decode"


def test_one_object_in_many_threads(nvtx: Nvtx) -> None:
    shared, together = step("decode"), threading.Barrier(4)

    def serve() -> None:
        for _ in range(20):
            with shared:
                together.wait(60)
                assert nvtx.stack == ["tracekit.step[decode]"]
                together.wait(60)

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(nvtx.stacks.values()) == [[], [], [], []]
    assert len(nvtx.log) == 160


def test_torch_for_cuda_makes_the_nvtx_ranges_itself(nvtx: Nvtx, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", made.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: made.append("end"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asking may initialise CUDA"))
    with step("decode"):
        pass
    assert (made, nvtx.log) == (["tracekit.step[decode]", "end"], [])


def test_nvtx_without_a_tool_is_left_alone(nvtx: Nvtx, monkeypatch: pytest.MonkeyPatch) -> None:
    dummy = type("DummyDomain", (), {})
    monkeypatch.setattr(nvtx, "get_domain", lambda name: dummy(), raising=False)
    with step("decode"):
        pass
    assert nvtx.log == []


# ---- programs without one or the other -------------------------------------------------------------------------------


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


USE = """
import tracekit
@tracekit.annotate("all")
@tracekit.step("prefill")
def prefill():
    with tracekit.step("decode", decode_tokens=4) as step:
        return step.name
print(prefill(), [name for name in ("torch", "duckdb", "pyarrow", "pandas") if sys.modules.get(name)])
"""


@pytest.mark.parametrize("missing", [(), ("torch",), ("nvtx",), ("torch", "nvtx")], ids=" ".join)
def test_runs_with_what_is_installed_and_imports_no_torch(missing: tuple[str, ...]) -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({missing}))"
    assert run(block + USE) == "tracekit.step[decode decode_tokens=4] []\n"


def test_sees_torch_once_it_is_imported_wholly() -> None:
    code = """
import sys, types, importlib.machinery
from tracekit import ranges
torch = types.ModuleType("torch")
torch.__spec__ = importlib.machinery.ModuleSpec("torch", None)
torch.__spec__._initializing = True
sys.modules["torch"] = torch
print(ranges._torch())
torch.__spec__._initializing = False
print(ranges._torch() is torch)
"""
    assert run(code) == "None\nTrue\n"
