"""Where does the time of each device go, by what the work is for?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analyses._idle_summary import lost_records
from tracekit.analyses._missing import no_device
from tracekit.analyses._time_advice import SHARES, Advice
from tracekit.analysis import Coverage, Finding, Result, Row, Scalar, duration
from tracekit.trace import Trace
from tracekit.wording import counted

_HOST_ONLY = "this is host op time (each op without the ops inside it), not GPU time"
_NAMED = 5  # unclassified names said in a finding, kernels shown as evidence
_NAME = 60  # characters of a name in a sentence
_EXAMPLES = 2  # kernels named in a finding about their category

_OTHERS = """
    SELECT
        rank,
        device,
        name,
        sum(exclusive_ns)::BIGINT AS ns,
        arg_max(id, (exclusive_ns, -id)) AS example
    FROM classified_segments()
    WHERE category = 'other'
    GROUP BY ALL
    ORDER BY ns DESC, name
"""
_COSTLIEST = """
    SELECT
        name,
        sum(exclusive_ns)::BIGINT AS ns,
        arg_max(id, (exclusive_ns, -id)) AS example
    FROM classified_segments()
    WHERE rank = $rank
        AND device IS NOT DISTINCT FROM $device
        AND category IN (SELECT unnest($categories))
    GROUP BY name
    ORDER BY
        ns DESC,
        name
"""
_HOST_OTHERS = """
    SELECT
        rank,
        NULL AS device,
        name,
        sum(exclusive_ns)::BIGINT AS ns,
        arg_max(id, (exclusive_ns, -id)) AS example
    FROM host_segments()
    WHERE category = 'other'
    GROUP BY ALL
    ORDER BY ns DESC, name
"""


class Attribution:
    """Busy time by category and phase; on a trace without device activity, host op time."""

    name = "attribution"
    question = "Where does the busy time go?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            # Of the busy time of a device: above, there is a finding.
            "other_share": 0.1,
            "pointwise_share": 0.4,
            "memory_share": 0.3,
            "missing_share": 0.02,  # of launches without device work, of rows without an end: above, no idle time
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with the macro attribution; judge whether enough of the time has a category."""
        table = trace.macro(self.name)
        devices = sorted(trace.macro("device_time").to_pylist(), key=lambda row: (row["rank"], row["device"] or 0))
        if not devices:
            return _host(trace, parameters)
        unclassified = _by_device(table.filter(pc.field("category") == "other"))
        lost = lost_records(trace.whole, float(parameters["missing_share"] or 0)).refusal
        computing = {(row["rank"], row["device"]): row["kernel_ns"] for row in trace.macro("kernel_time").to_pylist()}
        summary = [
            {key: row[key] for key in ("rank", "device", "span_ns", "busy_ns", "idle_ns", "sum_ns")}
            | {"kernel_ns": computing.get((row["rank"], row["device"]), 0)}
            | {"unclassified_ns": unclassified.get((row["rank"], row["device"]), 0)}
            | ({"idle_ns": None} if lost else {})
            for row in devices
        ]
        busy = sum(row["busy_ns"] for row in summary)
        other = sum(row["unclassified_ns"] for row in summary)
        findings = (
            *_dominating(trace, table, summary, parameters),
            *_unclassified(trace, _OTHERS, "busy_ns", summary, float(parameters["other_share"] or 0)),
        )
        reason = f"{other / busy:.1%} of the busy time is in kernels that no rule knows" if other else ""
        return Result(self.name, parameters, summary, table, findings, Coverage(busy - other, busy, reason))


def _host(trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
    table = trace.macro("host_attribution")
    totals = _by_device(table)
    unclassified = _by_device(table.filter(pc.field("category") == "other"))
    cannot_tell = dict.fromkeys(("span_ns", "busy_ns", "idle_ns", "sum_ns", "kernel_ns"))
    summary: list[Row] = [
        {"rank": rank, "device": device, **cannot_tell}
        | {"unclassified_ns": unclassified.get((rank, device), 0), "host_op_ns": ns}
        for (rank, device), ns in sorted(totals.items(), key=lambda item: item[0][0])
    ]
    total, other = sum(totals.values()), sum(unclassified.values())
    findings = _unclassified(trace, _HOST_OTHERS, "host_op_ns", summary, float(parameters["other_share"] or 0))
    reason = f"{_HOST_ONLY}: {no_device(trace.footer)}" if total else no_device(trace.footer)
    return Result("attribution", parameters, summary, table, findings, Coverage(total - other, total, reason))


def _by_device(table: pa.Table) -> dict[tuple[int, int | None], int]:
    grouped = table.group_by(["rank", "device"]).aggregate([("exclusive_ns", "sum")])
    return {(row["rank"], row["device"]): row["exclusive_ns_sum"] for row in grouped.to_pylist()}


def _dominating(
    trace: Trace, table: pa.Table, summary: list[Row], parameters: Mapping[str, Scalar]
) -> Iterator[Finding]:
    """One for each kind of work on the device where its share is largest. No time belongs to two of them."""
    for said in SHARES:
        spent = _by_device(table.filter(pc.field("category").isin(sorted(said.categories))))
        shares = [
            (spent.get((row["rank"], row["device"]), 0) / row["busy_ns"], row) for row in summary if row["busy_ns"]
        ]
        share, worst = max(shares, key=lambda item: item[0], default=(0, None))
        if worst is None or share < float(parameters[said.parameter] or 0):
            continue
        where = f" on rank {worst['rank']} device {worst['device']}" if len(summary) > 1 else ""
        device = {"rank": worst["rank"], "device": worst["device"], "categories": sorted(said.categories)}
        names = trace.sql(_COSTLIEST, device).to_pylist()
        listed = "; ".join(f"{_short(row['name'])} ({duration(row['ns'])})" for row in names[:_EXAMPLES])
        yield Finding(
            severity="warning",
            title=said.title.format(share=f"{share:.1%}", where=where),
            detail=f"Mostly {listed}. {said.detail}",
            saving_low_ns=0,
            saving_high_ns=spent[worst["rank"], worst["device"]] if said.saves else 0,
            evidence=tuple(row["example"] for row in names[:_NAMED]),
            remedy=said.remedy,
            cost=said.cost,
            verify=said.verify,
            arithmetic=tuple(_sums(said, worst, spent[worst["rank"], worst["device"]])),
        )


def _sums(said: Advice, device: Row, ns: int) -> Iterator[str]:
    here = arithmetic.on(device["rank"], device["device"])
    chosen = f"{here} AND category IN {arithmetic.one_of(sorted(said.categories))}"
    yield arithmetic.queried("their time", f"SELECT sum(exclusive_ns) FROM attribution() WHERE {chosen}", ns)
    yield arithmetic.queried("busy time", f"SELECT busy_ns FROM device_time() WHERE {here}", device["busy_ns"])
    yield arithmetic.share("share", ns, device["busy_ns"])
    if said.saves:
        yield arithmetic.saving(0, ns)


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."


def _unclassified(trace: Trace, query: str, whole: str, summary: list[Row], threshold: float) -> tuple[Finding, ...]:
    """One for the device (or rank) where the share of `other` is largest, if it is above the threshold."""
    hit = [row for row in summary if row[whole] and row["unclassified_ns"] / row[whole] > threshold]
    if not hit:
        return ()
    worst = max(hit, key=lambda row: row["unclassified_ns"] / row[whole])
    here = (worst["rank"], worst["device"])
    names = [row for row in trace.sql(query).to_pylist() if (row["rank"], row["device"]) == here and row["ns"] > 0]
    listed = "; ".join(f"{_short(row['name'])} ({row['ns'] / worst[whole]:.1%})" for row in names[:_NAMED])
    more = f"; and {counted(len(names) - _NAMED, 'more name')}" if len(names) > _NAMED else ""
    on_host = whole == "host_op_ns"
    what = "host op" if on_host else "busy"
    device = "" if on_host else f" device {worst['device']}"
    where = f" on rank {worst['rank']}{device}" if len(summary) > 1 else ""
    return (
        Finding(
            severity="info" if on_host else "warning",
            title=f"{worst['unclassified_ns'] / worst[whole]:.1%} of the {what} time has no category{where}",
            detail=f"{listed}{more}",
            evidence=tuple(row["example"] for row in names[:_NAMED]),
            remedy=f"Name these {'ops' if on_host else 'kernels'} in a rules file of your own; pass it with --rules.",
            cost="A few lines of TOML.",
            verify="The share of `other` in the next run.",
            arithmetic=tuple(_without_category(whole, worst)),
        ),
    )


def _without_category(whole: str, worst: Row) -> Iterator[str]:
    """whole: which time it is a part of."""
    on_host = whole == "host_op_ns"
    here = f"rank = {worst['rank']}" if on_host else arithmetic.on(worst["rank"], worst["device"])
    table = "host_attribution()" if on_host else "attribution()"
    of_all = f"SELECT sum(exclusive_ns) FROM {table} WHERE {here}"
    yield arithmetic.queried("without a category", f"{of_all} AND category = 'other'", worst["unclassified_ns"])
    yield arithmetic.queried("all of it", of_all, worst[whole])
    yield arithmetic.share("share", worst["unclassified_ns"], worst[whole])


ANALYSIS = Attribution()
