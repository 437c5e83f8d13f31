"""Brings what steps are found from: out of spools before their rows are linked, or out of an event table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tracekit.arrays import ABSENT, Bools, Int64s, distinct, int64_array, integers, numbers, one_array, text_array
from tracekit.assemble import KEY_COLUMNS, key_of, rank_of
from tracekit.errors import UsageError
from tracekit.source import SourceRead
from tracekit.step_marks import Dialects
from tracekit.steps import NONE, Marks, Ranges, Steps, joined, marked_steps
from tracekit.steps_inferred import Launches, inferred_steps

_LAST = np.iinfo(np.int64).max
_SHOWN = 5
_DIGITS = re.compile(r"[0-9]+")
_REPLAY = "GraphLaunch"  # in the names of API calls that replay a graph
_ACTIVITY = ("kernel", "memcpy", "memset", "graph")
_RANGES = ("id", "rank", "pid", "tid", "ts", "dur")

# Runs SQL over a table `events`.
Query = Callable[[str], pa.Table]
Ranks = Mapping[str | None, int]  # by process label


# ---- out of an event table -------------------------------------------------------------------------------------------


def steps_in_table(query: Query, step_range: str | None, *, strict: bool = False) -> Steps:
    """The steps of an event table. strict: raise UsageError if the step range is the name of no annotation."""
    found = _Found(Dialects.of(step_range))
    annotations, code, names = _with_names(query, _RANGES, "kind = 'annotation'")
    rows = found.marks_among(pa.DictionaryArray.from_arrays(int64_array(code), text_array(names)))
    if strict:
        found.refuse_no_match()
    marked = found.steps(_ranges(annotations).take(rows))
    ranks = numbers(query("SELECT DISTINCT rank FROM events WHERE kind = 'launch'"), "rank")
    unmarked = np.setdiff1d(ranks, marked.ranges.rank).tolist()
    return joined([marked, inferred_steps(_launches_in_table(query, unmarked))]) if unmarked else marked


def _launches_in_table(query: Query, ranks: Sequence[int]) -> Launches:
    of_ranks = f"rank IN ({', '.join(map(str, ranks))})"
    columns = f"{', '.join(_RANGES)}, contains(name, '{_REPLAY}')::INTEGER AS replays"
    calls = query(f"SELECT {columns} FROM events WHERE kind = 'launch' AND {of_ranks} ORDER BY id")
    ranges = _ranges(calls)
    rows, code, names = _with_names(query, ("launch_id", "graph_id"), f"kind IN {_ACTIVITY} AND {of_ranks}")
    launch_id, graph_id = numbers(rows, "launch_id", NONE), numbers(rows, "graph_id", NONE)
    linked = np.isin(launch_id, ranges.id)
    call = np.searchsorted(ranges.id, launch_id[linked])
    return Launches.of(ranges, numbers(calls, "replays") > 0, names, (call, code[linked], graph_id[linked]))


def _with_names(query: Query, columns: Sequence[str], where: str) -> tuple[pa.Table, Int64s, list[str]]:
    """Columns of some rows, and for each the place of its name in a list: a text for each row would take gigabytes."""
    names = f"""
        SELECT name, row_number() OVER (ORDER BY name) - 1 AS code
        FROM (SELECT DISTINCT name FROM events WHERE {where})
    """
    rows = query(f"SELECT {', '.join(columns)}, code FROM events JOIN ({names}) USING (name) WHERE {where}")
    texts = one_array(query(f"SELECT name FROM ({names}) ORDER BY code").column("name"))
    return rows, numbers(rows, "code"), texts.to_pylist()


def _ranges(rows: pa.Table) -> Ranges:
    return Ranges(*(numbers(rows, name) for name in _RANGES))


# ---- out of spools ---------------------------------------------------------------------------------------------------


def steps_in_spools(
    sources: Sequence[SourceRead], ranks: Sequence[Ranks], origin_ns: int, step_range: str | None
) -> Steps:
    """The steps of sources in the order in which they will be stored; `ranks` of each by process label."""
    found = _Found(Dialects.of(step_range))
    spooled = [_Spooled(source, of_label, origin_ns) for source, of_label in zip(sources, ranks, strict=True)]
    parts = [
        np.vstack([np.full((1, part.shape[1]), number), part])
        for number, source in enumerate(spooled)
        for part in source.marks(found)
    ]
    found.refuse_no_match()
    number, rank, pid, tid, tie, ts, dur = np.concatenate([np.empty((7, 0), np.int64), *parts], axis=1)
    # Of rows that start and end together the ids will rise by source, rank, process, thread, tie and name.
    place = {name: position for position, name in enumerate(sorted(set(found.names)))}
    text = np.array([place[name] for name in found.names], np.int64)
    marked = found.steps(Ranges(_position((number, rank, pid, tid, tie, text)), rank, pid, tid, ts, dur))
    has_marks = set(marked.ranges.rank.tolist())
    unmarked = [source for source in spooled if not has_marks.issuperset(source.ranks.values())]
    if not unmarked:
        return marked
    inferred = inferred_steps(_launches_in_spools(unmarked, has_marks))
    return joined([marked, inferred])


def _position(keys: Sequence[Int64s]) -> Int64s:
    """The place of each row in the order by these keys."""
    order = np.lexsort(keys[::-1])
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return position


@dataclass(frozen=True, slots=True)
class _Spooled:
    """One source in its spool; times become those of the table."""

    source: SourceRead
    ranks: Ranks
    origin_ns: int

    def marks(self, found: _Found) -> Iterator[Int64s]:
        """Of each run rank, pid, tid, tie, ts and dur of the marks."""
        for table in self.source.spool.each("host", ("kind", "name", "ts", "dur", "pid", "tid", "tie", "label")):
            annotations = np.flatnonzero(_is_of_kind(table, ("annotation",)))
            if len(annotations):
                name = one_array(table.column("name"))
                yield self._host_rows(table, annotations[found.marks_among(name.take(int64_array(annotations)))])

    def calls(self, wanted: Int64s) -> Iterator[Int64s]:
        """Of each run the API calls with one of these keys, as in `marks`; and their key, and whether they replay."""
        for table in self.source.spool.each("launch", ("name", "ts", "dur", "pid", "tid", "tie", *KEY_COLUMNS)):
            key = key_of(table, self.ranks)
            rows = np.flatnonzero(np.isin(key, wanted))
            yield np.vstack([self._host_rows(table, rows), key[rows], self._replays(table)[rows]])

    @staticmethod
    def _replays(table: pa.Table) -> Bools:
        name = one_array(table.column("name"))
        return np.array([_REPLAY in one for one in name.dictionary.to_pylist()], np.bool_)[integers(name.indices)]

    def work(self, names: dict[str, int]) -> Int64s:
        """Of all rows of device activity: key, place of the name in `names`, which grows, and graph id or NONE."""
        parts = [np.empty((3, 0), np.int64)]
        for table in self.source.spool.each("device", ("kind", "name", "graph_id", *KEY_COLUMNS)):
            name = one_array(table.column("name"))
            place = np.array([names.setdefault(text, len(names)) for text in name.dictionary.to_pylist()], np.int64)
            rows = np.stack(
                [key_of(table, self.ranks), place[integers(name.indices)], numbers(table, "graph_id", NONE)]
            )
            parts.append(rows[:, _is_of_kind(table, _ACTIVITY) & (rows[0] != ABSENT)])
        return np.concatenate(parts, axis=1)

    def _host_rows(self, table: pa.Table, rows: Int64s) -> Int64s:
        ts, dur = numbers(table, "ts")[rows], numbers(table, "dur", NONE)[rows]
        unfinished = np.maximum(self.source.spool.last_end() - ts, 0)
        return np.stack(
            [
                rank_of(table, self.ranks)[rows],
                numbers(table, "pid")[rows],
                numbers(table, "tid")[rows],
                numbers(table, "tie", _LAST)[rows],
                ts + self.source.base_ns - self.origin_ns,
                np.where(dur < 0, unfinished, dur),
            ]
        )


def _launches_in_spools(spooled: Sequence[_Spooled], passed_over: set[int]) -> Launches:
    """The calls of all ranks but some."""
    names: dict[str, int] = {}
    all_calls, all_rows = [np.empty((8, 0), np.int64)], [np.empty((3, 0), np.int64)]
    before = 0
    for source in spooled:
        rows = source.work(names)
        calls = np.concatenate([np.empty((8, 0), np.int64), *source.calls(distinct(rows[0]))], axis=1)
        *keys, ts, dur, _, _ = calls
        calls = calls[:, np.lexsort((*keys[::-1], -dur, ts))]
        # Of calls that share a correlation the first counts, as in linking.
        key, first = np.unique(calls[6], return_index=True)
        linked = np.isin(rows[0], key)
        call = first[np.searchsorted(key, rows[0, linked])]
        all_calls.append(calls)
        all_rows.append(np.stack([call + before, *rows[1:, linked]]))
        before += calls.shape[1]
    rank, pid, tid, _, ts, dur, _, replays = np.concatenate(all_calls, axis=1)
    call, name, graph = np.concatenate(all_rows, axis=1)
    chosen = ~np.isin(rank[call], list(passed_over))
    ranges = Ranges(np.arange(len(rank)), rank, pid, tid, ts, dur)
    return Launches.of(ranges, replays > 0, list(names), (call[chosen], name[chosen], graph[chosen]))


def _is_of_kind(table: pa.Table, kinds: Sequence[str]) -> Bools:
    kind = one_array(table.column("kind"))
    wanted = np.array([text in kinds for text in kind.dictionary.to_pylist()], np.bool_)
    return wanted[integers(kind.indices)]


@dataclass(slots=True)
class _Found:
    """The names of the marks found so far.

    _seen, _examples: of all annotations, if the user said what a step is; counted alike where only digits differ.
    """

    dialects: Dialects
    names: list[str] = field(default_factory=list)
    _seen: Counter[str] = field(default_factory=Counter)
    _examples: dict[str, str] = field(default_factory=dict)

    def marks_among(self, name: pa.DictionaryArray) -> Int64s:
        """Which of these annotations are marks; their names are added."""
        codes = integers(name.indices)
        count = np.bincount(codes, minlength=len(name.dictionary))
        present = np.flatnonzero(count)
        texts = dict(zip(present.tolist(), name.dictionary.take(int64_array(present)).to_pylist(), strict=True))
        marked = np.zeros(len(name.dictionary), np.bool_)
        for code, text in texts.items():
            marked[code] = self.dialects.is_mark(text)
            if self.dialects.wanted is not None:
                alike = _DIGITS.sub("0", text)
                self._seen[alike] += int(count[code])
                self._examples[alike] = min(text, self._examples.get(alike, text))
        rows = np.flatnonzero(marked[codes])
        self.names += [texts[code] for code in codes[rows].tolist()]
        return rows

    def refuse_no_match(self) -> None:
        """Raise UsageError if the user's range is the name of no annotation, and say what annotations there are."""
        wanted = self.dialects.wanted
        if wanted is None or any(map(wanted.search, set(self.names))):
            return
        most = sorted(self._seen.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
        examples = [(self._examples[alike][:60], count) for alike, count in most]
        shown = ", ".join(f"{text!r}" + (f" ({count:,} such)" if count > 1 else "") for text, count in examples)
        if len(self._seen) > _SHOWN:
            shown += ", ..."
        raise UsageError(f"no annotation matches the step range {wanted.pattern!r}; there are {shown or 'none'}")

    def steps(self, ranges: Ranges) -> Steps:
        """What the marks make, theirs being these ranges."""
        return marked_steps(Marks(ranges, self.names), self.dialects)
