"""How long do launches take to reach a device, and how long does it pause between two rows of a stream?

Measured on the whole trace, one figure for each kind of call or row: that a step is played with these and not with its
own is what makes the error of the replay tell something.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracekit.arrays import ABSENT
from tracekit.trace import Trace

# Where a trace has too few rows to tell: from the end of a launch call to the start of the kernel, and the pause of a
# busy stream, as on H100 with the profiler on (medians of public traces: 1.5-3.1 us; 1.0-1.9 us).
LATENCY_NS = 3_000
EAGER_GAP_NS = 1_300
GRAPH_GAP_NS = 0
_FEW = 5  # rows that a figure of its own takes


@dataclass(frozen=True, slots=True)
class Latency:
    """From a call to the start of its row on an empty stream, ns: from the call's end, or from its start, whichever is
    the steadier of the two."""

    ns: int
    from_end: bool


@dataclass(frozen=True, slots=True)
class Pace:
    """What one device takes between its rows. Pauses by the name of the row after them; None for all names.
    capability: the first figure of its CUDA compute capability, 0 if that is not known. collectives: the least that
    each took on any rank, ns, by name and elements given (ABSENT where not recorded).
    """

    capability: int
    latencies: Mapping[str, Latency]
    eager_gaps: Mapping[str | None, int]
    graph_gaps: Mapping[str | None, int]
    collectives: Mapping[tuple[str, int], int]

    def latency(self, call_name: str) -> Latency:
        """Of a call of this name; of one never measured that of a kernel launch, if it is none of a graph."""
        if call_name in self.latencies:
            return self.latencies[call_name]
        launches = [one for name, one in self.latencies.items() if "Kernel" in name]
        return launches[0] if launches and "Graph" not in call_name else Latency(LATENCY_NS, True)

    def gap(self, name: str | None, in_graph: bool) -> int:
        """The pause before a row that waits already; negative where it begins before the row before it ends."""
        gaps = self.graph_gaps if in_graph else self.eager_gaps
        return gaps.get(name, gaps.get(None, GRAPH_GAP_NS if in_graph else EAGER_GAP_NS))


def pace_of(trace: Trace, rank: int, device: int | None) -> Pace:
    """The pace of a device, by all of the recording."""
    whole = trace.whole
    latencies = [one for one in whole.macro("launch_latencies").to_pylist() if _is_of(one, rank, device)]
    gaps = [one for one in whole.sql("FROM stream_gaps()").to_pylist() if _is_of(one, rank, device)]
    by_name = {
        in_graph: {
            one["name"]: round(one["gap_ns"]) for one in gaps if one["in_graph"] is in_graph and one["count"] >= _FEW
        }
        for in_graph in (False, True)
    }
    return Pace(
        _capability(trace, rank, device),
        {one["call_name"]: _latency(one) for one in latencies if one["count"] >= _FEW},
        by_name[False],
        by_name[True],
        {
            (one["name"], ABSENT if one["elements_in"] is None else one["elements_in"]): one["dur"]
            for one in whole.macro("shortest_collectives").to_pylist()
        },
    )


def _is_of(row: Mapping[str, Any], rank: int, device: int | None) -> bool:
    return bool(row["rank"] == rank and row["device"] == device)


def _latency(row: Mapping[str, Any]) -> Latency:
    if row["end_spread_ns"] <= row["start_spread_ns"]:
        return Latency(round(row["from_end_ns"]), True)
    return Latency(round(row["from_start_ns"]), False)


def _capability(trace: Trace, rank: int, device: int | None) -> int:
    described = [one for one in trace.macro("device_descriptions").to_pylist() if _is_of(one, rank, device)]
    properties = json.loads(described[0]["properties"] or "{}") if described else {}
    return int(properties.get("computeMajor") or 0) if properties.get("warpSize", 32) == 32 else 0
