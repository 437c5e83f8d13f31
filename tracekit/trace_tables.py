"""What is in the tables that are filled when a query first reads them (store.LAZY_TABLES)?

Each is worked out by a module of its own, from what the trace's macros measure. Here is which one, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tracekit.blame import batches, holders
from tracekit.kernel_names import forms_table
from tracekit.own_rules import OwnRules
from tracekit.roofline_fill import roofline_fillers
from tracekit.step_sources import steps_in_table
from tracekit.steps import step_table
from tracekit.timeline import flatten

if TYPE_CHECKING:
    from tracekit.trace import Trace

Read = Callable[[str], pa.Table]
Filler = Callable[[], pa.Table | str]


def fillers(trace: Trace, read: Read, rules: OwnRules) -> Mapping[str, Filler]:
    """What fills each table, by its name: rows, or the query that has them. read: runs a query as it is, for what the
    first tables are made of; `trace.sql` would see whether a table is to be filled first.
    """
    return {
        "step_table": lambda: step_table(steps_in_table(read, trace.footer.step_range)),
        "kernel_classes": lambda: _classified_names(read, rules),
        "host_timeline": lambda: flatten(trace.sql("FROM host_spans()")),
        "gap_holders": partial(_gap_holders, trace),
        "kernel_name_forms": lambda: forms_table(read("FROM names_to_compare()")["name"].to_pylist()),
        "graph_sequence": lambda: "FROM graph_launches()",
        "graph_region_table": partial(_graph_regions, trace),
        "fusion_table": partial(_fusions, trace),
        "plan_rows": partial(_plan, trace),
        **roofline_fillers(trace),
    }


def _classified_names(read: Read, rules: OwnRules) -> pa.Table:
    names = read("FROM names_to_classify()").to_pylist()
    rows = [
        (row["kind"], row["name"], row["op_name"], *found)
        for row, found in zip(names, rules.classes(names), strict=True)
    ]
    fields = ("kind", "name", "op_name", "category", "subcategory")
    return pa.table({field: pa.array([row[at] for row in rows], pa.string()) for at, field in enumerate(fields)})


def _gap_holders(trace: Trace) -> pa.Table:
    pieces = batches(trace.sql("FROM gap_pieces()"), trace.footer.ledger.stored)
    found = [holders(part, trace.macro("host_rows", {"from_ts": begin, "to_ts": end})) for part, begin, end in pieces]
    return pa.concat_tables(found)


def _graph_regions(trace: Trace) -> pa.Table:
    from tracekit.graph_table import region_table  # which replays steps of a Trace

    return region_table(trace)


def _fusions(trace: Trace) -> pa.Table:
    from tracekit.fusion_table import fusion_table  # which replays steps of a trace

    return fusion_table(trace)


def _plan(trace: Trace) -> pa.Table:
    from tracekit.plan_table import plan_table  # which replays steps of a trace

    return plan_table(trace)
