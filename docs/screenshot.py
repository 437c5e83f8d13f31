"""Takes the pictures of the HTML report: report.png (its head) and report_timeline.png (a few layers of a step).

    python docs/screenshot.py

They show the report of sample_traces/h100_decode_eager.json.gz in the Chromium of this machine, so fonts may differ.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import tracekit
from tracekit.report_html import render

DOCS = Path(__file__).parent
SAMPLE = DOCS.parent / "sample_traces" / "h100_decode_eager.json.gz"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1280, 960
ZOOMS = 9  # turns of the wheel


def main() -> None:
    """Write the report to a temporary folder, and its pictures beside this file."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    with tempfile.TemporaryDirectory() as folder, tracekit.open(SAMPLE) as trace:
        page = Path(folder) / "report.html"
        results = {name: trace.analyze(name) for name in trace.analyses()}
        page.write_text(render(trace, results, name=SAMPLE.name), encoding="utf-8")
        take(page, browser)


def take(report: Path, browser_path: str) -> None:
    """report: the HTML file. browser_path: the browser's program."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.as_uri())
        page.screenshot(path=DOCS / "report.png")
        canvas = page.locator("#timeline-canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        if box is None:
            sys.exit("the report has no timeline")
        page.mouse.move(box["x"] + 0.45 * box["width"], box["y"] + 120)
        for _ in range(ZOOMS):
            page.mouse.wheel(0, -100)
            page.wait_for_timeout(30)
        for x in range(0, int(box["width"]) // 2, 8):  # onto a kernel
            page.mouse.move(box["x"] + 0.3 * box["width"] + x, box["y"] + 122)
            if page.locator("#timeline-tip").is_visible():
                break
        page.wait_for_timeout(100)
        page.locator("#timeline-view").screenshot(path=DOCS / "report_timeline.png")
        browser.close()


if __name__ == "__main__":
    main()
