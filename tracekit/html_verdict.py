"""What is wrong, and what to do first? The head of the HTML report: figures that matter, then all findings."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tracekit.analysis import SEVERITIES, Finding, Result, Row, duration
from tracekit.html_views import (
    Block,
    Column,
    Notes,
    Remark,
    Remarks,
    Section,
    Table,
    Tile,
    Tiles,
    interval_text,
    name_cell,
    number_cell,
    sentence,
    shown,
    some_of,
    table,
    text_cell,
    time_cell,
)
from tracekit.wording import counted

if TYPE_CHECKING:
    from tracekit.trace import Trace

_SHOWN = 6  # findings before the fold
_EVIDENCE = 10  # rows of a finding
_NOTHING_SAID = ("", "None")
_SAID_ELSEWHERE = ("health", "plan")
_EVIDENCE_COLUMNS = (
    Column("row id", "number"),
    Column("kind"),
    Column("name", "code"),
    Column("start", "number"),
    Column("duration", "number"),
)
Named = tuple[str, Finding]


def section(trace: Trace, results: Mapping[str, Result], command: Sequence[str]) -> Section:
    """command: the words that open this trace again, after `tracekit explain ID`."""
    told = [result for name, result in results.items() if name not in _SAID_ELSEWHERE]
    found = [one for result in told for one in result.named_findings().items()]
    ranked = sorted(found, key=lambda one: (-SEVERITIES.index(one[1].severity), -one[1].saving_high_ns))
    blocks: list[Block] = []
    if tiles := tuple(_tiles(results)):
        blocks.append(Tiles(tiles))
    if ranked:
        names = trace.rows(id for _, finding in ranked for id in finding.evidence[:_EVIDENCE])
        remarks = [_remark(one, names, command, at == 0) for at, one in enumerate(ranked)]
        blocks.append(Remarks(tuple(remarks[:_SHOWN]), tuple(remarks[_SHOWN:])))
    else:
        blocks.append(Notes((_nothing(told),), "good" if _looked(told) else "warn"))
    lead = "Findings, the worst first. A saving is an interval over the whole recording, and no time is promised twice."
    return Section("verdict", "Verdict", lead if ranked else "", tuple(blocks))


def _looked(results: Sequence[Result]) -> bool:
    return any(result.coverage.total_ns for result in results)


def _nothing(results: Sequence[Result]) -> str:
    if _looked(results):
        return "No finding: by their thresholds, these analyses have nothing to say against this trace."
    reasons = Counter(result.coverage.reason for result in results if result.coverage.reason)
    most = max(reasons, key=lambda one: reasons[one], default="nothing was analysed")
    return sentence(f"No verdict: {most}")


# ---- tiles -----------------------------------------------------------------------------------------------------------


def _tiles(results: Mapping[str, Result]) -> Iterator[Tile]:
    """Step time, busy share, the largest cause of idle time, what the plan wins; each where there is something."""
    if (steps := results.get("steps")) and (row := _most_charged(steps)):
        named = " ".join(shown(row[name], 40) for name in ("phase", "bucket") if row[name] != "unknown")
        several = row["count"] > 1
        detail = f"P99 {duration(row['p99_ns'])}, {row['count']:,} steps" if several else "one step"
        yield Tile(f"{named} step{', P50' if several else ''}".strip(), duration(row["p50_ns"]), detail)
    idle = results.get("idle_gaps")
    here = max(idle.summary, key=lambda row: row["span_ns"], default=None) if idle else None
    if here and here["span_ns"] and here["idle_ns"] is not None:
        share = here["busy_ns"] / here["span_ns"]
        where = f"rank {here['rank']} device {here['device']}" if idle and len(idle.summary) > 1 else "the device"
        detail = f"{duration(here['busy_ns'])} of {duration(here['span_ns'])}"
        yield Tile(f"{where} is busy", f"{share:.1%}", detail, "good" if share >= 0.9 else "warn")
        cause, ns = max(here["by_cause"].items(), key=lambda item: item[1], default=("", 0))
        if ns:
            yield Tile(
                "idle most for",
                shown(cause.replace("_", " "), 40),
                f"{duration(ns)}, {ns / here['span_ns']:.1%} of the span",
            )
    if (plan := results.get("plan")) and (row := _best_plan(plan)):
        low, high = row["step_ns"] - row["saving_high_ns"], row["step_ns"] - row["saving_low_ns"]
        yield Tile("a step could take", interval_text(low, high), f"now {duration(row['step_ns'])}: see the plan")


def _most_charged(steps: Result) -> Row | None:
    rows = [row for row in steps.table.to_pylist() if row["p50_ns"] is not None]
    steady = [row for row in rows if row["kind"] == "steady"] or rows
    return max(steady, key=lambda row: row["busy_ns"] + row["idle_ns"] + row["gap_before_ns"], default=None)


def _best_plan(plan: Result) -> Row | None:
    rows = [row for row in plan.summary if row["remedies"] and row["saving_high_ns"]]
    return max(rows, key=lambda row: row["total_ns"], default=None)


# ---- findings --------------------------------------------------------------------------------------------------------


def _remark(named: Named, rows: Mapping[int, Row], command: Sequence[str], is_open: bool) -> Remark:
    id, finding = named
    words = (("", finding.detail), ("do", finding.remedy), ("price", finding.cost), ("check", finding.verify))
    return Remark(
        id=id,
        severity=finding.severity,
        title=shown(finding.title),
        saving=saving_of(finding),
        parts=tuple((word, shown(said, 4_000)) for word, said in words if said.strip(". ") not in _NOTHING_SAID),
        arithmetic=tuple(shown(line) for line in finding.arithmetic),
        evidence=_evidence(finding, rows),
        command=shown(shlex.join(["tracekit", "explain", id, *command])),
        is_open=is_open,
    )


def saving_of(finding: Finding) -> str:
    """What a finding may save in all, "" where it promises nothing."""
    if not finding.saving_high_ns:
        return ""
    return f"saves {interval_text(finding.saving_low_ns, finding.saving_high_ns)}"


def _evidence(finding: Finding, rows: Mapping[int, Row]) -> Table | None:
    ids = [id for id in finding.evidence[:_EVIDENCE] if id in rows]
    if not ids:
        return None
    cells = [
        (
            number_cell(id, "{}"),
            text_cell(rows[id]["kind"]),
            name_cell(rows[id]["name"]),
            number_cell(rows[id]["ts"] / 1e6, "{:,.3f} ms"),
            time_cell(rows[id]["dur"]),
        )
        for id in ids
    ]
    left = some_of(len(ids), len(finding.evidence), "the first", "--format json")
    return table(f"Evidence: {counted(len(ids), 'row')} of the trace", _EVIDENCE_COLUMNS, cells, left)
