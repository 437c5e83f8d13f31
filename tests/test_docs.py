"""The documentation: pages that are made are as they would be made now, and no link leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.analysis_pages import FOLDER, ROOT, pages
from tests.test_packaging import project_files

_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
WRITTEN = sorted(ROOT / name for name in project_files() if name.suffix == ".md")


def test_pages_of_analyses_are_those_of_their_sql() -> None:
    """Written by `python -m tests.test_docs`."""
    made = pages()
    assert {path: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))} == dict(
        sorted(made.items())
    )


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = _CODE.sub("", path.read_text(encoding="utf-8"))
    for target, anchor in _LINK.findall(text):
        file = (path.parent / target).resolve()
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor[1:] in anchors(file), target + anchor


def anchors(file: Path) -> set[str]:
    """What the headings of a page are linked by, as GitHub makes it."""
    heads = re.findall(r"^#+ (.+)$", _CODE.sub("", file.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_each_page_can_be_found_from_the_readme(path: Path) -> None:
    linking = "".join(one.read_text(encoding="utf-8") for one in WRITTEN if one != path)
    assert f"{path.name})" in linking or f"{path.name}#" in linking


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
