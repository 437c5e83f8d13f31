"""Runs on disk, read back window by window: each row once, in the order of the runs, with all columns."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tracekit.spool import DEVICE_CLASSES, HOST_CLASSES, Spool


def table(ts: list[int], dur: list[int | None] | None = None, **columns: list[Any]) -> pa.Table:
    texts = {
        name: pa.array(values, pa.string()).dictionary_encode() if isinstance(values[0], str) else pa.array(values)
        for name, values in columns.items()
    }
    return pa.table({"ts": pa.array(ts, pa.int64()), "dur": pa.array(dur or [0] * len(ts), pa.int64()), **texts})


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def add(spool: Spool, row_class: str, rows: pa.Table) -> None:
    spool.accept(row_class, spool.write(rows))


def test_empty(spool: Spool) -> None:
    assert spool.write(table([])) is None
    spool.accept("host", None)
    Spool.discard(None)
    assert spool.windows(HOST_CLASSES, 10) == []
    assert spool.read("host", (0, 10)) is None
    assert spool.rows(HOST_CLASSES) == 0
    assert spool.first_ts() is None
    assert spool.last_end() == 0
    assert spool.column("device", "correlation").to_pylist() == []


def test_one_row(spool: Spool) -> None:
    add(spool, "host", table([7], [5], name=["a"]))
    assert spool.windows(HOST_CLASSES, 10) == [(7, 8)]
    assert spool.windows(DEVICE_CLASSES, 10) == []
    found = spool.read("host", (7, 8))
    assert found is not None
    assert found.to_pylist() == [{"ts": 7, "dur": 5, "name": "a"}]
    assert (spool.first_ts(), spool.last_end(), spool.rows(["host", "device"])) == (7, 12, 1)


def test_a_row_without_an_end_ends_where_it_starts(spool: Spool) -> None:
    add(spool, "host", table([7, 9], [None, -1714]))
    assert spool.last_end() == 9


def test_what_was_not_accepted_does_not_count(spool: Spool, tmp_path: Path) -> None:
    run = spool.write(table([1, 2]))
    assert spool.rows(["host"]) == 0
    Spool.discard(run)
    assert list(tmp_path.iterdir()) == []


def test_columns_that_some_runs_lack_are_null_there_and_texts_share_a_dictionary(spool: Spool) -> None:
    add(spool, "host", table([1, 5], name=["b", "a"], bytes=[10, 11]))
    add(spool, "host", table([2, 4], name=["c", "b"], label=["x", "y"]))
    add(spool, "host", table([9]))
    found = spool.read("host", (0, 6))
    assert found is not None
    assert found.select(["ts", "name", "bytes", "label"]).to_pylist() == [
        {"ts": 1, "name": "b", "bytes": 10, "label": None},
        {"ts": 5, "name": "a", "bytes": 11, "label": None},
        {"ts": 2, "name": "c", "bytes": None, "label": "x"},
        {"ts": 4, "name": "b", "bytes": None, "label": "y"},
    ]
    assert found.column("name").num_chunks == 1
    assert found.column("name").chunk(0).dictionary.to_pylist() == ["b", "a", "c"]
    assert spool.column("host", "bytes").to_pylist() == [10, 11, None, None, None]
    assert spool.column("host", "label").to_pylist() == [None, None, "x", "y", None]
    assert spool.column("host", "context").to_pylist() == [None] * 5


@pytest.mark.parametrize("rows", [1, 3, 64, 1000])
def test_windows_hold_every_row_once(tmp_path: Path, rows: int) -> None:
    rng = np.random.default_rng(rows)
    for trial in range(40):
        directory = tmp_path / str(trial)
        directory.mkdir()
        spool = Spool(directory)
        written: list[tuple[int, int]] = []
        classes = ("python", "host", "launch")
        for _ in range(int(rng.integers(1, 8))):
            count = int(rng.integers(1, 60))
            ts = np.sort(rng.integers(-5, int(rng.choice([1, 10, 1000])), count)).tolist()
            ids = list(range(len(written), len(written) + count))
            written += zip(ts, ids, strict=True)
            add(spool, str(rng.choice(classes)), table(ts, number=ids))
        windows = spool.windows(classes, rows)
        assert windows[0][0] == min(written)[0] == spool.first_ts()
        assert windows[-1][1] == max(written)[0] + 1
        assert all(first[1] == second[0] for first, second in itertools.pairwise(windows))
        found: list[tuple[int, int]] = []
        for window in windows:
            assert window[0] < window[1]
            for row_class in classes:
                part = spool.read(row_class, window)
                found += [] if part is None else zip(*part.select(["ts", "number"]).to_pydict().values(), strict=True)
            assert all(window[0] <= ts for ts, _ in found[-1:])
        assert sorted(found) == sorted(written)
