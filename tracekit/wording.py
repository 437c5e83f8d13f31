"""Words that all parts use, collectors and analyses alike."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """A number and its noun: "1 step", "1,024 steps"."""
    return f"{count:,} {what}{'s' * (count != 1)}"
