"""Where nothing marks the steps: which launches does the host repeat, step after step?

A step ends with the launch that samples its tokens or, where none is seen, that replays its graph, and the copies to
the host right after it. Such an anchor is believed only if what lies between its occurrences is mostly the same: random
work has no steps.

Arrays have one element a row; times are integer nanoseconds since the trace origin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from tracekit.arrays import Bools, Int64s
from tracekit.step_marks import INFERRED, Composition
from tracekit.steps import NO_STEPS, NONE, Ranges, Steps, joined

_TO_HOST = re.compile(r"DtoH|Device-?To-?Host", re.IGNORECASE)
_FEWEST = 3  # occurrences of an anchor
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers never vanish

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Launches:
    """API calls that started device work, in any order.

    work: hash of the names of all that a call started. graph: what it replayed, by the recorded id, else by `work`;
    NONE for a call that replays none. graph_ids: whether all replays have an id. to_host: whether a call only copied to
    the host. started_by, started: a pair for each name that a call started work of: the call, and the place of the name
    in `names`.
    """

    calls: Ranges
    work: Hashes
    graph: Int64s
    graph_ids: bool
    to_host: Bools
    names: Sequence[str]
    started_by: Int64s
    started: Int64s

    @classmethod
    def of(
        cls, calls: Ranges, replays: Bools, names: Sequence[str], device_rows: tuple[Int64s, Int64s, Int64s]
    ) -> Launches:
        """device_rows: of each the call that started it, the place of its name, its graph's id or NONE."""
        call, name, graph_id = device_rows
        work = np.zeros(len(calls), np.uint64)
        np.add.at(work, call, np.array([_hash(one) for one in names], np.uint64)[name])
        graph = np.full(len(calls), NONE)
        np.maximum.at(graph, call, graph_id)
        nameless = replays & (graph == NONE)
        graph = np.where(nameless, (work >> np.uint64(1)).view(np.int64), np.where(replays, graph, NONE))
        worked, pairs = np.unique(call), np.unique(np.stack([call, name]), axis=1)
        elsewhere = np.array([_TO_HOST.search(one) is None for one in names], np.bool_)
        to_host = np.ones(len(calls), np.bool_)
        to_host[pairs[0, elsewhere[pairs[1]]]] = False
        return cls(
            calls.take(worked),
            work[worked],
            graph[worked],
            not nameless[worked].any(),
            to_host[worked],
            names,
            np.searchsorted(worked, pairs[0]),
            pairs[1],
        )


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class _Anchor:
    """Launches of one thread, by place, that end a step each, if the thread is periodic.

    common: the sequence found most often between two of them, which has `period` launches. sequences: all of them.
    """

    places: Int64s
    sequences: Hashes
    common: np.uint64
    period: int


def inferred_steps(launches: Launches) -> Steps:
    """The steps of each rank, by its thread with most launches. None for a rank whose launches show no period."""
    calls = launches.calls
    return joined(_of_rank(launches, np.flatnonzero(calls.rank == rank)) for rank in np.unique(calls.rank))


def _of_rank(launches: Launches, rows: Int64s) -> Steps:
    """rows: the calls of one rank."""
    thread = max(launches.calls.take(rows).threads(), key=len)
    rows = rows[thread]
    rows = rows[launches.calls.take(rows).by_start()]
    work, graph, last_copy = launches.work[rows], launches.graph[rows], _last_copies(launches.to_host[rows])
    sampling = [_anchor(work, last_copy[places], whole=False) for places in _sampling(launches, rows)]
    anchor = _best(sampling)
    if anchor is None:
        replays = [_anchor(work, last_copy[places], whole=True) for places in _replays(launches, graph)]
        anchor = _best([one for one in replays if launches.graph_ids or one is None or not _is_nested(one)])
    if anchor is None:
        return NO_STEPS
    first, last = anchor.places[:-1] + 1, anchor.places[1:]
    if _sequences(work, np.array([NONE, anchor.places[0]]))[0] == anchor.common:
        first, last = np.append(0, first), np.append(anchor.places[0], last)
    taken = launches.calls.take(rows)
    ts, end = taken.ts[first], taken.end[last]
    number = np.arange(len(ts))
    return Steps(
        Ranges(np.full(len(ts), NONE), taken.rank[first], taken.pid[first], taken.tid[first], ts, end - ts),
        number,
        np.append(ts[1:], end[-1]),
        [INFERRED] * len(ts),
        [Composition()] * len(ts),
    )


def _last_copies(to_host: Bools) -> Int64s:
    """For each launch the last of the copies to the host right after it; itself if there is none."""
    place = np.arange(len(to_host))
    follows = np.append(to_host[1:], False)
    # From the end back: the nearest launch that no copy follows.
    last: Int64s = np.minimum.accumulate(np.where(follows, len(place), place)[::-1])[::-1]
    return last


def _sampling(launches: Launches, rows: Int64s) -> Iterator[Int64s]:
    """For each kernel that samples tokens: the places among `rows` of the launches that started it."""
    place = np.full(len(launches.calls), NONE)
    place[rows] = np.arange(len(rows))
    places, names = place[launches.started_by], launches.started
    here = places != NONE
    names, count = np.unique(names[here], return_counts=True)
    if (count < _FEWEST).all():
        return

    from tracekit.classify import classify_kernel  # reads the rules, which takes a moment

    for name in sorted(names[count >= _FEWEST].tolist(), key=launches.names.__getitem__):  # so that ties are decided
        category, subcategory = classify_kernel(launches.names[name])
        if category == "sampling" or subcategory == "argmax":
            yield np.sort(places[here & (launches.started == name)])


def _replays(launches: Launches, graph: Int64s) -> list[Int64s]:
    """Places of graph replays: all, if one graph is all that a step replays, else those of each graph."""
    places = np.flatnonzero(graph != NONE)
    graphs = graph[places]
    if not launches.graph_ids or (graphs[1:] == graphs[:-1]).any():
        return [places]
    return [places[graphs == one] for one in np.unique(graphs)]


def _best(candidates: Sequence[_Anchor | None]) -> _Anchor | None:
    """Of the candidates the one with the longest period; of equals, the last within it.

    One that occurs twice in a step has a shorter period than the step. The last is the one after which it takes longest
    until the next candidate.
    """
    anchors = [anchor for anchor in candidates if anchor is not None]
    if not anchors:
        return None
    every = np.unique(np.concatenate([anchor.places for anchor in anchors]))

    def rank(anchor: _Anchor) -> tuple[int, float]:
        following = np.searchsorted(every, anchor.places, side="right")
        inner = following < len(every)
        return anchor.period, float(np.median(every[following[inner]] - anchor.places[inner]))

    return max(anchors, key=rank)


def _anchor(work: Hashes, places: Int64s, *, whole: bool) -> _Anchor | None:
    """An anchor with these places, if they are periodic. whole: one launch may be a whole step, as a graph may."""
    places = np.unique(places)
    if len(places) < _FEWEST:
        return None
    sequences = _sequences(work, places)
    found, first, count = np.unique(sequences, return_index=True, return_counts=True)
    most = int(np.argmax(count))
    period = int(places[first[most] + 1] - places[first[most]])
    if count[most] < 2 or 2 * count[most] < len(sequences) or (period == 1 and not whole):
        return None
    return _Anchor(places, sequences, found[most], period)


def _sequences(work: Hashes, places: Int64s) -> Hashes:
    """For each two consecutive places a hash of the launches after the first, up to and including the second."""
    first, length = places[:-1] + 1, np.diff(places)
    powers = np.cumprod(np.full(int(length.max()), _FACTOR))
    within = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    hashes: Hashes = np.add.reduceat(work[first[0] : places[-1] + 1] * powers[within], first - first[0])
    return hashes


def _is_nested(anchor: _Anchor) -> bool:
    """Whether what breaks the period does so periodically: then the anchor is a layer's, not a step's."""
    breaks = np.flatnonzero(anchor.sequences != anchor.common)
    return len(breaks) >= _FEWEST and len(np.unique(np.diff(breaks))) == 1
