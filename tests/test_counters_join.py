"""Whose are the counters? Measured kernels and those of the trace: joined one to one, or left alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.ncu_tables import GRID, SHAPE, UNITS, analyze, measured, opened, raw, work

FULL = "void ns::k<4, ns::Add<float>, char* >(int, ns::Add<float>)"


def matches(
    path: Path, rows: Sequence[dict[str, Any]], page: str, capability: tuple[int, int] | None = None
) -> list[str]:
    """What kernel_counters says of each kernel, by name and geometry."""
    with opened(path, rows, page, capability) as trace:
        found = trace.sql("SELECT name, match, ncu_kernel FROM kernel_counters ORDER BY rank, device, name, grid_x")
    for row in found.to_pylist():
        assert (row["ncu_kernel"] is None) == (row["match"] in ("none", "ambiguous", "other_gpu"))
    return [row["match"] for row in found.to_pylist()]


def test_names_are_compared_ever_less_strictly(tmp_path: Path) -> None:
    """Each measured name with the same kernel of the trace, at a geometry of its own."""
    names = {
        FULL: "exact",
        "void ns::k<(int)4, ns::Add<float>, char *>(int, T2)": "signature",
        "void k<4, Add<float>, char *>(int, T2)": "simplified",
        "k": "function",
        "_ZN2ns1kILi4EEEvi": "function",
        "void ns::k<4, ns::Mul<float>, char*>(int, ns::Mul<float>)": "none",
        "kk": "none",
    }
    rows = [work(10 * at, 9, FULL, grid_x=at) for at in range(len(names))]
    page = raw(UNITS, *(measured(name, id=at, grid=f"({at}, 1, 1)") for at, name in enumerate(names)))
    assert matches(tmp_path, rows, page) == list(names.values())


def test_another_geometry_is_another_kernel(tmp_path: Path) -> None:
    rows = [work(0, 9, "k"), work(10, 9, "k", grid_x=9), work(20, 9, "k", grid_x=10, block_x=64)]
    page = raw(UNITS, measured("k"), measured("k", id=1, grid="(10, 1, 1)"))
    assert matches(tmp_path, rows, page) == ["exact", "none", "none"]


@pytest.mark.parametrize(("columns", "grid"), [(dict.fromkeys(SHAPE), GRID), ({}, "")])
def test_geometry_that_one_side_does_not_know_fits_any(tmp_path: Path, columns: dict[str, Any], grid: str) -> None:
    rows = [work(0, 9, "k", **columns)]
    assert matches(tmp_path, rows, raw(UNITS, measured("k", grid=grid))) == ["exact"]


def test_what_could_be_several_is_none(tmp_path: Path) -> None:
    """One side prints bare names: two instances of a template are then one kernel there, of which nobody can tell."""
    instances = ["void ns::k<1>(int)", "void ns::k<2>(int)"]
    rows = [work(10 * at, 9, name) for at, name in enumerate(instances)]
    assert matches(tmp_path, rows, raw(UNITS, measured("k"))) == ["ambiguous", "ambiguous"]
    page = raw(UNITS, *(measured(name, id=at) for at, name in enumerate(instances)))
    assert matches(tmp_path, [work(0, 9, "k")], page) == ["ambiguous"]
    result = analyze(tmp_path, [work(0, 9, "k")], page)
    assert (result.summary[0]["ambiguous_ns"], result.coverage.explained_ns) == (9, 0)
    assert result.coverage.reason == "of the kernel time, 100.0% ambiguous by name and geometry"


def test_a_better_match_of_another_kernel_is_not_taken(tmp_path: Path) -> None:
    rows = [work(0, 9, "void ns::k<1>(int)"), work(10, 9, "k")]
    assert matches(tmp_path, rows, raw(UNITS, measured("ns::k<1>(int)"))) == ["none", "signature"]


def test_counters_of_another_gpu_are_not_joined(tmp_path: Path) -> None:
    rows = [work(0, 9, "both"), work(10, 9, "other"), work(20, 9, "same")]
    names = (("both", "12.0"), ("both", "9.0"), ("other", "12.0"), ("same", "9.0"))
    page = raw(UNITS, *(measured(name, id=at, cc=cc) for at, (name, cc) in enumerate(names)))
    assert matches(tmp_path, rows, page, (9, 0)) == ["exact", "other_gpu", "exact"]
    assert matches(tmp_path, rows, page) == ["ambiguous", "exact", "exact"]
    with opened(tmp_path, rows, page, (9, 0)) as trace:
        result = trace.analyze("counters")
    assert result.findings[0].title == (
        "kernels with 33.3% of the kernel time were measured on another kind of GPU, and are not joined"
    )
    assert (result.summary[0]["other_gpu_ns"], result.findings[0].evidence) == (9, (2,))


def strictness(one: tuple[str, int], other: tuple[str, int]) -> int:
    """1: the same name; 4: one is the bare name of the other; 9: no pair. Bare names have one letter here."""
    (name, size), (kernel_name, measured_size) = one, other
    if size != measured_size or name[0] != kernel_name[0]:
        return 9
    return 1 if name == kernel_name else 4 if 1 in (len(name), len(kernel_name)) else 9


def naive_match(one: tuple[str, int], traced: Sequence[tuple[str, int]], known: Sequence[tuple[str, int]]) -> str:
    best = min(strictness(one, other) for other in known)
    pairs = [other for other in known if strictness(one, other) == best]
    if best == 9:
        return "none"
    if len(pairs) > 1:
        return "ambiguous"
    takers = [strictness(another, pairs[0]) for another in traced]
    if min(takers) < best:
        return "none"
    return "ambiguous" if takers.count(best) > 1 else {1: "exact", 4: "function"}[best]


@pytest.mark.parametrize("seed", range(2))
def test_matches_against_every_pair(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    names = [f"{function}{arguments}" for function in "abcdefgh" for arguments in ("", "<1>", "<2>")]
    pool = [(name, size) for name in names for size in (1, 2, 3)]
    traced, known = (sorted(random.sample(pool, 40)) for _ in range(2))
    rows = [work(10 * at, 9, name, grid_x=size) for at, (name, size) in enumerate(traced)]
    page = raw(UNITS, *(measured(name, id=at, grid=f"({size}, 1, 1)") for at, (name, size) in enumerate(known)))
    expected = [naive_match(one, traced, known) for one in traced]
    assert matches(tmp_path, rows, page) == expected
    assert set(expected) == {"exact", "function", "ambiguous", "none"}
