"""Broken, foreign, locked and unfinished SQLite files: an error with name and reason, no row that was not there before,
and the file and its folder as they were."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import naive_nsys
from tests.command_line import run
from tests.nsys_files import NsysFile
from tests.nsys_reading import Rows, read
from tracekit.convert import convert
from tracekit.errors import MalformedTraceError, TracekitError, UnknownFormatError, UsageError

PAGE = 1024
NOBODY = 65534


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An export of some dozens of pages, alone in its folder: a launch, a kernel and a range a step."""
    folder = tmp_path / "exports"
    folder.mkdir()
    file = NsysFile()
    for step in range(60):
        at = 1_000 * step
        file.nvtx(at, at + 900, f"step {step} " + "x" * 40)
        file.runtime(at + 10, at + 20, correlationId=step + 1)
        file.kernel(at + 50, at + 800, f"kernel_{step}", correlationId=step + 1)
    path = file.write(folder / "serve.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute("VACUUM")
    return path


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Nothing in the folder changes, appears or goes."""

    def look() -> dict[Path, tuple[bytes, int]]:
        return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}

    before = look()
    yield
    assert look() == before


def honest(path: Path, whole: Rows, out: Path) -> bool:
    """Whether the file is refused, with its name in the message. If not, it must have all rows and no others."""
    try:
        rows, _ = read(path, out=out)
    except (MalformedTraceError, UnknownFormatError) as error:
        assert path.name in str(error)
        return True
    assert Counter(rows) == Counter(whole)
    return False


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_the_good_file_of_this_module(path: Path, out: Path) -> None:
    with untouched(path.parent):
        rows, footer = read(path, out=out)
    assert Counter(kind for kind, *_ in rows) == {"annotation": 60, "launch": 60, "kernel": 60}
    assert (footer.ledger.skipped, footer.ledger.repaired) == ({}, {})


def test_a_file_cut_short_anywhere_is_refused(path: Path, out: Path) -> None:
    whole, _ = read(path, out=out)
    content = path.read_bytes()
    places = random.Random(0).sample(range(1, len(content) // PAGE), 5)
    for size in [15, 16, 100, *(PAGE * place for place in places), len(content) - 1]:
        path.write_bytes(content[:size])
        with untouched(path.parent):
            assert honest(path, whole, out)


def test_pages_of_nothing(path: Path, out: Path) -> None:
    """Refused where the page held rows; one that holds none that are stored may go."""
    whole, _ = read(path, out=out)
    content = path.read_bytes()
    refused = 0
    pages = [0, 1, *random.Random(0).sample(range(2, len(content) // PAGE), 8)]
    for page in pages:
        path.write_bytes(content[: page * PAGE] + bytes(PAGE) + content[(page + 1) * PAGE :])
        with untouched(path.parent):
            refused += honest(path, whole, out)
    assert refused > len(pages) // 2


def test_bytes_changed_anywhere_are_an_error_or_what_sqlite_says(path: Path, out: Path) -> None:
    content = path.read_bytes()
    chance = random.Random(0)
    loaded = 0
    for _ in range(16):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 20])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        with untouched(path.parent):
            try:
                _, footer = read(path, out=out)
            except TracekitError as error:
                assert path.name in str(error)
                continue
        loaded += 1
        with suppress(sqlite3.DatabaseError):  # it may be in a table that nobody needs
            assert footer.ledger.read == sum(naive_nsys.event_counts(path).values())
    assert 0 < loaded < 16


# ---- other people's files --------------------------------------------------------------------------------------------


def test_a_database_of_something_else(path: Path, out: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (id INTEGER, start TEXT)")
        connection.commit()
    with untouched(path.parent), pytest.raises(UnknownFormatError, match=r"serve\.sqlite: .*(CUPTI|NVTX|StringIds)"):
        convert([path], out)


def test_exit_codes(path: Path, out: Path) -> None:
    content = path.read_bytes()
    for code, damaged in ((4, b""), (4, content[: len(content) // 2]), (3, b"SQLite format 4\0" + content[16:])):
        path.write_bytes(damaged)
        with untouched(path.parent):
            result = run("convert", path, "-o", out)
        assert (result.exit_code, out.exists()) == (code, False)
        assert path.name in result.output and "Traceback" not in result.output


def test_in_a_folder_the_others_are_read(path: Path, out: Path) -> None:
    whole, _ = read(path, out=out)
    content = path.read_bytes()
    path.with_name("cut.sqlite").write_bytes(content[: len(content) // 2])
    path.with_name("notes.txt").write_text("hello")
    with untouched(path.parent):
        footer = convert([path.parent], out, force=True)
    assert footer.ledger.stored == len(whole)
    assert len(footer.ledger.ignored_files) == 2


def test_a_folder_of_tables_of_which_one_is_cut_short(path: Path, out: Path) -> None:
    folder = path.parent / "serve_pqtdir"
    folder.mkdir()
    for name, rows in naive_nsys.tables(path).items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    kernels = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    kernels.write_bytes(kernels.read_bytes()[:-100])
    with untouched(path.parent), pytest.raises(MalformedTraceError, match=r"serve_pqtdir.*KERNEL"):
        convert([folder], out)


# ---- files in use ----------------------------------------------------------------------------------------------------

_WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    connection.execute(statement)
print("ready", flush=True)
sys.stdin.read()
"""
MORE = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
MORE += "INSERT INTO NVTX_EVENTS (start, \"end\", eventType, text, globalTid) SELECT i, i + 1, 59, 'late', 1 FROM n"


@contextmanager
def written_by_another(path: Path, *statements: str) -> Iterator[None]:
    """Another process, since one that closes a file drops all its own locks on it. It is killed at the end."""
    command = [sys.executable, "-c", _WRITER, str(path), *statements]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        yield
        writer.kill()


def test_a_locked_file(path: Path, out: Path) -> None:
    with (
        written_by_another(path, "BEGIN EXCLUSIVE"),
        untouched(path.parent),
        pytest.raises(MalformedTraceError, match=r"serve\.sqlite: .*locked"),
    ):
        convert([path], out)


def test_a_file_to_which_someone_is_writing(path: Path, out: Path) -> None:
    """What is not committed does not exist."""
    whole, _ = read(path, out=out)
    with written_by_another(path, "BEGIN IMMEDIATE", MORE), untouched(path.parent):
        honest(path, whole, out)


def test_a_write_that_was_broken_off(path: Path, out: Path) -> None:
    """Its pages are in the file already; only the journal knows what was there before."""
    with written_by_another(path, "PRAGMA cache_size = 1", "PRAGMA cache_spill = 1", "BEGIN", MORE):
        pass
    assert path.with_name("serve.sqlite-journal").exists()
    with untouched(path.parent), pytest.raises(MalformedTraceError, match=r"serve\.sqlite: .*journal"):
        convert([path], out)


def test_a_log_with_rows_that_are_not_in_the_file_yet(path: Path, out: Path) -> None:
    with written_by_another(path, "PRAGMA journal_mode = WAL", MORE):
        pass
    assert path.with_name("serve.sqlite-wal").stat().st_size
    with untouched(path.parent), pytest.raises(MalformedTraceError, match=r"serve\.sqlite: .*-wal"):
        convert([path], out)


def test_a_file_that_had_a_log_is_like_any_other(path: Path, out: Path) -> None:
    """Even to read it SQLite would make two files beside it."""
    whole, _ = read(path, out=out)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name]
    with untouched(path.parent):
        assert not honest(path, whole, out)


# ---- rights ----------------------------------------------------------------------------------------------------------


@contextmanager
def nobody() -> Iterator[None]:
    """In here, this process may do no more than the rights of a file say, also if it is root's."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def public(path: Path) -> Iterator[Path]:
    """The file in a folder that anyone may enter, beside one that anyone may write to."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        for folder, rights in (("exports", 0o755), ("output", 0o777)):
            (Path(name) / folder).mkdir()
            (Path(name) / folder).chmod(rights)
        copy = Path(name) / "exports" / path.name
        copy.write_bytes(path.read_bytes())
        yield copy
        copy.parent.chmod(0o755)


def test_a_folder_that_is_read_only(public: Path, out: Path) -> None:
    whole, _ = read(public, out=out)
    public.chmod(0o444)
    public.parent.chmod(0o555)
    with untouched(public.parent), nobody():
        assert not honest(public, whole, public.parents[1] / "output" / "out.parquet")


def test_a_file_that_may_not_be_read(public: Path, out: Path) -> None:
    read(public, out=out)
    public.chmod(0)
    with nobody(), pytest.raises(UsageError, match=r"serve\.sqlite: Permission denied"):
        convert([public], public.parents[1] / "output" / "out.parquet")
