"""What is wrong with a file is said with its name and place; what is right in it is kept; nothing is made up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tracekit.convert import convert
from tracekit.errors import MalformedTraceError, TracekitError, TruncatedTraceError, UnknownFormatError, UsageError
from tracekit.footer import Footer
from tracekit.store import read_footer

OP: dict[str, Any] = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 9, "tid": 9, "ts": 100, "dur": 50}
LAUNCH: dict[str, Any] = {
    "ph": "X",
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
    "pid": 9,
    "tid": 9,
    "ts": 110.5,
    "dur": 10,
    "args": {"correlation": 7},
}
KERNEL: dict[str, Any] = {
    "ph": "X",
    "cat": "kernel",
    "name": "k",
    "pid": 0,
    "tid": 7,
    "ts": 130.25,
    "dur": 1.5,
    "args": {"device": 0, "stream": 7, "correlation": 7},
}
GOOD = [OP, LAUNCH, KERNEL]
ROWS = [("op", "aten::add", 0, 50_000), ("launch", "cudaLaunchKernel", 10_500, 10_000), ("kernel", "k", 30_250, 1_500)]


def document(*events: object, **around: object) -> bytes:
    return json.dumps({"schemaVersion": 1, **around, "traceEvents": list(events)}).encode()


def read(
    path: Path, content: bytes | None = None, *, allow_partial: bool = False
) -> tuple[list[tuple[Any, ...]], Footer]:
    """Convert; kind, name, ts, dur of all rows by id, and the footer."""
    if content is not None:
        path.write_bytes(content)
    out = path.with_name("out.parquet")
    footer = convert([path], out, force=True, allow_partial=allow_partial)
    assert footer.ledger.read == footer.ledger.stored + sum(footer.ledger.skipped.values())
    return select(out), footer


def select(out: Path, columns: str = "kind, name, ts, dur") -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(f"SELECT {columns} FROM read_parquet('{out}') ORDER BY id").fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_an_empty_trace_is_a_trace(path: Path) -> None:
    assert read(path, document())[0] == []


def test_the_good_file_of_this_module(path: Path) -> None:
    rows, footer = read(path, document(*GOOD))
    assert rows == ROWS
    assert (footer.ledger.repaired, footer.ledger.skipped) == ({}, {})


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", MalformedTraceError, "trace.json: the file is empty (0 bytes"),
        (b" \n ", MalformedTraceError, "trace.json: the file is empty (0 bytes"),
        (b'{"a": 1}', UnknownFormatError, "trace.json: JSON without a list of trace events"),
        (b"[]", UnknownFormatError, "trace.json: a JSON list, but not of trace events"),
        (b'[{"a": 1}, 2]', UnknownFormatError, "trace.json: a JSON list, but not of trace events"),
        (b"PK\x03\x04 not JSON", UnknownFormatError, "trace.json: no reader knows this format; expected is"),
        (b'{"schemaVersion": 1, "traceEve', MalformedTraceError, "trace.json: JSON breaks at byte 21 "),
        (b'{"schemaVersion": 1, x "traceEvents": 1', MalformedTraceError, "trace.json: JSON breaks at byte 21 "),
        (b'{"traceEvents": [{"ph": "X", "na', MalformedTraceError, "trace.json: the file ends at byte 17 before one"),
        (
            b'{"traceEvents": [{tid": 7, "ph": "X", "ts": 1}]}',
            MalformedTraceError,
            "the first unreadable one is at byte 17",
        ),
        (b"PAR1 some table PAR1", UnknownFormatError, "trace.json: Parquet, not a profiler's file"),
        (gzip.compress(document(*GOOD), mtime=0)[:12], MalformedTraceError, "trace.json: "),
    ],
)
def test_a_file_with_nothing_to_keep_is_refused_with_its_name_and_place(
    path: Path, content: bytes, error: type[TracekitError], message: str
) -> None:
    with pytest.raises(error) as caught:
        read(path, content)
    assert message in str(caught.value)
    assert sorted(child.name for child in path.parent.iterdir()) == ["trace.json"]


def test_a_missing_file_and_an_existing_output_are_usage_errors(path: Path) -> None:
    out = path.with_name("out.parquet")
    with pytest.raises(UsageError, match=r"trace\.json: no such file"):
        convert([path], out)
    path.write_bytes(document(*GOOD))
    out.write_text("mine")
    with pytest.raises(UsageError, match=r"out\.parquet exists; pass --force"):
        convert([path], out)
    assert out.read_text() == "mine"


def test_the_input_is_never_overwritten(path: Path) -> None:
    path.write_bytes(document(*GOOD))
    for paths in ([path], [path.parent]):
        with pytest.raises(UsageError, match=r"trace\.json is one of the files to read"):
            convert(paths, path, force=True)
    assert path.read_bytes() == document(*GOOD)


@pytest.mark.parametrize("compressed", [False, True], ids=["json", "gzip"])
def test_a_file_cut_short_gives_its_whole_events_and_says_where(path: Path, compressed: bool) -> None:
    whole = document(*GOOD)
    place = whole.index(b'"ts": 130.25')
    content = gzip.compress(whole[:place], mtime=0)[:-8] if compressed else whole[:place]
    rows, footer = read(path, content, allow_partial=True)
    start_of_kernel = whole.index(b'{"ph": "X", "cat": "kernel"')
    assert rows == ROWS[:2]
    assert footer.sources[0].truncated_at == start_of_kernel

    with pytest.raises(
        TruncatedTraceError, match=rf"trace\.json ends early.* byte {start_of_kernel}.* 2 events"
    ) as caught:
        read(path)
    assert caught.value.exit_code == 4
    assert select(path.with_name("out.parquet")) == rows  # kept all the same


@pytest.mark.parametrize("ending", [b"", b"]", b"\n"], ids=["no bracket", "no brace", "newline"])
def test_a_file_that_only_lacks_its_closing_keeps_all_events(path: Path, ending: bytes) -> None:
    rows, footer = read(path, document(*GOOD)[:-2] + ending, allow_partial=True)
    assert rows == ROWS
    assert footer.sources[0].truncated_at is not None


def test_a_bare_list_and_traceevents_within_traceevents_load(path: Path) -> None:
    assert read(path, json.dumps(GOOD).encode())[0] == ROWS
    assert read(path, json.dumps({"traceEvents": {"traceEvents": GOOD}}).encode())[0] == ROWS


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "NaN", "Infinity", "-Infinity"])
def test_a_bare_non_finite_number_does_not_cost_the_event(path: Path, number: str) -> None:
    content = document(*GOOD).replace(b'"device": 0', b'"memory bandwidth (GB/s)": %s, "device": 0' % number.encode())
    assert read(path, content)[0] == ROWS


def test_a_time_that_is_no_number_costs_the_event_and_is_counted(path: Path) -> None:
    odd = [{**KERNEL, "ts": bad} for bad in ("abc", None, [1], 1e300)]
    content = document(*GOOD, *odd).replace(b"null", b"NaN")
    rows, footer = read(path, content)
    assert rows == ROWS
    assert footer.ledger.skipped == {"unusable timestamp": 3, "no timestamp": 1}


def test_raw_backslashes_in_names(path: Path) -> None:
    illegal = b"torch\\cuda\\__init__.py(219): f"
    legal = b"C:\\torch\\nn\\functional.py(12): g"
    content = document({**OP, "name": "ILLEGAL"}, {**OP, "name": "LEGAL", "ts": 200})
    rows, footer = read(path, content.replace(b"ILLEGAL", illegal).replace(b"LEGAL", legal))
    assert [row[1] for row in rows] == [illegal.decode(), legal.decode()]
    assert footer.ledger.repaired["raw backslash in a string"] == 1
    assert footer.ledger.repaired["control character in a name, written as an escape"] == 1


@pytest.mark.parametrize(
    ("raw", "name", "repair"),
    [
        (b"a\xff\xfe\x80k", "a\ufffd\ufffd\ufffdk", "invalid UTF-8 replaced"),
        (b"a\x01b", "a\x01b", "control character in a string"),
        (b"a\tb", "a\\tb", "control character in a string"),
        (b"a\\ud800b", "a?b", "lone surrogate replaced"),
        (b"<T> 'q' \\\"[bold]", "<T> 'q' \"[bold]", None),
    ],
    ids=["utf-8", "control", "tab", "surrogate", "template"],
)
def test_bytes_that_do_not_belong_in_a_name(path: Path, raw: bytes, name: str, repair: str | None) -> None:
    rows, footer = read(path, document({**OP, "name": "NAME"}, LAUNCH, KERNEL).replace(b"NAME", raw))
    assert rows == [("op", name, 0, 50_000), *ROWS[1:]]
    assert repair is None or footer.ledger.repaired[repair] == 1


def test_integers_beyond_64_bits(path: Path) -> None:
    huge = {**OP, "args": {"Comms Id": 2**64 - 1, "External id": 2**70, "Ev Idx": 5}, "pid": 2**64}
    rows, _ = read(path, document(huge, LAUNCH, KERNEL))
    assert rows == ROWS


def test_numbers_given_as_text_are_numbers(path: Path) -> None:
    op = {**OP, "pid": "9", "tid": "9", "ts": "100.000", "dur": "50"}
    kernel = {**KERNEL, "pid": 0.0, "tid": "stream 7", "args": {"device": "0", "stream": "7", "correlation": "7"}}
    rows, footer = read(path, document(op, LAUNCH, kernel))
    assert rows == ROWS
    assert select(path.with_name("out.parquet"), "pid, tid, device, stream, correlation") == [
        (9, 9, None, None, None),
        (9, 9, None, None, 7),
        (0, 7, 0, 7, 7),
    ]
    assert footer.ledger.repaired == {"process or thread given as text": 1}


def test_nanoseconds_of_epoch_times_survive(path: Path) -> None:
    touching = [
        b'{"ph": "X", "cat": "kernel", "name": "a", "pid": 0, "tid": 7, "ts": 1714000000000001.001, "dur": 0.999}',
        b'{"ph": "X", "cat": "kernel", "name": "b", "pid": 0, "tid": 7, "ts": 1714000000000002.000, "dur": 1}',
    ]
    rows, footer = read(path, b'{"traceEvents": [' + b", ".join(touching) + b"]}")
    assert rows == [("kernel", "a", 0, 999), ("kernel", "b", 999, 1000)]
    assert footer.origin_ns == 1714000000000001001


def test_duplicate_keys_do_not_cost_the_event(path: Path) -> None:
    content = document(*GOOD).replace(b'"name": "k"', b'"name": "x", "name": "k"')
    rows, footer = read(path, content)
    assert rows == ROWS
    assert footer.ledger.repaired == {"duplicate key, last one kept": 1}


def test_events_that_lack_something(path: Path) -> None:
    without = [{key: value for key, value in OP.items() if key != left} for left in ("ts", "name", "cat", "ph")]
    rows, footer = read(path, document(*without, {**KERNEL, "args": None}, {**KERNEL, "args": "x"}, None, 7))
    assert sorted(rows) == [
        ("annotation", "aten::add", 0, 50_000),
        ("kernel", "k", 30_250, 1_500),
        ("kernel", "k", 30_250, 1_500),
        ("op", "", 0, 50_000),
    ]
    assert footer.ledger.skipped == {"no timestamp": 1, "no phase": 1, "not an object": 2}
    assert footer.ledger.repaired == {"category missing is not known, kept as annotation": 1}


def test_a_row_without_an_end_lasts_until_the_trace_ends_on_the_host_and_no_time_on_a_device(path: Path) -> None:
    unfinished = {key: value for key, value in OP.items() if key != "dur"}
    rows, footer = read(path, document({**OP, "dur": -1}, {**unfinished, "ts": 120}, LAUNCH, {**KERNEL, "dur": -5}))
    assert rows == [
        ("op", "aten::add", 0, 30_250),
        ("launch", "cudaLaunchKernel", 10_500, 10_000),
        ("op", "aten::add", 20_000, 10_250),
        ("kernel", "k", 30_250, 0),
    ]
    assert footer.ledger.repaired == {"no end recorded": 3}
    assert select(path.with_name("out.parquet"), "args") == [
        ('{"finished": false}',),
        (None,),
        *[('{"finished": false}',)] * 2,
    ]


def test_zero_durations_and_instants_take_no_time(path: Path) -> None:
    memory = {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 9,
        "tid": 9,
        "ts": 115,
        "args": {"Bytes": -512},
    }
    rows, _ = read(path, document(OP, memory, {**KERNEL, "cat": "gpu_memset", "name": "Memset (Device)", "dur": 0}))
    assert rows == [
        ("op", "aten::add", 0, 50_000),
        ("instant", "[memory]", 15_000, 0),
        ("memset", "Memset (Device)", 30_250, 0),
    ]


def test_only_metadata_is_a_trace_without_events(path: Path) -> None:
    rows, footer = read(
        path, document({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "x"}})
    )
    assert rows == []
    assert footer.ledger.skipped == {"metadata (names and sort order of processes)": 1}


def test_devices_are_told_by_their_arguments_never_by_the_size_of_a_pid(path: Path) -> None:
    host = {**OP, "pid": 0, "tid": 0}
    far = {**KERNEL, "pid": 7_168_000_000, "args": {"device": 1, "stream": 0}}
    read(path, document(host, KERNEL, far, {**KERNEL, "pid": 1001, "args": {}}))
    assert select(path.with_name("out.parquet"), "kind, device, stream") == [
        ("op", None, None),
        ("kernel", 0, 7),
        ("kernel", 1, 0),
        ("kernel", 1001, 7),
    ]


def test_launches_are_matched_by_correlation_whatever_they_are_called(path: Path) -> None:
    names = ["hipModuleLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernelExC", "somethingNew"]
    launches = [{**LAUNCH, "name": name, "args": {"correlation": 20 + n}} for n, name in enumerate(names)]
    kernels = [{**KERNEL, "tid": 0, "args": {"device": 0, "stream": 0, "correlation": 20 + n}} for n in range(4)]
    read(path, document(*launches, *kernels))
    linked = select(path.with_name("out.parquet"), "kind, correlation, launch_id IS NOT NULL")
    assert [row for row in linked if row[0] == "kernel"] == [("kernel", 20 + n, True) for n in range(4)]


def test_two_ranks_that_use_the_same_correlation_ids(tmp_path: Path) -> None:
    for rank in (0, 1):
        info = {"rank": rank, "world_size": 2}
        (tmp_path / f"r{rank}.json").write_bytes(document(*GOOD, distributedInfo=info))
    out = tmp_path / "both.parquet"
    footer = convert([tmp_path], out)
    assert footer.ranks == (0, 1)
    assert select(out, "id, rank, kind, launch_id, op_id, parent_id") == [
        (0, 0, "op", None, None, None),
        (1, 0, "launch", None, 0, 0),
        (2, 0, "kernel", 1, 0, None),
        (3, 1, "op", None, None, None),
        (4, 1, "launch", None, 3, 3),
        (5, 1, "kernel", 4, 3, None),
    ]


def test_files_that_do_not_know_their_rank_get_different_ones(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(document(KERNEL))
    footer = convert([tmp_path / "b.json", tmp_path / "a.json"], tmp_path / "out.parquet")
    assert [(source.path, source.rank, source.rank_from) for source in footer.sources] == [
        ("a.json", 0, "assigned"),
        ("b.json", 1, "assigned"),
    ]


@pytest.mark.parametrize(
    "name", ["rank-34.x.pt.trace.json", "trace_rank34.json", "1782-TP-34-DECODE.json", "worker34_step.json"]
)
def test_the_rank_comes_from_the_file_name_if_the_file_does_not_say(tmp_path: Path, name: str) -> None:
    _, footer = read(tmp_path / name, document(KERNEL))
    assert [(source.rank, source.rank_from) for source in footer.sources] == [(34, "file name")]


def test_the_collector_knows_ranks_better_than_files_and_names(tmp_path: Path) -> None:
    """One rank of two files, in a folder; a file nobody spoke for keeps what it says, another gets a free number."""
    said = {"a_rank9.json": {}, "b.json": {"rank": 5, "world_size": 6}, "c.json": {"rank": 0}, "d.json": {}}
    for name, info in said.items():
        around = {"deviceProperties": [{"id": 0, "name": "H100"}], **({"distributedInfo": info} if info else {})}
        (tmp_path / name).write_bytes(document(KERNEL, **around))
    ranks = {tmp_path / "a_rank9.json": 3, tmp_path / "b.json": 3}
    footer = convert([tmp_path], tmp_path / "out.parquet", ranks=ranks)
    assert [(source.path, source.rank, source.rank_from, source.world_size) for source in footer.sources] == [
        ("c.json", 0, "distributedInfo", None),
        ("d.json", 1, "assigned", None),
        ("a_rank9.json", 3, "collector", None),
        ("b.json", 3, "collector", 6),
    ]
    assert [(device.rank, device.device) for device in footer.devices] == [(0, 0), (1, 0), (3, 0)]
    assert select(tmp_path / "out.parquet", "id, rank, device") == [(0, 0, 0), (1, 1, 0), (2, 3, 0), (3, 3, 0)]


def test_what_the_collector_knows_is_stored_over_what_files_say(path: Path) -> None:
    path.write_bytes(document(record_shapes=1, with_stack=1))
    out = path.with_name("out.parquet")
    assert convert([path], out).capture == {"record_shapes": 1, "with_stack": 1}
    known = {"with_stack": 0, "window": {"steps": 3, "ended_by": ["steps"]}, "partial": ["x"]}
    footer = convert([path], out, force=True, capture=known)
    assert footer.capture == {"record_shapes": 1, **known}
    assert (read_footer(out), footer.partial) == (footer, ("x",))


def test_what_is_no_trace_in_a_folder_is_passed_over_with_a_word(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(document(*GOOD))
    (tmp_path / "other.json").write_bytes(b'{"a": 1}')
    (tmp_path / "sidecar.json").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"hello")
    out = tmp_path / "out.parquet"
    footer = convert([tmp_path], out)
    assert select(out) == ROWS
    assert [note.removeprefix(f"{tmp_path}/").split(":")[0] for note in footer.ledger.ignored_files] == [
        "notes.txt",
        "other.json",
        "sidecar.json",
    ]


def test_secrets_never_reach_the_file(path: Path) -> None:
    secrets = [
        "hf_" + "Q" * 30,
        "AKIA" + "ABCDEFGH" * 2,
        "s3cr3t-value-of-it",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln",
        "/home/jo/bin",
    ]
    op = {
        **OP,
        "name": f"load HF_TOKEN={secrets[0]}",
        "args": {
            "Authorization": f"Bearer {secrets[3]}",
            "env": {"AWS": secrets[1]},
            "Concrete Inputs": [f"PATH={secrets[4]}", "", "3"],
            "Input type": [f"api_key={secrets[2]}"],
        },
    }
    read(path, document(op, PATH=secrets[4], environ={"AWS_SECRET": secrets[1]}, host_name="jo-laptop"))
    out = path.with_name("out.parquet")
    text = json.dumps(select(out, "*")) + out.read_bytes().decode("latin-1")
    assert [secret for secret in [*secrets, "jo-laptop"] if secret in text] == []
    assert select(out, "name, scalars") == [("load HF_TOKEN=[redacted]", '["PATH=[redacted]","","3"]')]
