"""A real browser for the tests of the report, and what they share: hostile names, a page that tells what went wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.event_rows import annotation, footer_of, kernel, launch, op
from tracekit.footer import DeviceInfo, Footer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(2)</script><!--",
    "</style><svg onload=alert(3)>&lt;b&gt;{{ 7 * 7 }}{% raw %}",
    "javascript:alert(4)//' onmouseover='alert(5)",
    "turned\u202eback\u2028line\x1b[31m\x00end",
    "void k<float, 4>(x<y<z>> const&, \"s\") && 'it' & \\u003c",
)


def hostile_rows() -> list[dict[str, Any]]:
    """Four steps with every name in every place: kernels, ops, calls, Python, ranges."""
    rows: list[dict[str, Any]] = []
    at = 1
    for number in range(4):
        start = 1_000_000 * number
        rows.append(annotation(f"step[DECODE bs={number + 1}]", start, 900_000, id=at, step=number))
        at += 1
        for place, name in enumerate(HOSTILE):
            ts = start + 10_000 + 100_000 * place
            rows += [
                {"kind": "python", "name": f"a.py({place}): {name}", "ts": ts, "dur": 60_000, "id": at, "step": number},
                op(ts + 1_000, 50_000, name=name, id=at + 1, step=number),
                launch(ts + 10_000, 5_000, name=name, id=at + 2, op_id=at + 1, step=number),
                kernel(
                    ts + 20_000,
                    40_000 + 1_000 * number,
                    name=name,
                    launch_id=at + 2,
                    op_id=at + 1,
                    id=at + 3,
                    step=number,
                ),
                annotation(name, ts + 61_000, 5_000, id=at + 4, step=number),
            ]
            at += 5
    return rows


def hostile_footer(rows: list[dict[str, Any]]) -> Footer:
    """Its device has such a name, too."""
    return footer_of(rows, devices=(DeviceInfo(rank=0, device=0, name=f"H100 {HOSTILE[0]}{HOSTILE[1]}"),))


# ---- the browser -----------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What a page did that a report must not do. Without slots: playwright marks the owner of a method it calls."""

    trouble: list[str] = field(default_factory=list)

    def dialog(self, dialog: Dialog) -> None:
        """A script of a name has run."""
        self.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def request(self, url: str, file: Path) -> None:
        """Nothing but the file itself is to be asked for."""
        if url.partition("#")[0] != file.as_uri():
            self.trouble.append(f"request: {url}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The machine's own Chromium; skips the test where there is none, or nothing to drive it with."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is on the path")
    with playwright.sync_playwright() as driver:
        # As root, as in containers, Chromium starts only without its sandbox; it opens files of these tests alone.
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, file: Path, *, width: int = 1200, dark: bool = False) -> Iterator[tuple[Page, Seen]]:
    """The report, and all that the console, the network and dialogs said."""
    seen = Seen()
    options: Mapping[str, Any] = {"viewport": {"width": width, "height": 800}}
    context = browser.new_context(**options, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.on("console", lambda message: seen.trouble.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.trouble.append(f"error: {error}"))
    page.on("request", lambda request: seen.request(request.url, file))
    page.on("dialog", seen.dialog)
    page.goto(file.as_uri())
    page.locator("#timeline-view[data-end='']").wait_for(state="detached")  # drawn, or there is none
    try:
        yield page, seen
    finally:
        context.close()
