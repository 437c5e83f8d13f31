"""Reading a Chrome trace of tracekit again gives the trace that it was made of."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import tracekit
from tests import real_traces
from tests.event_rows import annotation, kernel, launch, op
from tests.perfetto_files import SAMPLES, Event, drawn, exported
from tracekit import perfetto
from tracekit.footer import SourceInfo
from tracekit.trace import Trace

# All but the numbers of a device's process and track, which kineto has no columns for.
COLUMNS = """
    id, kind, name, ts, dur, rank, device, stream, context, correlation, launch_id, op_id, parent_id, step, graph_id,
    graph_node_id, grid_x, grid_y, grid_z, block_x, block_y, block_z, registers, shared_memory, occupancy, bytes,
    copy_kind, shapes, dtypes, scalars, collective, elements_in, elements_out, comm_dtype, group_name, group_size, args,
    CASE WHEN device IS NULL THEN pid END AS pid,
    CASE WHEN device IS NULL THEN tid END AS tid
"""

EXCLUSIVE = "SELECT category, sum(exclusive_ns)::BIGINT AS ns FROM classified_segments() GROUP BY 1 HAVING ns > 0"


def same_trace(first: Trace, second: Trace) -> None:
    query = f"SELECT {COLUMNS} FROM events ORDER BY id"
    assert second.sql(query).to_pylist() == first.sql(query).to_pylist()
    assert second.footer.origin_ns == first.footer.origin_ns
    assert second.footer.ranks == first.footer.ranks
    for macro in ("device_time", "classified_segments"):
        assert as_set(second.macro(macro).to_pylist()) == as_set(first.macro(macro).to_pylist())
    assert second.analyze("idle_gaps").table.to_pylist() == first.analyze("idle_gaps").table.to_pylist()


def as_set(rows: Iterable[Event]) -> list[str]:
    return sorted(map(str, rows))


def there_and_back(path: Path, folder: Path) -> None:
    with tracekit.open(path) as trace:
        written = perfetto.export(trace, folder / "back.json.gz")
        assert written.by_kind == {kind: count for kind, count in sorted(trace.footer.ledger.by_kind.items()) if count}
        assert time_of_categories(folder / "back.json.gz") == {
            row["category"]: row["ns"] for row in trace.sql(EXCLUSIVE).to_pylist()
        }
        with tracekit.open(folder / "back.json.gz") as back:
            same_trace(trace, back)
            skipped = {
                reason: count for reason, count in back.footer.ledger.skipped.items() if "metadata" not in reason
            }
    assert skipped == {
        reason: count
        for reason, count in (
            ("drawn by tracekit (steps, categories and gaps of an exported trace)", sum(written.layers.values())),
            ("flow arrow (links are made by correlation)", 2 * written.flows),
        )
        if count
    }


def time_of_categories(path: Path) -> Counter[str]:
    """Nanoseconds of the slices that tracekit drew, by category."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
    found: Counter[str] = Counter()
    for _, thread, name, _, duration in drawn(document):
        if thread == "tracekit: categories":
            found[name] += int(str(duration).replace(".", ""))
    return found


@pytest.mark.parametrize("name", ["h100_decode_eager.json.gz", "h100_decode_graph.json.gz", "serve_cpu.json.gz"])
def test_categories_add_up_and_reading_it_again_gives_the_same_trace(name: str, tmp_path: Path) -> None:
    there_and_back(SAMPLES / name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("path", real_traces.parameters(real_traces.DISTINCT))
def test_recordings_come_back_too(path: Path, tmp_path: Path) -> None:
    there_and_back(path, tmp_path)


def test_ranks_threads_and_unfinished_work_come_back(tmp_path: Path) -> None:
    rows = [
        {"kind": "os", "name": "read", "ts": 0, "dur": 5, "pid": 83, "tid": 2**40},
        launch(6, 1, pid=83, tid=0, correlation=1),
        kernel(10, 5, stream=0, correlation=1, launch_id=2, pid=None, tid=None),
        kernel(20, 0, stream=0, args='{"finished": false}'),
        {"kind": "graph", "name": "replay", "ts": 30, "dur": 5, "rank": 3},
        launch(6, 1, pid=83, tid=0, correlation=1, rank=3),
        kernel(40, 5, device=0, correlation=1, launch_id=6, rank=3),
        annotation("a", 50, 10, rank=3, pid=83),
        annotation("crosses", 55, 10, rank=3, pid=83),
    ]
    columns = (
        "rank, kind, name, ts, dur, device, stream, correlation, launch_id IS NOT NULL AS linked, "
        "CASE WHEN device IS NULL THEN pid END AS pid, CASE WHEN device IS NULL THEN tid END AS tid"
    )
    query = f"SELECT {columns} FROM events ORDER BY ALL"
    sources = tuple(SourceInfo(f"{rank}.json", "kineto", rank, "assigned") for rank in (0, 3))
    exported(tmp_path, rows, sources=sources)
    with tracekit.open(tmp_path / "t.parquet") as trace, tracekit.open(tmp_path / "t.json") as back:
        assert back.sql(query).to_pylist() == trace.sql(query).to_pylist()
        assert as_set(back.macro("device_time").to_pylist()) == as_set(trace.macro("device_time").to_pylist())
        assert back.sql("FROM unfinished").num_rows == 1
        assert back.footer.ranks == (0, 3)


def test_counters_of_devices_come_back(tmp_path: Path) -> None:
    """What was counted at a moment, and from one time to another: of the same device, and with the same reader's view
    of whose they are.
    """
    where = {"kind": "counter", "pid": None, "tid": None}
    sampled = {"name": "dram__throughput.avg.pct_of_peak_sustained_elapsed", "args": '{"":33.5}', **where}
    rows = [
        launch(0, 1, rank=1, pid=83, id=1),
        kernel(10, 5, device=1, rank=1, launch_id=1, id=2, correlation=1),
        kernel(0, 900, device=3, id=3),
        *(
            {"ts": ts, "device": device, "rank": rank, **sampled}
            for ts in (100, 200, 300)
            for rank, device in [(0, 3), (1, 1)]
        ),
        {"name": "k", "ts": 400, "dur": 10, "device": 1, "rank": 1, "args": '{"dram__bytes.sum":8.5}', **where},
        {"name": "crosses", "ts": 405, "dur": 10, "device": 1, "rank": 1, "args": '{"dram__bytes.sum":9.5}', **where},
        {"name": "of the host", "ts": 500, "rank": 1, "kind": "counter", "pid": 83, "tid": 4, "args": '{"x":1.5}'},
    ]
    columns = "rank, name, ts, dur, device, pid, tid, args"
    counted = f"SELECT {columns} FROM events WHERE kind = 'counter' ORDER BY ALL"
    sources = tuple(SourceInfo(f"{rank}.json", "kineto", rank, "assigned") for rank in (0, 1))
    exported(tmp_path, rows, sources=sources)
    with tracekit.open(tmp_path / "t.parquet") as trace, tracekit.open(tmp_path / "t.json") as back:
        assert back.sql(counted).to_pylist() == trace.sql(counted).to_pylist()
        ranges = "SELECT rank, device, name, launch_id IS NULL AS alone, dram_bytes, problem FROM range_counters()"
        for query in (ranges, "FROM kernel_metrics(min_samples := 1)"):
            assert (found := back.sql(f"{query} ORDER BY ALL").to_pylist()) == trace.sql(
                f"{query} ORDER BY ALL"
            ).to_pylist()
            assert found


def test_numbers_told_wrong_are_left_as_they_are(tmp_path: Path) -> None:
    document = exported(tmp_path, [kernel(0, 1), op(0, 1)])
    files: list[Path] = []
    for told in ("no JSON", "[]", '{"processes": 3}', '{"processes": {"1": [0]}}', '{"threads": {"1": "x"}}'):
        document["otherData"]["renumbered"] = told
        files.append(tmp_path / f"{len(files)}.json")
        files[-1].write_text(json.dumps(document))
    with tracekit.open(files) as back:
        assert back.footer.ledger.by_kind == {"kernel": 5, "op": 5}
