"""What are the rows that a finding names, and which code do they come from?

A host row lies inside others of its thread; a device row comes from an API call, which does. Going outwards from there
one meets ops, modules, and Python functions with their lines, where stacks were recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tracekit.analysis import Row
from tracekit.text_grid import from_package
from tracekit.views import DEVICE_KINDS

if TYPE_CHECKING:
    from tracekit.trace import Trace

_LINE = re.compile(r"\.py\(\d+\): ")
# Of what is in between, nobody is to blame: the framework, its hooks, compiled-in functions, wrappers of the standard
# library.
_BETWEEN = re.compile(
    r"^<|(^|/)(torch|triton|concurrent|asyncio|multiprocessing|importlib)/|: __torch_\w+__$"
    r"|^(contextlib|functools|threading|runpy|typing|enum|abc|queue|copy|selectors)\.py\("
)

_ROWS = """
    SELECT
        id,
        kind,
        name,
        ts,
        dur,
        rank,
        step,
        pid,
        tid,
        device,
        stream,
        launch_id
    FROM events
    WHERE id BETWEEN $low AND $high
        AND id IN (SELECT unnest($ids))
    ORDER BY id
"""
# Rows of the host that hold one of these places in time. A row may hold another of the same length: parent_id tells.
_AROUND = """
    WITH places AS (
        SELECT DISTINCT
            rank,
            pid,
            tid,
            ts,
            ts + dur AS end_ts
        FROM events
        WHERE id BETWEEN $low AND $high
            AND id IN (SELECT unnest($ids))
    )
    SELECT DISTINCT
        e.id,
        e.kind,
        e.name,
        e.parent_id
    FROM events AS e
    JOIN places AS p
        ON p.rank = e.rank
        AND p.pid = e.pid
        AND p.tid = e.tid
        AND e.ts <= p.ts
        AND e.ts + e.dur >= p.end_ts
    WHERE e.kind IN ('op', 'annotation', 'python', 'launch')
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """A host row that another lies in."""

    id: int
    kind: str
    name: str

    @property
    def is_between(self) -> bool:
        """Of the framework or a mere wrapper: it says nothing of who called."""
        return self.kind == "python" and bool(_BETWEEN.search(self.name))


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """A row that a finding names. Times in ns from the trace origin. pid, tid: of the host; device, stream: of the
    device; launch_id: the API call that started it. around: what it, or that call, lies in, the innermost first; of a
    device row the call itself comes first.
    """

    id: int
    kind: str
    name: str
    ts: int
    dur: int
    rank: int
    step: int | None
    pid: int | None
    tid: int | None
    device: int | None
    stream: int | None
    launch_id: int | None
    around: tuple[Frame, ...] = ()

    @property
    def is_host(self) -> bool:
        """Something that the host did."""
        return self.kind not in DEVICE_KINDS

    @property
    def place(self) -> str:
        """Thread or stream."""
        return f"thread {self.tid}" if self.is_host else f"device {self.device} stream {self.stream}"

    @property
    def line(self) -> str:
        """The innermost Python function, with file and line, that is neither the framework's nor a mere wrapper; ""
        where stacks do not tell.
        """
        names = [self.name] * (self.kind == "python") + [one.name for one in self.around if one.kind == "python"]
        found = next((one for one in names if _LINE.search(one) and not _BETWEEN.search(one)), "")
        return from_package(found)

    def to_json(self) -> Row:
        """Plain values."""
        return asdict(self)


def evidence_of(trace: Trace, ids: Sequence[int]) -> tuple[EvidenceRow, ...]:
    """Rows by id, in the order given; ids that the trace does not have are left out."""
    found = _fetch(trace, ids)
    launches = {row["launch_id"] for row in found.values() if row["launch_id"] is not None}
    anchors = [row["id"] for row in found.values() if row["kind"] not in DEVICE_KINDS] + sorted(launches)
    around = _around(trace, anchors)
    rows = []
    for one in dict.fromkeys(ids):
        if (row := found.get(one)) is None:
            continue
        on_device = row["kind"] in DEVICE_KINDS
        frames = _outwards(around, row["launch_id"] if on_device else row["id"])
        rows.append(EvidenceRow(**row, around=tuple(frames if on_device else frames[1:])))
    return tuple(rows)


def _fetch(trace: Trace, ids: Sequence[int]) -> dict[int, Row]:
    return {row["id"]: row for row in trace.sql(_ROWS, _range(ids)).to_pylist()} if ids else {}


def _around(trace: Trace, ids: Sequence[int]) -> Mapping[int, Row]:
    """These host rows and all that they may lie in, by id."""
    return {row["id"]: row for row in trace.sql(_AROUND, _range(ids)).to_pylist()} if ids else {}


def _range(ids: Sequence[int]) -> Row:
    return {"ids": list(ids), "low": min(ids), "high": max(ids)}  # low and high let DuckDB skip most of the file


def _outwards(around: Mapping[int, Row], start: int | None) -> list[Frame]:
    """From a host row to the outermost around it, itself included."""
    frames: list[Frame] = []
    while start is not None and (row := around.get(start)) is not None and len(frames) <= len(around):
        frames.append(Frame(row["id"], row["kind"], row["name"]))
        start = row["parent_id"]
    return frames
