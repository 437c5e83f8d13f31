"""Ranks of files and of the processes in them: as said, as known, else numbers that no other has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tracekit.ranks import assign_ranks, rank_in_name
from tracekit.source import SourceRead
from tracekit.spool import Spool


def source(name: str, rank: int | None = None, labels: str = "", known: Mapping[str, int] | None = None) -> SourceRead:
    """A file of one process, or of those with these labels. known: ranks that the reader gives to labels."""
    of_label = dict(known or {})
    return SourceRead(
        Path(name), "any", Spool(Path()), rank=rank, labels={*labels.split(), *of_label}, label_ranks=of_label
    )


def ranks(*sources: SourceRead, known: Mapping[Path, int] | None = None) -> list[tuple[str, str | None, int, str]]:
    """File, label, rank, and where it is from."""
    of_path = assign_ranks(sources, known or {})
    return [(one.path.name, label, rank, one.rank_from) for one in sources for label, rank in of_path[one.path].items()]


def test_no_files() -> None:
    assert ranks() == []


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([source("a")], [("a", None, 0, "default")]),
        ([source("a", 3)], [("a", None, 3, "default")]),
        ([source("b"), source("a")], [("b", None, 1, "assigned"), ("a", None, 0, "assigned")]),
        ([source("a"), source("b", 0)], [("a", None, 1, "assigned"), ("b", None, 0, "default")]),
        ([source("a", 2), source("b", 2)], [("a", None, 2, "default"), ("b", None, 2, "default")]),
    ],
    ids=["one", "one that says", "two", "two, of which one says", "two of one rank"],
)
def test_files_of_one_process(sources: list[SourceRead], expected: list[tuple[str, str | None, int, str]]) -> None:
    """rank_from is the reader's to say where the file has a rank."""
    assert ranks(*sources) == expected


def test_the_collector_knows_better() -> None:
    known = {Path("a"): 5}
    assert ranks(source("a", 3), source("b"), known=known) == [("a", None, 5, "collector"), ("b", None, 0, "assigned")]


def test_processes_of_a_file() -> None:
    """Rows without a label are of the lowest rank."""
    expected = [("a", None, 1, "process label"), ("a", "TP01", 1, "process label"), ("a", "TP03", 3, "process label")]
    assert ranks(source("a", labels="TP01 TP03")) == expected


def test_processes_that_the_reader_knows() -> None:
    expected = [("a", None, 0, "process label"), ("a", "80", 1, "process label"), ("a", "81", 0, "process label")]
    assert [*ranks(source("a", known={"80": 1, "81": 0}))] == expected


def test_two_files_of_several_processes_never_share_a_rank() -> None:
    of_path = assign_ranks(
        [source("a", known={"80": 0, "81": 1}), source("b", known={"80": 0, "81": 1}), source("c", 1)], {}
    )
    assert of_path == {
        Path("a"): {None: 2, "80": 2, "81": 3},
        Path("b"): {None: 4, "80": 4, "81": 5},
        Path("c"): {None: 1},
    }


def test_files_that_name_the_ranks_of_their_processes_share_them() -> None:
    first, second = source("a", labels="TP00 TP01"), source("b", labels="TP00")
    by_mpi = source("c", known={"80": 1, "81": 2})
    by_mpi.rank_from = "MPI"
    of_path = assign_ranks([first, second, by_mpi], {})
    assert of_path == {
        Path("a"): {None: 0, "TP00": 0, "TP01": 1},
        Path("b"): {None: 0, "TP00": 0},
        Path("c"): {None: 1, "80": 1, "81": 2},
    }
    assert [one.rank_from for one in (first, second, by_mpi)] == ["process label", "process label", "MPI"]


def test_processes_that_other_files_have_too() -> None:
    """They get the ranks that those files have, the others what is free."""
    both = source("both", known={"80": 0, "81": 1, "82": 2})
    first, second = source("first", 1), source("second")
    of_path = assign_ranks([both, first, second], {}, [(both, "80", first), (both, "82", second)])
    assert of_path == {
        Path("both"): {None: 0, "80": 1, "82": 0, "81": 2},
        Path("first"): {None: 1},
        Path("second"): {None: 0},
    }


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("report.sqlite", None),
        ("http_80.sqlite", None),
        ("worker3.json", 3),
        ("TP-2.json", 2),
        ("worker-1.rank3.sqlite", 3),
        ("dp1_pp0_tp0_rank1.1700.pt.trace.json.gz", 1),
    ],
)
def test_ranks_in_names(name: str, rank: int | None) -> None:
    """A machine may be called worker-1; engines name all coordinates of a process."""
    assert rank_in_name(name) == rank
