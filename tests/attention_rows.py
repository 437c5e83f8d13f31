"""Works of attention and loads of steps, for tests."""

from __future__ import annotations

from dataclasses import replace

from tracekit.step_marks import Composition
from tracekit.work import Work

# Prompts of 2 tokens on 5 keys (4 + 5 pairs) and of 3 on 7 (5 + 6 + 7), and two decodes on 9 keys.
MIXED = Composition("mixed", 2, 5, 2, 2, 12, 2 * 2 + 3 * 3, 2 * 5 + 3 * 7, 9, 2, 9)


def work(
    flops: int,
    size: int,
    kv_bytes: int = 0,
    *,
    math: str = "bf16",
    flops_high: int = -1,
    bytes_high: int = -1,
    notes: tuple[str, ...] = (),
) -> Work:
    """Of attention, in bf16."""
    return Work("attention", flops, size, math if flops else "", flops_high, bytes_high, kv_bytes=kv_bytes, notes=notes)


def without_load(found: Work | None) -> Work | None:
    """All but whether the step could change it."""
    return None if found is None else replace(found, by_load=False)
