"""Regions of CUDA graphs as text: what could be captured in which steps, what that wins, and what stands in the way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.text import Text

from tracekit.analysis import Result, Row, duration
from tracekit.report_plan import interval
from tracekit.text_grid import clean, grid
from tracekit.text_page import Page
from tracekit.wording import counted

_GROUP = ("rank", "device", "phase", "bucket")
_HEADINGS = ("region", "launches", "time", "GPU", "saves", "verdict")
_NAME = 60  # characters of a kernel that blocks


def in_full(page: Page, graphs: Result) -> list[Text]:
    """All regions of all kinds of steps."""
    rows = graphs.table.to_pylist()
    if not rows:
        return page.wrapped(graphs.coverage.reason, "  ", "dim", None)
    several = len({(row["rank"], row["device"]) for row in rows}) > 1
    return [line for _, same in groupby(rows, key=_where) for line in _group(page, list(same), several)]


def _where(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in _GROUP)


def _group(page: Page, rows: Sequence[Row], several: bool) -> list[Text]:
    head = rows[0]
    named = " ".join(row for row in (head["phase"], head["bucket"]) if row != "unknown")
    where = f" on rank {head['rank']} device {head['device']}" if several else ""
    size = "" if head["step_ns"] is None else f" of {duration(head['step_ns'])}"
    error = "" if head["error"] is None else f"; replay error {head['error']:.1%}"
    lines = page.line(
        (f"{clean(named) or 'the whole recording'}{where}, {counted(head['steps'], 'step')}{size}", "bold"),
        (error, "dim"),
    )
    lines += [Text(line, no_wrap=True) for line in grid(_HEADINGS, [_shown(row) for row in rows], page.width)]
    for row in rows:
        lines += page.wrapped(f"{row['region']}: {row['reason']}", "  ", "dim", None) if row["reason"] else []
    for said in _blockers(rows):
        lines += page.wrapped(said, "  ", "", None)
    return lines


def _shown(row: Row) -> Row:
    return {
        "region": row["region"],
        "launches": row["launches"],
        "time": "" if row["wall_ns"] is None else duration(row["wall_ns"]),
        "GPU": "" if row["gpu_ns"] is None else duration(row["gpu_ns"]),
        "saves": "" if row["saving_high_ns"] is None else interval(row["saving_low_ns"], row["saving_high_ns"]),
        "verdict": row["verdict"],
    }


def _blockers(rows: Sequence[Row]) -> Iterator[str]:
    """What a capture does not allow, each once: first what is in the way."""
    found = {one: json.loads(one) for row in rows for one in map(json.dumps, json.loads(row["blockers"]))}
    for place, said in (("inside", "in the way"), ("before", "before it"), ("after", "after it")):
        for one in found.values():
            if one["place"] == place and (one["splits"] or place == "inside"):
                around = one["op"] or one["function"]
                within = f" in {clean(around)}" if around else ""
                name = one["call"] if len(one["call"]) <= _NAME else f"{one['call'][: _NAME - 3]}..."
                yield f"{said}: {one['kind']}, {one['per_step']:g} a step: {clean(name)}{within}"
