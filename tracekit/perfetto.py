"""What does a trace look like? The event table as a Chrome trace, which Perfetto and chrome://tracing show.

    event table -> tracks -> lanes -> layout -> text, piece by piece of time -> .json or .json.gz
                   (DuckDB)  (no two   (pid, tid,  (DuckDB)
                              cross)    names)

On threads of their own lie tracekit's findings (perfetto_layers.py). Memory holds a piece, whatever the trace.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from tracekit import __version__
from tracekit.arrays import one_array
from tracekit.errors import UsageError
from tracekit.json_text import json_text
from tracekit.perfetto_file import TraceFile, check_suffix
from tracekit.perfetto_layers import Layer, layers
from tracekit.perfetto_tracks import Lanes, Layout, Thread, layout, metadata, renumbered
from tracekit.trace import Trace

_PIECE_ROWS = 200_000
_BATCH_ROWS = 1 << 18
_LAST_NS = 2**63 - 1
_STATEMENT = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
# Settings of the profiler that stand beside the events in its own files, under these names.
_SETTING = re.compile(r"(record|with|profile)_\w{1,30}|\w{1,30}_version")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: rows of the event table by kind, arrows from launches to their work, slices of each layer, and
    why one has none.
    """

    by_kind: Mapping[str, int]
    flows: int
    layers: Mapping[str, int]
    missing: Mapping[str, str]


def export(
    trace: Trace, path: Path | str, *, force: bool = False, progress: Callable[[int, int], None] | None = None
) -> Exported:
    """Write a trace, or the part of it that `trace` sees, as Chrome trace JSON to `path` (.json or .json.gz).

    What crosses the borders of a part's time is cut, as in its analyses. `path` appears when it is complete.
    progress: called with rows written so far, and all. Raises UsageError for a path that cannot be written.
    """
    path = Path(path)
    _check(trace, path, force)
    statements = _statements()
    cursor = trace.cursor()
    try:
        cursor.execute(statements["prepare"])
        cursor.execute(statements["tracks"])
        lanes = _lanes(cursor, statements)
        added = layers(trace, cursor, statements)
        found = _layout(trace, cursor, lanes, added)
        _register(cursor, lanes, found)
        cursor.execute(statements["flows"])
        kinds = dict(cursor.execute(statements["kinds"]).fetchall())
        written: Counter[str] = Counter()
        with TraceFile(path) as file:
            file.head(_head(trace, found, kinds))
            for event in metadata(found):
                file.add(event.encode())
            for rows in _pieces(cursor, statements, sum(kinds.values())):
                _add(file, rows)
                written.update(_counts(rows))
                if progress is not None:
                    progress(written.total(), sum(kinds.values()))
            for name, layer in added.items():
                _add_layer(file, cursor, statements["layer"], layer, found.layers[name])
        (flows,) = cursor.execute("SELECT count(*) FROM flows").fetchall()[0]
    finally:
        cursor.close()
    return Exported(
        dict(sorted(written.items())),
        flows,
        {name: layer.rows.num_rows for name, layer in added.items()},
        {name: layer.missing for name, layer in added.items() if layer.missing},
    )


def _check(trace: Trace, path: Path, force: bool) -> None:
    check_suffix(path)
    if path.is_dir():
        raise UsageError(f"{path} is a directory; name a file in it")
    if path.exists() and path.samefile(trace.path):
        raise UsageError(f"{path} is what is to be read; write to another")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; pass --force to overwrite it")


def _statements() -> dict[str, str]:
    text = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    return dict(zip(_STATEMENT.findall(text), _STATEMENT.split(text)[2::2], strict=True))


# ---- where rows are drawn --------------------------------------------------------------------------------------------


def _lanes(cursor: duckdb.DuckDBPyConnection, statements: Mapping[str, str]) -> Lanes:
    flat = cursor.execute("SELECT track FROM tracks WHERE track_kind = 'work'").fetchall()
    lanes = Lanes(flat=frozenset(track for (track,) in flat))
    cursor.execute(statements["spans"])
    while rows := cursor.fetchmany(_BATCH_ROWS):
        lanes.add(rows)
    return lanes


def _layout(trace: Trace, cursor: duckdb.DuckDBPyConnection, lanes: Lanes, added: Mapping[str, Layer]) -> Layout:
    return layout(
        cursor.sql("FROM tracks ORDER BY track").to_arrow_table().to_pylist(),
        lanes.counts,
        {name: layer.lane_counts() for name, layer in added.items()},
        {(one.rank, one.device): one.name for one in trace.footer.devices},
    )


def _register(cursor: duckdb.DuckDBPyConnection, lanes: Lanes, found: Layout) -> None:
    """The tables `overlapping` and `places`, which the text of events is made with."""
    places = [(track, lane, thread.pid, thread.tid) for (track, lane), thread in found.places.items()]
    cursor.register("lanes_given", lanes.table())
    cursor.execute("CREATE TEMP TABLE overlapping AS FROM lanes_given ORDER BY id")
    cursor.unregister("lanes_given")
    cursor.register("places", _table(("track", "lane", "pid", "tid"), places))


def _table(names: tuple[str, ...], rows: Sequence[tuple[int | None, ...]]) -> pa.Table:
    return pa.table({name: pa.array([row[at] for row in rows], pa.int64()) for at, name in enumerate(names)})


# ---- text ------------------------------------------------------------------------------------------------------------


def _head(trace: Trace, found: Layout, kinds: Mapping[str, int]) -> str:
    """Members before the events: those of a profiler (clock, rank, devices, settings) and, in otherData, ours."""
    footer = trace.footer
    ranks = {process.rank for process in found.processes}
    head: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": footer.origin_ns}
    if len(ranks) == 1:
        said = [one for one in footer.sources if one.rank in ranks and one.rank_from != "default"]
        sizes = [one.world_size for one in said if one.world_size is not None]
        if said:
            head["distributedInfo"] = {"rank": said[0].rank, **({"world_size": max(sizes)} if sizes else {})}
    devices = {one.device: one for one in reversed(footer.devices) if one.rank in ranks}
    head["deviceProperties"] = [
        {"id": number, "name": devices[number].name, **devices[number].properties} for number in sorted(devices)
    ]
    head |= {
        key: value
        for key, value in footer.capture.items()
        if _SETTING.fullmatch(key) and isinstance(value, (int, float, str))
    }
    head["otherData"] = {
        "tracekit": __version__,
        "sources": ", ".join(f"{one.path} ({one.format}, rank {one.rank})" for one in footer.sources),
        "origin_ns": str(footer.origin_ns),
        "part": str(trace.scope) or "all",
        "events": ", ".join(f"{kind} {count}" for kind, count in kinds.items()),
        "renumbered": json.dumps(renumbered(found), separators=(",", ":")),
    }
    return json_text(head)


def _pieces(cursor: duckdb.DuckDBPyConnection, statements: Mapping[str, str], rows: int) -> Iterator[pa.Table]:
    """Kind and text of all rows, by time."""
    count = max(1, -(-rows // _PIECE_ROWS))
    cuts = [ts for (ts,) in cursor.execute(statements["pieces"], {"pieces": count}).fetchall()] if count > 1 else []
    edges = [-_LAST_NS, *cuts, _LAST_NS]
    for start, end in itertools.pairwise(edges):
        yield cursor.sql(statements["piece"], params={"start": start, "end": end}).to_arrow_table()


def _add(file: TraceFile, rows: pa.Table) -> None:
    """The column `content`, whose texts lie one behind the other in memory already."""
    for chunk in rows.column("content").chunks:
        texts = chunk.cast(pa.large_string())
        _, offsets, data = texts.buffers()
        if len(texts) and data is not None:
            ends = memoryview(offsets).cast("q")[texts.offset : texts.offset + len(texts) + 1]
            file.add(memoryview(data)[ends[0] : ends[-1]])


def _add_layer(
    file: TraceFile,
    cursor: duckdb.DuckDBPyConnection,
    statement: str,
    layer: Layer,
    threads: Mapping[tuple[int, int | None, int], Thread],
) -> None:
    places = [(*key, thread.pid, thread.tid) for key, thread in threads.items()]
    cursor.register("layer_rows", layer.rows)
    cursor.register("layer_places", _table(("rank", "device", "lane", "pid", "tid"), places))
    _add(file, cursor.sql(statement).to_arrow_table())


def _counts(rows: pa.Table) -> dict[str, int]:
    return {one["values"]: one["counts"] for one in pc.value_counts(one_array(rows.column("kind"))).to_pylist()}
