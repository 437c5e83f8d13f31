"""The HTML report as text: what is in it, figures agree with the results, names are data, it is small."""

from __future__ import annotations

import hashlib
import html
import json
import re
import shlex
from base64 import b64encode
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

import tracekit
from tests.browser import HOSTILE, hostile_footer, hostile_rows
from tests.command_line import ROWS, run
from tests.event_rows import footer_of, kernel, op, write_trace
from tests.simulator import Plant, Run, simulate
from tracekit import html_budget, html_idle, html_timeline
from tracekit.analysis import duration
from tracekit.budget import step_budget
from tracekit.footer import DeviceInfo
from tracekit.html_svg import Axis, Slice, bar, definitions, element, paint
from tracekit.html_views import (
    Cell,
    Column,
    Figure,
    Section,
    Table,
    TimelineView,
    interval_text,
    name_cell,
    sentence,
    shown,
    some_of,
    table,
)
from tracekit.lanes import window_of
from tracekit.plot_style import CAUSE_STYLES, STYLES, fill_of
from tracekit.report_html import render
from tracekit.trace import Trace

VOID = {"meta", "input", "br", "link"}


class Outline(HTMLParser):
    """Headings with their paragraphs, elements, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.said: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.said.append((self.open[-1], " ".join(data.split())))


def report(trace: Trace, *names: str, **options: Any) -> str:
    results = {name: trace.analyze(name) for name in names or trace.analyses()}
    return render(trace, results, **options)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    folder = tmp_path_factory.mktemp("served")
    plant = Plant(syncs_per_step=1, between_steps_ns=300_000, launch_bound_ns=20_000)
    simulate(Run(plant=plant, steps=5, streams=2), folder / "served.json")
    with tracekit.open(folder / "served.json") as trace:
        yield trace


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    rows = hostile_rows()
    path = write_trace(tmp_path_factory.mktemp("hostile") / "trace.parquet", rows, hostile_footer(rows))
    with tracekit.open(path) as trace:
        yield trace


# ---- the page --------------------------------------------------------------------------------------------------------


def test_of_nothing_each_section_says_why(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "empty.parquet", [])) as trace:
        page = Outline(report(trace, name="empty.parquet"))
    why = "othing was recorded: this trace has no events; check that the profiler was running."
    said = [words for tag, words in page.said if tag in ("h2", "p")]
    assert [one for one in said if one in TITLES] == TITLES
    assert said.count(f"N{why}") == 9
    assert f"No verdict: n{why}" in said
    assert "There is nothing to draw: no row has a time." in said
    assert "canvas" not in page.tags


TITLES = [
    "Verdict", "Plan", "Steps", "Time budget", "Timeline", "Idle time", "Time by category", "Roofline", "CUDA graphs",
    "Kernel fusion", "Communication", "Health of the trace", "Coverage", "Again, and further",
]  # fmt: skip


def test_the_head_counts_the_devices_that_worked(tmp_path: Path) -> None:
    """Not all that the machine has, which each rank lists."""
    rows = [kernel(0, 10, rank=rank, device=rank) for rank in (0, 1)]
    devices = tuple(DeviceInfo(rank, device, "NVIDIA H100") for rank in (0, 1) for device in range(8))
    with tracekit.open(write_trace(tmp_path / "t.parquet", rows, footer_of(rows, devices=devices))) as trace:
        facts = [words for tag, words in Outline(report(trace, "health", named=True)).said if tag == "span"]
    assert facts[1:3] == ["2 x NVIDIA H100", "2 ranks"]


def test_of_a_served_model_everything_is_there(served: Trace) -> None:
    page = Outline(report(served, name="served.json"))
    assert page.open == []
    headings = [words for tag, words in page.said if tag == "h2"]
    assert headings[:7] == [
        "Verdict", "Plan", "Steps", "Time budget per step", "Timeline", "Idle time", "Busy time by category",
    ]  # fmt: skip
    captions = [words for tag, words in page.said if tag in ("span", "figcaption")]
    for one in ("By cause", "By length of gap", "By blamed function", "Longest gaps", "Kernel groups", "Regions"):
        assert one in captions
    titles = {finding.title for name in served.analyses() for finding in served.analyze(name).findings}
    shown_titles = {words for tag, words in page.said if tag == "span"}
    assert {one for one in titles if not one.startswith(("plan for", "plan:"))} <= shown_titles


def test_analyses_by_name(served: Trace) -> None:
    text = report(served, "health", "counters", named=True)
    headings = [words for tag, words in Outline(text).said if tag == "h2"]
    assert headings == ["Verdict", "Timeline", "Counters", "Health of the trace", "Coverage", "Again, and further"]
    assert "tracekit analyze trace.parquet health counters -o report.html" in text


def test_a_part_says_so(served: Trace) -> None:
    with served.only(phase="decode", steps=(1, 3)) as part:
        text = report(part, "idle_gaps", "attribution", name="it's.json")
    assert "Only phase decode, steps 1:3" in text
    assert "tracekit analyze &#39;it&#39;&#34;&#39;&#34;&#39;s.json&#39; --phase decode --steps 1:3" in text


def test_same_input_same_bytes(served: Trace) -> None:
    first = report(served)
    served._results.clear()
    assert report(served) == first


def test_nothing_is_fetched_and_only_what_is_ours_may_run(served: Trace) -> None:
    text = report(served)
    page = Outline(text)
    assert not [value for name, value in page.attributes if name in ("src", "srcset", "style") or name.startswith("on")]
    assert all(str(value).startswith("#") for name, value in page.attributes if name == "href")
    assert "http:" not in text and "https:" not in text and "@import" not in text
    (policy,) = (value or "" for name, value in page.attributes if name == "content" and "default-src" in (value or ""))
    for tag in ("script", "style"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_names_are_data(hostile: Trace) -> None:
    """They make no element and no attribute; where they stand, they stand whole."""
    text = report(hostile, name=HOSTILE[0])
    page = Outline(text)
    assert page.open == []
    assert not set(page.tags) & {"img", "b:", "iframe", "object"}
    assert page.tags.count("script") == 2
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert ("h1", HOSTILE[0]) in page.said
    assert not re.search("[\u202e\x00-\x09\x0b-\x1f]", text)
    assert "49" not in re.findall(r"lt;b&amp;gt;(\S+?)%", text), "no template in a name is filled in"


def test_command_line(tmp_path: Path) -> None:
    trace, page = write_trace(tmp_path / "trace.parquet", ROWS), tmp_path / "report.html"
    made = run("analyze", trace, "-o", page)
    assert (made.exit_code, made.stdout, made.stderr) == (0, "", f"Wrote {page}\n")
    assert page.read_text().startswith("<!DOCTYPE html>")
    again = run("analyze", trace, "-o", page)
    assert again.exit_code == 2 and "--force" in again.stderr
    assert run("analyze", trace, "health", "--format", "html", "-o", page, "--force").exit_code == 0
    assert run("analyze", trace, "health", "--format", "html").stdout.startswith("<!DOCTYPE html>")
    assert run("analyze", trace, "health", "--format", "json", "-o", tmp_path / "odd.html").exit_code == 0
    assert json.loads((tmp_path / "odd.html").read_text())["schema"] == 1


def test_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, of a trace whose name needs quotes and a part of it; but the ids of an example exist nowhere."""
    monkeypatch.chdir(tmp_path)
    write_trace(Path("it's.parquet"), ROWS)
    page = run("analyze", "it's.parquet", "idle_gaps", "--device", "0", "--format", "html").stdout
    commands = [
        shlex.split(words) for tag, words in Outline(page).said if tag == "code" and words.startswith("tracekit")
    ]
    assert {words[1] for words in commands} == {"analyze", "explain", "sql"}
    for words in commands:
        done = run(*words[1:], *(["--force"] if "-o" in words else []))
        assert done.exit_code == 0, (words, done.output)


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_bars_of_the_budget_are_all_of_a_step(served: Trace) -> None:
    """Widths are per cents that add up to 100, and the first bar is as long as its parts are."""
    section = html_budget.section(served, "")
    figures = [block for block in section.blocks if isinstance(block, Figure)]
    assert figures
    for drawing in (str(figure.drawing) for figure in figures):
        widths = [float(one) for one in re.findall(r'<rect x="[\d.]+%" y="0" width="([\d.]+)%"', drawing)]
        assert sum(widths) == pytest.approx(100, abs=0.01)
    rows = step_budget(served).to_pylist()
    busiest = max({row["bucket"] for row in rows}, key=lambda one: sum(r["ns"] for r in rows if r["bucket"] == one))
    mean = sum(row["ns"] / row["steps"] for row in rows if row["bucket"] == busiest)
    assert duration(mean) in figures[0].title


def test_gaps_by_length_are_those_of_the_analysis(served: Trace) -> None:
    idle = served.analyze("idle_gaps")
    (lengths,) = tables(html_idle.section(served, idle, ""), "By length of gap")
    figures = [(row[1].value, row[2].value) for row in lengths.rows]
    expected = [(one["gaps"], one["ns"]) for one in idle.summary[0]["histogram"] if one["gaps"]]
    assert [one for one in figures if one[0]] == expected


def test_blamed_time_is_that_of_the_gaps(served: Trace) -> None:
    idle = served.analyze("idle_gaps")
    (blamed,) = tables(html_idle.section(served, idle, ""), "By blamed function")
    known = sum(row["dur"] for row in idle.table.to_pylist() if row["blame"] is not None)
    assert sum(int(row[3].value or 0) for row in blamed.rows) == known


def tables(section: Section, caption: str) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table) and block.caption == caption]


# ---- the timeline's data ---------------------------------------------------------------------------------------------


def test_the_timeline_is_what_the_lanes_hold(served: Trace) -> None:
    """Undone as the page undoes it: differences summed, single values spread."""
    view = timeline(served)
    data = json.loads(str(view.data))
    assert len(view.choices) == len(data["windows"]) >= 2
    for window in data["windows"]:
        held = window_of(served, window["start"], window["start"] + window["dur"], rank=0)
        assert [lane["name"] for lane in window["lanes"]] == [lane.name for lane in held.lanes]
        for said, lane in zip(window["lanes"], held.lanes, strict=True):
            columns = ("ts", "dur", "name", "label", "depth", "step", "id", "launch_id")
            rows = [tuple(row[name] for name in columns) for row in lane.rows.to_pylist()]
            assert undone(said, data["names"], window["start"]) == rows


def timeline(trace: Trace) -> TimelineView:
    (view,) = html_timeline.section(trace).blocks
    assert isinstance(view, TimelineView)
    return view


def undone(lane: dict[str, Any], names: list[str], start: int) -> list[tuple[Any, ...]]:
    rows, ts, id = [], start, 0
    for at in range(lane["count"]):
        column = {key: lane[key][at] if isinstance(lane[key], list) else lane[key] for key in "tdnlpsiu"}
        ts, id = ts + column["t"], id + column["i"]
        launch = None if column["u"] is None else id + column["u"]
        step = None if column["s"] < 0 else column["s"]
        rows.append((ts, column["d"], names[column["n"]], names[column["l"]], column["p"], step, id, launch))
    return rows


def test_without_steps_all_of_the_recording(tmp_path: Path) -> None:
    with tracekit.open(write_trace(tmp_path / "trace.parquet", [op(5, 100), kernel(50, 200)])) as trace:
        view = timeline(trace)
    assert view.choices == ("the whole recording, 0.245 us",)
    assert view.note.endswith("of a kind that has more, the shortest are left out. Here none is.")


def test_many_rows_are_limited_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_timeline, "_MOST", 20)
    kernels = [kernel(10 * at, 4 + at % 3, name=f"k{at}") for at in range(60)]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", kernels)) as trace:
        view = timeline(trace)
    counts = {lane["kind"]: lane["count"] for lane in json.loads(str(view.data))["windows"][0]["lanes"]}
    assert counts == {"idle": 10, "device": 10}
    assert view.note == (
        "Limit: it holds at most 20 rows; of a kind that has more, the shortest are left out. "
        "Left out here: 49 idle, 50 device."
    )


def test_a_report_of_many_names_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the timeline with the longest name that is kept, of its own: more than any trace has."""
    monkeypatch.setattr(html_timeline, "_MOST", 2_000)
    kernels = [kernel(10 * at, 4, name=f"{at:06}{'<' * 5_000}") for at in range(4_000)]
    with tracekit.open(write_trace(tmp_path / "trace.parquet", kernels)) as trace:
        size = len(str(timeline(trace)))
        assert size < 2_000 * (6 * html_timeline._NAME + 200)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_in_a_script_element(value: Any) -> None:
    text = str(html_timeline.safe_json(value))
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text)


# ---- small things ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (None, None, ""),
        (0, 0, "0 us"),
        (0, 41_000, "0\u201341.0 us"),
        (2_310_000, 2_580_000, "2.31\u20132.58 ms"),
        (612_000, 1_100_000, "612 us\u20131.10 ms"),
        (5, 5, "0.005 us"),
    ],
)
def test_intervals(low: int | None, high: int | None, words: str) -> None:
    assert interval_text(low, high) == words


def test_names_are_cut_and_kept_whole_beside() -> None:
    assert name_cell("aten::mm") == Cell("aten::mm")
    assert name_cell("/opt/env/vllm/engine.py(3): step").text == "vllm/engine.py(3): step"
    assert name_cell("k" * 100) == Cell("k" * 87 + "...", title="k" * 100)
    assert name_cell("a\u202eb\x1b").text == "a\\u202eb\\x1b"
    assert shown("x" * 30, 10) == "xxxxxxx..."
    assert sentence("no device: record one") == "No device: record one."
    assert sentence("") == ""
    assert some_of(5, 5, "the first", "all") == ""
    assert some_of(5, 1200, "the longest", "CMD") == "5 of 1,200 rows, the longest; all: CMD"
    with pytest.raises(ValueError, match="a row has not 2 cells"):
        table("t", [Column("a"), Column("b")], [[Cell("1")]])


@given(words=st.text())
def test_elements_escape(words: str) -> None:
    made = element("text", {"title": words, "x": 0.1 + 0.2, "gone": None}, words, Markup("<b>ours</b>"))
    opening, _, rest = str(made).partition(">")
    inside = rest.removesuffix("<b>ours</b></text>")
    assert html.unescape(opening) == f'<text title="{words}" x="0.3"'
    assert html.unescape(inside) == words
    assert not set(inside) & set("<>\"'")


def test_fills_have_a_pattern_where_they_are_hatched() -> None:
    patterns = set(re.findall(r'<pattern id="(\w+)"', str(definitions())))
    fills = [*map(fill_of, STYLES), *CAUSE_STYLES.values()]
    painted = {paint(fill) for fill in fills}
    assert {one[5:-1] for one in painted if one.startswith("url")} <= patterns
    assert len(painted) == len(set(fills)), "no two fills look the same"


def test_a_bar() -> None:
    made = str(bar([Slice(0.25, fill_of("gemm"), "<gemm>"), Slice(0.75, fill_of("norm"), "norm")], "two", 10))
    assert made == (
        '<svg class="chart" width="100%" height="10" role="img" aria-label="two">'
        '<rect x="0%" y="0" width="25%" height="10" fill="#0072B2" class="slice"><title>&lt;gemm&gt;</title></rect>'
        '<rect x="25%" y="0" width="75%" height="10" fill="#009E73" class="slice"><title>norm</title></rect></svg>'
    )


@given(low=st.floats(1e-3, 1e12), factor=st.floats(1.01, 1e6), is_log=st.booleans())
def test_ticks_are_on_the_axis(low: float, factor: float, is_log: bool) -> None:
    axis = Axis(low, low * factor, 0, 100, is_log=is_log)
    ticks = list(axis.ticks())
    assert all(-0.01 <= axis.at(one) <= 100.01 for one in ticks)
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= (7 if is_log else 12)
    assert axis.at(low) == pytest.approx(0) and axis.at(low * factor) == pytest.approx(100)
