"""Which rank is each process of each file?

A file may say so, by itself or by its name; a collector may know; of a file that holds several processes the reader
may. The rest get free numbers: two processes that were both device 0 must never be added up.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tracekit.source import SourceRead

# Of each file by its path: the rank of each process label in it; None stands for rows without one.
Ranks = dict[Path, dict[str | None, int]]
# A file, a process label in it, and the file whose one process that is.
Same = tuple[SourceRead, str | None, SourceRead]

# The most telling word first: machines are called worker-1, and engines name all coordinates, tp0 before rank8.
_IN_NAMES = tuple(re.compile(rf"(?i)(?:^|[^a-z]){word}[-_ ]?(\d{{1,6}})(?!\d)") for word in ("rank", "tp", "worker"))


def rank_in_name(file: str) -> int | None:
    """The rank that a file's name says, None if it says none."""
    matches = (pattern.search(file) for pattern in _IN_NAMES)
    return next((int(match.group(1)) for match in matches if match is not None), None)


def assign_ranks(sources: Sequence[SourceRead], known: Mapping[Path, int], same: Sequence[Same] = ()) -> Ranks:
    """The ranks of all files, and in each source where its rank is from.

    known: of files, whatever they say. same: processes that two files have in common; these get the rank of the file
    that holds nothing else.
    """
    for source in sources:
        if source.path in known:
            source.rank, source.rank_from, source.labels = known[source.path], "collector", set()
    taken = {source.rank for source in sources if source.rank is not None and not source.labels}
    ordered = sorted(sources, key=lambda source: (source.path.name, str(source.path)))
    followers = [source for source, _, _ in same]
    ranks: Ranks = {}
    for source in ordered:
        if source.labels and not any(source is one for one in followers):
            ranks[source.path] = _of_processes(source, taken)
            taken |= {*ranks[source.path].values()}
    free = (number for number in itertools.count() if number not in taken)
    alone = len(sources) == 1
    for source in ordered:
        if source.path in ranks or any(source is one for one in followers):
            continue
        if source.rank is None:
            source.rank_from = "default" if alone else "assigned"
        ranks[source.path] = {None: next(free) if source.rank is None else source.rank}
    for source in ordered:
        if source.path not in ranks:
            ranks[source.path] = _following(source, [one for one in same if one[0] is source], ranks, taken)
    return ranks


def _of_processes(source: SourceRead, taken: set[int]) -> dict[str | None, int]:
    """As the file says; numbers that are only an order begin after those that other files have taken."""
    wanted, said = _wanted(source)
    shift = 0
    while not said and any(rank + shift in taken for rank in wanted.values()):
        shift += 1
    source.rank_from = "assigned" if shift else "MPI" if source.rank_from == "MPI" else "process label"
    return {None: min(wanted.values()) + shift} | {label: rank + shift for label, rank in wanted.items()}


def _wanted(source: SourceRead) -> tuple[dict[str, int], bool]:
    """The ranks of the labels, and whether they are what the file says, not only an order.

    "TP01" is rank 1; labels that say more than that are numbered in order.
    """
    if source.label_ranks:
        return source.label_ranks, source.rank_from == "MPI"
    labels = sorted(source.labels)
    plain = [re.fullmatch(r"TP-?(\d{1,6})", label) for label in labels]
    if all(plain):
        return {label: int(match.group(1)) for label, match in zip(labels, plain, strict=True) if match}, True
    return {label: number for number, label in enumerate(labels)}, False


def _following(source: SourceRead, same: Sequence[Same], ranks: Ranks, taken: set[int]) -> dict[str | None, int]:
    """The ranks that other files gave to the processes of this one, and free ones for the rest."""
    source.rank_from = "process id"
    found: dict[str | None, int] = {label: ranks[other.path][None] for _, label, other in same}
    used = taken | {rank for of_label in ranks.values() for rank in of_label.values()}
    free = (number for number in itertools.count() if number not in used)
    for label in sorted(source.labels - {label for label in found if label is not None}):
        found[label] = next(free)
    return {None: min(found.values())} | found
