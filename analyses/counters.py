"""What did Nsight Compute measure of the kernels, and what is far from both roofs?"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analyses._missing import no_device
from tracekit.analysis import Coverage, Finding, Result, Row, Scalar, duration
from tracekit.kernel_names import name_forms
from tracekit.trace import Trace
from tracekit.wording import counted

_NOT_JOINED = ("none", "ambiguous", "other_gpu")
_NAMED = 3  # kernels named in a sentence
_MEASURED = 8  # kernels in the command that measures what is left, and shown as evidence
_NAME = 60  # characters of a name in a sentence
_LAUNCHES = 100  # that the command measures at most: each is replayed several times
_COMMAND = (
    "ncu --target-processes all --csv --page raw --section SpeedOfLight --section LaunchStats --section Occupancy "
    "--metrics dram__bytes_read.sum,dram__bytes_write.sum {chosen}--log-file metrics.csv COMMAND"
)
RECORD = _COMMAND.format(chosen="")
CONDITIONS = (
    "Nsight Compute replays each kernel alone, by default with clocks locked to base (--clock-control none lets them "
    "be) and caches flushed (--cache-control none keeps them): its durations are not those of the trace."
)
_UNDER = {
    "latency": (
        "under {low} % of both compute and memory throughput",
        "Neither roof binds them: they wait for dependent instructions, memory latency or barriers.",
        "More work in flight per SM: higher occupancy (registers, shared memory), wider loads, more instructions "
        "without dependence, a larger batch; or fuse short kernels.",
        "A rewrite or another library's kernel; a larger batch costs latency.",
    ),
    "small_grid": (
        "under {low} % of both roofs with a grid below one wave",
        "Their grids have fewer blocks than the GPU could run at once, so SMs idle.",
        "Smaller tiles or split-K for more blocks, a larger batch, or run them beside other work on a second stream.",
        "Smaller tiles reuse less data; split-K adds a reduction; a larger batch costs latency.",
    ),
    "underused": (
        "under {low} % of both compute and memory throughput",
        "Neither roof binds them; whether their grids are too small or they wait for latency, waves per SM would tell.",
        "Measure waves per SM too: ncu --section LaunchStats, with the rest as before.",
        "Another run under ncu.",
    ),
}


class Counters:
    """Kernels of the trace with what Nsight Compute measured of them, if its tables were given."""

    name = "counters"
    question = "What did Nsight Compute (`--ncu`) measure of the kernels?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            # Per cent of peak throughput: those of ncu's own rule.
            "low_pct": 60,
            "high_pct": 80,
            "difference_pct": 10,
            "covered_share": 0.9,  # of the kernel time: below, there is a finding
            "under_share": 0.1,  # of the kernel time of a device, under both roofs
            "duration_ratio": 2.0,  # of a kernel under ncu and in the trace: beyond, it was another situation
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Measure with the macro counters; judge what is covered, and what is far from both roofs."""
        table = trace.macro(self.name, parameters)
        if trace.beside.counters is None:
            return Result(self.name, parameters, (), table, (), _nothing_given(trace))
        rows = table.to_pylist()
        if not rows:
            return Result(self.name, parameters, (), table, (), Coverage(reason=no_device(trace.footer)))
        summary = [_summary(key, of_device) for key, of_device in _by_device(rows).items()]
        total = sum(row["kernel_ns"] for row in summary)
        joined = sum(row["counted_ns"] for row in summary)
        findings = (
            *_other_gpu(rows, summary),
            *_under_roofs(rows, summary, parameters),
            *_uncounted(rows, summary, float(parameters["covered_share"] or 0)),
            *_other_situation(rows, float(parameters["duration_ratio"] or 0)),
        )
        reason = "; ".join(_reasons(trace, summary))
        return Result(self.name, parameters, summary, table, findings, Coverage(joined, total, reason))


def _nothing_given(trace: Trace) -> Coverage:
    (row,) = trace.sql(
        "SELECT coalesce(sum(scope_clip(ts + dur) - scope_clip(ts)), 0)::BIGINT AS ns FROM kernels "
        "WHERE in_scope(rank, device, step) AND in_window(ts, dur)"
    ).to_pylist()
    return Coverage(0, row["ns"], f"no counters given; record them with: {RECORD}; and pass --ncu metrics.csv")


def _by_device(rows: Sequence[Row]) -> dict[tuple[int, int | None], list[Row]]:
    found: dict[tuple[int, int | None], list[Row]] = {}
    for row in rows:
        found.setdefault((row["rank"], row["device"]), []).append(row)
    return found


def _summary(key: tuple[int, int | None], rows: Sequence[Row]) -> Row:
    """kernel_ns: sum of the kernels' durations = counted_ns + the three parts that are not joined; by_class: counted_ns
    by ncu's class.
    """
    time: Counter[str] = Counter()
    by_class: Counter[str] = Counter()
    for row in rows:
        time[row["match"]] += row["dur_ns"]
        if row["match"] not in _NOT_JOINED:
            by_class[row["ncu_class"]] += row["dur_ns"]
    total = time.total()
    joined = by_class.total()
    return {
        "rank": key[0],
        "device": key[1],
        "kernels": len(rows),
        "kernel_ns": total,
        "counted_ns": joined,
        "share": joined / total if total else 0.0,
        "ambiguous_ns": time["ambiguous"],
        "other_gpu_ns": time["other_gpu"],
        "unmeasured_ns": time["none"],
        "by_class": dict(sorted(by_class.items(), key=lambda item: (-item[1], item[0]))),
    }


def _reasons(trace: Trace, summary: Sequence[Row]) -> Iterator[str]:
    """Why not all of the kernel time has counters."""
    total = sum(row["kernel_ns"] for row in summary) or 1
    parts = {
        "not measured": sum(row["unmeasured_ns"] for row in summary),
        "ambiguous by name and geometry": sum(row["ambiguous_ns"] for row in summary),
        "measured on another GPU only": sum(row["other_gpu_ns"] for row in summary),
    }
    if listed := [f"{ns / total:.1%} {words}" for words, ns in parts.items() if ns]:
        yield f"of the kernel time, {', '.join(listed)}"
    if unused := trace.macro("unmatched_counters").num_rows:
        yield f"{counted(unused, 'measured kernel')} not in this trace by name and geometry"


# ---- findings --------------------------------------------------------------------------------------------------------


def _under_roofs(rows: Sequence[Row], summary: Sequence[Row], parameters: Mapping[str, Scalar]) -> Iterator[Finding]:
    """One for each of the three classes, on the device where its share is largest. What could be saved is not promised:
    how near to a roof such a kernel could come, its counters do not say.
    """
    for name, (title, detail, remedy, cost) in _UNDER.items():
        shares = [(one["by_class"].get(name, 0) / one["kernel_ns"], one) for one in summary if one["kernel_ns"]]
        share, worst = max(shares, key=lambda item: item[0], default=(0.0, None))
        if worst is None or share == 0 or share < float(parameters["under_share"] or 0):
            continue
        here = [row for row in _of(rows, worst) if row["ncu_class"] == name]
        yield Finding(
            severity="warning",
            title=f"kernels {title.format(low=parameters['low_pct'])} take {share:.1%} of the kernel time"
            f"{_where(worst, summary)}",
            detail=f"Mostly {_listed(here, _throughput)}. {detail}",
            evidence=_evidence(here),
            remedy=remedy,
            cost=cost,
            verify="The same kernels in ncu after this one change, and their time in a new trace under the same load.",
            arithmetic=tuple(_part(name, worst["by_class"][name], worst, parameters)),
        )


def _part(ncu_class: str, ns: int, device: Row, parameters: Mapping[str, Scalar]) -> Iterator[str]:
    """Kernels of a class as a part of the kernel time of a device."""
    of_all = f"SELECT sum(dur_ns) FROM {_table(parameters)} WHERE {arithmetic.on(device['rank'], device['device'])}"
    joined = f"ncu_class = {ncu_class!r} AND match NOT IN {arithmetic.one_of(_NOT_JOINED)}"
    yield arithmetic.queried("their time", f"{of_all} AND {joined}", ns)
    yield arithmetic.queried("kernel time", of_all, device["kernel_ns"])
    yield arithmetic.share("share", ns, device["kernel_ns"])


def _table(parameters: Mapping[str, Scalar]) -> str:
    return arithmetic.called("counters", parameters)


def _uncounted(rows: Sequence[Row], summary: Sequence[Row], threshold: float) -> Iterator[Finding]:
    """The costliest kernels without counters, and the command that measures just them."""
    total = sum(row["kernel_ns"] for row in summary)
    missing = total - sum(row["counted_ns"] for row in summary)
    if total - missing >= threshold * total:
        return
    left = sorted((row for row in rows if row["match"] in _NOT_JOINED), key=lambda row: -int(row["dur_ns"]))
    yield Finding(
        severity="info",
        title=f"{missing / total:.1%} of the kernel time has no counters",
        detail=f"Mostly {_listed(left, lambda row: duration(row['dur_ns']))}. {CONDITIONS}",
        evidence=_evidence(left),
        remedy=f"Measure them: {command_for(left)}",
        cost="Each launch is replayed once per group of counters: minutes, not for production.",
        verify="The share of kernel time with counters in the next run, with this file given to --ncu too.",
        arithmetic=tuple(_not_joined("without counters", _NOT_JOINED, missing, total)),
    )


def _not_joined(label: str, matches: Sequence[str], ns: int, total: int) -> Iterator[str]:
    """Kernels that were not joined, for these reasons, as a part of the kernel time of all devices."""
    of_all = "SELECT sum(dur_ns) FROM counters()"
    yield arithmetic.queried(label, f"{of_all} WHERE match IN {arithmetic.one_of(matches)}", ns)
    yield arithmetic.queried("kernel time", of_all, total)
    yield arithmetic.share("share", ns, total)


def command_for(rows: Sequence[Row]) -> str:
    """The ncu command that measures the first few of these kernels. ncu compares names without templates and parameters
    (--kernel-name-base function), and finds an expression anywhere in them unless it is anchored.
    """
    names = list(dict.fromkeys(name_forms(row["kernel"]).function for row in rows))[:_MEASURED]
    launches = sum(row["count"] for row in rows if name_forms(row["kernel"]).function in names)
    pattern = shlex.quote(f"regex:^({'|'.join(map(re.escape, names))})$")
    return _COMMAND.format(chosen=f"--kernel-name {pattern} --launch-count {min(launches, _LAUNCHES)} ")


def _other_gpu(rows: Sequence[Row], summary: Sequence[Row]) -> Iterator[Finding]:
    here = sorted((row for row in rows if row["match"] == "other_gpu"), key=lambda row: -int(row["dur_ns"]))
    if not here:
        return
    ns, total = sum(row["dur_ns"] for row in here), max(1, sum(row["kernel_ns"] for row in summary))
    yield Finding(
        severity="warning",
        title=f"kernels with {ns / total:.1%} of the kernel time were measured on another kind of GPU, and are not "
        "joined",
        detail=f"Mostly {_listed(here, lambda row: duration(row['dur_ns']))}. Their compute capability in the table "
        "of Nsight Compute is not that of this trace's device.",
        evidence=_evidence(here),
        remedy="Measure on the kind of GPU that the trace was recorded on.",
        verify="The share of kernel time with counters in the next run.",
        arithmetic=tuple(_not_joined("measured elsewhere", ("other_gpu",), ns, total)),
    )


def _other_situation(rows: Sequence[Row], most: float) -> Iterator[Finding]:
    """Kernels that took far longer or shorter under ncu: other inputs, clocks or caches than in the trace."""
    far = [row for row in rows if (ratio := row["duration_ratio"]) and most and not 1 / most <= ratio <= most]
    if not far:
        return
    far.sort(key=lambda row: -int(row["dur_ns"]))
    yield Finding(
        severity="info",
        title=f"{counted(len(far), 'kernel')} took a time under Nsight Compute that is off by more than a factor of "
        f"{most:g}",
        detail=f"Mostly {_listed(far, lambda row: '{:.3g} times as long'.format(row['duration_ratio']))}. {CONDITIONS}",
        evidence=_evidence(far),
        remedy="Measure with --clock-control none and the inputs of the trace; take bytes and operations from "
        "counters, times from the trace.",
        verify="The column duration_ratio.",
        arithmetic=(
            arithmetic.queried(
                "kernels",
                f"SELECT count(*) FROM counters() WHERE duration_ratio > 0 AND duration_ratio NOT BETWEEN 1 / {most} "
                f"AND {most}",
                len(far),
                "kernels" if len(far) > 1 else "kernel",
            ),
        ),
    )


def _of(rows: Sequence[Row], device: Row) -> list[Row]:
    return [row for row in rows if (row["rank"], row["device"]) == (device["rank"], device["device"])]


def _where(device: Row, summary: Sequence[Row]) -> str:
    return f" on rank {device['rank']} device {device['device']}" if len(summary) > 1 else ""


def _evidence(rows: Sequence[Row]) -> tuple[int, ...]:
    return tuple(row["example_id"] for row in rows[:_MEASURED])


def _throughput(row: Row) -> str:
    return f"compute {row['sm_throughput_pct']:.0f} %, memory {row['memory_throughput_pct']:.0f} %"


def _listed(rows: Sequence[Row], say: Callable[[Row], str]) -> str:
    return "; ".join(f"{_short(row['kernel'])} ({say(row)})" for row in rows[:_NAMED])


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."


ANALYSIS = Counters()
