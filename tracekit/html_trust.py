"""Can the report be trusted, and how is it made again? Health, coverage, other analyses as they are, command lines."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from tracekit.analysis import Result, Row
from tracekit.html_svg import share_bar
from tracekit.html_views import (
    ROWS,
    Block,
    Cell,
    Column,
    Commands,
    Fold,
    Kind,
    Notes,
    Section,
    Table,
    Tone,
    name_cell,
    number_cell,
    reason_of,
    share_cell,
    shown,
    some_of,
    table,
    text_cell,
    time_cell,
)

_TONES: Mapping[str, Tone] = {"ok": "good", "warn": "warn", "fail": "bad"}
_NUMBERS = (int, float)


# ---- health ----------------------------------------------------------------------------------------------------------


def health(result: Result, is_part: bool) -> Section:
    """What is wrong with the trace; what is fine, folded. is_part: the report is of a part, but this of the whole."""
    rows = result.table.to_pylist()
    bad = [row for status in ("fail", "warn") for row in rows if row["status"] == status]
    good = [row for row in rows if row["status"] == "ok"]
    blocks: list[Block] = []
    if bad:
        blocks.append(_checks("Checks that are not fine", bad))
    else:
        blocks.append(Notes((f"All {len(rows)} checks are fine.",), "good"))
    if good:
        blocks.append(Fold(f"{len(good)} checks that are fine", (_checks("Fine", good),)))
    whole = " Always that of the whole trace." if is_part else ""
    return Section(
        "health", "Health of the trace", f"What was read, what is missing, what to doubt.{whole}", tuple(blocks)
    )


def _checks(caption: str, rows: Sequence[Row]) -> Table:
    columns = (Column("check"), Column("status"), Column("count", "number"), Column("detail", "prose"))
    cells = [
        (
            text_cell(row["check"]),
            text_cell(row["status"], tone=_TONES.get(row["status"], "plain")),
            number_cell(row["count"]),
            Cell(shown(row["detail"], 2_000)),
        )
        for row in rows
    ]
    return table(caption, columns, cells)


def coverage(results: Mapping[str, Result]) -> Section:
    """How much of the time each analysis could account for, and the thresholds that it judged by."""
    columns = (
        Column("analysis"),
        Column("accounts for", "bar"),
        Column("of", "number"),
        Column("why not more", "prose"),
    )
    cells = []
    for name, result in results.items():
        total, explained = result.coverage.total_ns, result.coverage.explained_ns
        share = explained / total if total else None
        cells.append(
            (
                text_cell(name),
                Cell("nothing to account for", -1) if share is None else share_cell(share, share_bar(share)),
                time_cell(total or None),
                Cell(shown(result.coverage.reason, 2_000)),
            )
        )
    lead = "How much of its time each analysis could account for, and what would have to be recorded for the rest."
    return Section("coverage", "Coverage", lead, (table("Analyses", columns, cells), _thresholds(results)))


def _thresholds(results: Mapping[str, Result]) -> Fold:
    """What was judged by, so that it can be repeated."""
    said = {
        name: ", ".join(f"{key}={value}" for key, value in result.parameters.items())
        for name, result in results.items()
    }
    cells = [(text_cell(name), Cell(shown(words, 2_000))) for name, words in said.items() if words]
    columns = (Column("analysis"), Column("parameters", "code"))
    return Fold("Parameters of each analysis", (table("Parameters", columns, cells),))


# ---- other analyses --------------------------------------------------------------------------------------------------


def other(name: str, result: Result, question: str, again: str) -> Section:
    """An analysis without a section of its own: its table as it is."""
    title = name.replace("_", " ").capitalize()
    if not result.table.num_rows:
        return Section(name, title, "", (Notes(reason_of(result, "no rows")),))
    rows = result.table.slice(0, ROWS).to_pylist()
    kept = [key for key in result.table.column_names if any(row[key] is not None for row in rows)]
    columns = tuple(_column(key, rows) for key in kept)
    cells = [[_value(key, row[key], column.kind) for key, column in zip(kept, columns, strict=True)] for row in rows]
    note = some_of(len(rows), result.table.num_rows, "the first", again)
    reason = [Notes(reason_of(result))] if result.coverage.reason else []
    return Section(name, title, question, (*reason, table("Measured", columns, cells, note)))


def _column(key: str, rows: Sequence[Row]) -> Column:
    values = [row[key] for row in rows if row[key] is not None]
    is_number = bool(values) and all(isinstance(one, _NUMBERS) and not isinstance(one, bool) for one in values)
    kind: Kind = "number" if is_number else "code" if key in ("kernel", "name", "collective") else "text"
    return Column(key.removesuffix("_ns").replace("_", " "), kind)


def _value(key: str, value: object, kind: Kind) -> Cell:
    if value is None:
        return Cell("", "")
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        if key.endswith("_ns"):
            return time_cell(value)
        return number_cell(value, "{:,}" if isinstance(value, int) else "{:,.4g}")
    words = json.dumps(value) if isinstance(value, (list, dict)) else value
    return name_cell(words) if kind == "code" else text_cell(words)


# ---- again -----------------------------------------------------------------------------------------------------------


def repeat(trace: Sequence[str], names: Sequence[str], first: str) -> Section:
    """Commands that make this report again and go on from it. trace: the words that open the trace; first: the id of a
    finding, "" without one.
    """
    analyze = ["tracekit", "analyze", *trace]
    said = [
        ([*analyze, *names, "-o", "report.html"], "this report"),
        ([*analyze, "idle_gaps"], "one analysis in full, as text"),
        ([*analyze, *names, "--format", "json"], "all rows and findings, for programs"),
        (["tracekit", "sql", trace[0], "FROM events WHERE id = 4711"], "a row by the id that is said here"),
    ]
    if first:
        said.insert(2, (["tracekit", "explain", first, *trace], "what a finding rests on"))
    lines = tuple((shown(shlex.join(words)), why) for words, why in said)
    return Section("repeat", "Again, and further", "", (Commands(lines),))
