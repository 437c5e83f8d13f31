"""The report in a real browser: it stays silent, it can be used, it can be read, and names stay names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.browser import HOSTILE, chromium, hostile_footer, hostile_rows, opened
from tests.event_rows import write_trace
from tests.simulator import Plant, Run, simulate
from tracekit.report_html import render
from tracekit.text_grid import clean

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Files = Mapping[str, Path]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Reports of a served model with Python stacks, of hostile names, and of nothing."""
    folder = tmp_path_factory.mktemp("reports")
    plant = Plant(syncs_per_step=1, between_steps_ns=300_000, scheduler_ns=100_000)
    simulate(Run(plant=plant, steps=4, with_stack=True, record_shapes=True), folder / "served.json")
    rows = hostile_rows()
    write_trace(folder / "hostile.parquet", rows, hostile_footer(rows))
    write_trace(folder / "empty.parquet", [])
    found = {}
    for name in ("served.json", "hostile.parquet", "empty.parquet"):
        with tracekit.open(folder / name) as trace:
            text = render(trace, {one: trace.analyze(one) for one in trace.analyses()}, name=f"<i>{name}")
        found[name.partition(".")[0]] = folder / f"{name}.html"
        found[name.partition(".")[0]].write_text(text, encoding="utf-8")
    return found


@pytest.fixture
def page(browser: Browser, files: Files) -> Iterator[Page]:
    """The report of the served model; fails if the page complained."""
    with opened(browser, files["served"]) as (page, seen):
        yield page
        assert seen.trouble == []


def view(page: Page) -> tuple[int, int]:
    """The time in view, ns, once what was asked for is drawn."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box = page.locator("#timeline-view")
    return int(box.get_attribute("data-start") or -1), int(box.get_attribute("data-end") or -1)


# ---- silence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dark"), [("served", True), ("hostile", False), ("empty", True)])
def test_no_word_on_the_console_and_no_request(browser: Browser, files: Files, name: str, dark: bool) -> None:
    with opened(browser, files[name], dark=dark) as (page, seen):
        page.get_by_role("button", name="Unfold all").click()
        assert page.locator("h1").inner_text().startswith("<i>")
    assert seen.trouble == []


def test_names_stay_text(browser: Browser, files: Files) -> None:
    """All of them are on the page as they are written, and make no element; nor do they in the tooltip, the facts."""
    with opened(browser, files["hostile"]) as (page, seen):
        said = page.evaluate("document.querySelector('main').textContent")
        for name in HOSTILE:
            assert clean(name)[:80] in said or clean(name) in page.evaluate(
                "[...document.querySelectorAll('[title]')].map(one => one.title).join('\\n')"
            )
        made = "img, main script:not([type]), [onerror], [onload], [onmouseover]"
        assert page.locator(made).count() == 0
        canvas = page.locator("#timeline-canvas")
        canvas.focus()
        facts = set()
        for key in ["]", "ArrowDown", "ArrowDown", *["]"] * (len(HOSTILE) - 1)]:
            page.keyboard.press(key)
            facts.add(page.locator("#timeline-facts").inner_text().partition(". where")[0])
        assert {clean(name) for name in HOSTILE} <= facts
        box = canvas.bounding_box()
        assert box
        for x in range(0, int(box["width"]), 12):
            for y in range(40, int(box["height"]), 40):
                canvas.hover(position={"x": x, "y": y})
            if page.locator("#timeline-tip").is_visible():
                break
        assert page.locator("#timeline-tip").is_visible()
        assert page.locator("#timeline-tip, #timeline-facts").locator("img, script").count() == 0
    assert seen.trouble == []


# ---- the timeline ----------------------------------------------------------------------------------------------------


def test_the_wheel_zooms_where_the_pointer_is(page: Page) -> None:
    start, end = view(page)
    assert start == 0
    canvas = page.locator("#timeline-canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 60)
    page.mouse.wheel(0, -300)
    first, last = view(page)
    assert last - first == pytest.approx((end - start) / 2.718, rel=0.01)
    fixed = 0.25 * (end - start)
    assert (fixed - first) / (last - first) == pytest.approx(0.25, abs=0.01)
    page.mouse.wheel(0, 900)
    assert view(page) == (start, end), "not beyond what there is"
    assert page.locator("#timeline-range").inner_text().endswith("from 0 ns")


def test_keys_zoom_pan_and_go_from_row_to_row(page: Page) -> None:
    _, end = view(page)
    page.locator("#timeline-canvas").focus()
    page.keyboard.press("+")
    first, last = view(page)
    assert last - first == pytest.approx(0.6 * end, rel=0.01)
    page.keyboard.press("ArrowRight")
    assert view(page)[0] == pytest.approx(first + 0.2 * (last - first), rel=0.01)
    page.keyboard.press("ArrowLeft")
    assert view(page)[0] == pytest.approx(first, rel=0.01)
    page.keyboard.press("0")
    assert view(page) == (0, end)

    facts = page.locator("#timeline-facts")
    assert facts.inner_text() == ""
    page.keyboard.press("]")
    assert "where: steps" in facts.inner_text()
    page.keyboard.press("ArrowDown")
    assert "cause: " in facts.inner_text()
    page.keyboard.press("ArrowDown")
    kernel = facts.inner_text()
    assert "category: " in kernel and "launch: " in kernel and "begun " in kernel
    page.keyboard.press("]")
    assert facts.inner_text() != kernel
    page.keyboard.press("[")
    assert facts.inner_text() == kernel
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") != "timeline-canvas", "the timeline holds no one who tabs on"


def test_dragging_pans_and_a_double_click_shows_all(page: Page) -> None:
    _, end = view(page)
    canvas = page.locator("#timeline-canvas")
    canvas.scroll_into_view_if_needed()
    canvas.focus()
    page.keyboard.press("+")
    first, last = view(page)
    box = canvas.bounding_box()
    assert box
    middle, y = box["x"] + box["width"] / 2, box["y"] + 8
    page.mouse.move(middle, y)
    page.mouse.down()
    page.mouse.move(middle - box["width"] / 4, y, steps=4)
    page.mouse.up()
    assert view(page)[0] == pytest.approx(first + (last - first) / 4, rel=0.02)
    canvas.dblclick(position={"x": 20, "y": 8})
    assert view(page) == (0, end)


def test_another_step_a_name_and_the_buttons(page: Page) -> None:
    choice = page.locator("#timeline-choice")
    assert choice.locator("option").count() >= 2
    _, end = view(page)
    choice.select_option("1")
    assert view(page)[1] != end
    page.get_by_role("button", name="Zoom in").click()
    first, last = view(page)
    page.get_by_role("button", name="All", exact=True).click()
    assert view(page)[1] > last - first
    page.locator("#timeline-find").fill("NORM")
    page.keyboard.press("Enter")
    assert page.locator("#timeline-facts").inner_text().startswith("1 of ")
    page.locator("#timeline-find").fill("no such name")
    page.keyboard.press("Enter")
    assert page.locator("#timeline-facts").inner_text() == "No row in this window has a name like that."


# ---- tables ----------------------------------------------------------------------------------------------------------


def column(page: Page, caption: str, name: str) -> list[str]:
    """Cells of a column of a table, from top to bottom, as they are sorted by."""
    return list(
        page.evaluate(
            """([caption, name]) => {
                const table = [...document.querySelectorAll("table")].find(one => one.caption.textContent === caption);
                const at = [...table.tHead.rows[0].cells].findIndex(one => one.textContent === name);
                return [...table.tBodies[0].rows].map(row => row.cells[at].dataset.value ?? row.cells[at].textContent);
            }""",
            [caption, name],
        )
    )


def test_tables_sort_by_number_and_by_text(page: Page) -> None:
    caption = "By phase and category"
    table = page.locator("table", has=page.locator("caption", has_text=caption))

    def rows() -> list[tuple[str, int]]:
        return list(zip(column(page, caption, "category"), map(int, column(page, caption, "count")), strict=True))

    reported = rows()
    table.get_by_role("button", name="count").click()
    assert rows() == sorted(reported, key=lambda row: -row[1]), "rows that are alike keep the order of the report"
    assert table.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    table.get_by_role("button", name="category").focus()
    page.keyboard.press("Enter")
    assert rows() == sorted(reported, key=lambda row: row[0])
    assert table.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"


def test_what_is_empty_is_last_whichever_way(page: Page) -> None:
    caption = "Kernel groups"
    table = page.locator("table", has=page.locator("caption", has_text=caption))
    for _ in range(2):
        table.get_by_role("button", name="of roof").click()
        filled = [bool(one) for one in column(page, caption, "of roof")]
        assert filled == sorted(filled, reverse=True)
        assert any(filled) and not all(filled)


# ---- how it looks ----------------------------------------------------------------------------------------------------

_CONTRAST = """() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map(one => one / 255).map(one =>
            one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = numbers(getComputedStyle(at).backgroundColor);
            if (colour.length < 4 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const poor = new Set();
    for (const one of document.querySelectorAll("body *")) {
        const own = [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
        if (!own || !one.checkVisibility() || one.closest("script, style")) continue;
        const style = getComputedStyle(one);
        const text = numbers(one instanceof SVGElement ? style.fill : style.color);
        const [a, b] = [light(text), light(ground(one))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) poor.add(`${one.tagName}.${one.getAttribute("class")} ${ratio.toFixed(2)}`);
    }
    return [...poor];
}"""
_OVERLAPS = """() => {
    const found = [];
    for (const drawing of document.querySelectorAll("svg.chart")) {
        const texts = [...drawing.querySelectorAll("text")].map(one => [one.textContent, one.getBBox(), one.getCTM()]);
        const boxes = texts.map(([said, box, at]) => [said, box.x + at.e, box.y + at.f, box.width, box.height]);
        boxes.forEach(([said, x, y, width, height], at) => {
            if (x < -1 || x + width > drawing.viewBox.baseVal.width + 1) found.push(`cut: ${said}`);
            for (const [other, left, top, wide, high] of boxes.slice(at + 1)) {
                const apart = x + width <= left + 0.5 || left + wide <= x + 0.5
                    || y + height <= top + 3.5 || top + high <= y + 3.5;
                if (!apart) found.push(`${said} / ${other}`);
            }
        });
    }
    return found;
}"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_word_can_be_read(browser: Browser, files: Files, dark: bool) -> None:
    """A contrast of 4.5 to 1, as WCAG 2 asks of level AA."""
    with opened(browser, files["served"], dark=dark) as (page, _):
        page.get_by_role("button", name="Unfold all").click()
        assert page.evaluate(_CONTRAST) == []


@pytest.mark.parametrize("name", ["served", "hostile", "empty"])
def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, files: Files, name: str) -> None:
    with opened(browser, files[name], width=400) as (page, _):
        page.get_by_role("button", name="Unfold all").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("name", ["served", "hostile"])
def test_no_label_of_a_drawing_lies_over_another(browser: Browser, files: Files, name: str) -> None:
    with opened(browser, files[name]) as (page, _):
        assert page.locator("svg.chart text").count() > 10 or name == "hostile"
        assert page.evaluate(_OVERLAPS) == []


def test_light_and_dark_by_a_button(page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    picture = "document.getElementById('timeline-canvas').toDataURL()"
    drawn = page.evaluate(picture)
    page.get_by_role("button", name="dark colours").click()
    assert page.evaluate(ground) != light
    view(page)
    assert page.evaluate(picture) != drawn, "the canvas follows"
    page.get_by_role("button", name="light colours").click()
    assert page.evaluate(ground) == light


def test_paper_has_everything_and_is_light(browser: Browser, files: Files) -> None:
    with opened(browser, files["served"], dark=True) as (page, seen):
        folds = page.locator("details:not([open])")
        before = folds.count()
        assert before > 0
        page.evaluate(
            """addEventListener("beforeprint", () => {
                const ground = getComputedStyle(document.body).backgroundColor;
                window.printed = [document.querySelectorAll("details:not([open])").length, ground];
            })"""
        )
        page.pdf()
        assert page.evaluate("window.printed") == [0, "rgb(255, 255, 255)"]
        page.locator(":root:not([data-theme])").wait_for(state="attached")
        assert folds.count() == before
    assert seen.trouble == []
