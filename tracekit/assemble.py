"""Turn the spool of one source into event rows: one canonical order, ids, and links between rows.

Windows of time pass through memory one after the other: host rows first, to find who encloses whom and which API call
has which correlation; then device rows, which look their launches up. Ids follow that order, so they do not depend on
the order the source had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import (
    ABSENT,
    TEXT,
    Bools,
    Int64s,
    compact,
    distinct,
    int32_array,
    int64_array,
    integers,
    numbers,
    one_array,
)
from tracekit.event_table import event_schema
from tracekit.links import ENCLOSING_ORDER, NONE, HostRows, LinkIndex, Nesting, order_rows
from tracekit.source import SourceRead
from tracekit.spool import DEVICE_CLASSES, HOST_CLASSES
from tracekit.steps import Membership

WINDOW_ROWS = 1 << 19
KEY_COLUMNS = ("correlation", "label", "process")  # of the spool, from which key_of is made

# Share of launches whose External id must be that of the op around them before rows without a launch get ops by it: in
# traces before 2024 the External id was the correlation, and hits wrong ops by chance.
_TRUST = 0.9
_LAST = np.iinfo(np.int64).max
_PROCESS_BIT = 48  # correlations are 32 bits wide
_DEVICE_ORDER = {"gpu_annotation": 0, "kernel": 1, "memcpy": 2, "memset": 3, "graph": 4, "sync": 5}
_UNFINISHED = '{"finished": false}'


@dataclass(slots=True)
class Assembler:
    """One source on its way into the table.

    ranks: rank by process label (None: rows without one). shift_ns: added to the source's times. next_id: of the row
    to come. steps: of all sources, in times of the table. When `tables` is through, `next_id`, `by_kind` and
    `ambiguous` (API calls sharing a correlation with an earlier one) are final.
    """

    source: SourceRead
    ranks: dict[str | None, int]
    shift_ns: int
    next_id: int
    steps: Membership
    by_kind: Counter[str] = field(default_factory=Counter)
    ambiguous: int = 0
    _lanes: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def tables(self) -> Iterator[pa.Table]:
        """All rows as tables of the event schema, each of one kind and one window, by id."""
        spool = self.source.spool
        device = pa.table(
            {name: spool.column("device", name) for name in (*KEY_COLUMNS, "external_id")},
        )
        launches = LinkIndex(distinct(self._key(device)), width=3)  # id, op, step
        has_ids = not pa.types.is_null(device.column("external_id").type)
        operators = LinkIndex(distinct(numbers(device, "external_id"))) if has_ids else LinkIndex.empty()
        nesting = Nesting()
        for window in spool.windows(HOST_CLASSES, _window_rows(spool.rows(HOST_CLASSES))):
            tables = [table for name in HOST_CLASSES if (table := spool.read(name, window)) is not None]
            yield from self._host_rows(tables, window[1], nesting, launches, operators)
        self.ambiguous = launches.ambiguous
        trusted = self._external_ids_are_op_ids(device, launches, operators)
        del device  # of all rows of the source
        for window in spool.windows(DEVICE_CLASSES, WINDOW_ROWS):
            for name in DEVICE_CLASSES:
                if (table := spool.read(name, window)) is not None:
                    yield from self._device_rows(table, launches, operators if trusted else LinkIndex.empty())

    def _host_rows(
        self, tables: list[pa.Table], next_window: int, nesting: Nesting, launches: LinkIndex, operators: LinkIndex
    ) -> Iterator[pa.Table]:
        slim = _concatenate(tables, ("ts", "dur", "pid", "tid", "kind", "tie", "label"))
        ts = numbers(slim, "ts")
        end, unfinished = self._ends(slim, ts, unknown=self.source.spool.last_end())
        kind = _codes(slim, "kind", ENCLOSING_ORDER)
        lane = self._lane(slim)  # numbered as they come, hence no order
        tie = numbers(slim, "tie", _LAST)
        order = order_rows(ts, -end, kind, self._rank(slim), numbers(slim, "pid"), numbers(slim, "tid"), tie)
        order = _by_content_where_equal(order, (ts, end, kind, lane, tie), tables)
        identity = self._identities(order)
        parent = np.empty(len(order), np.int64)
        operator = np.empty(len(order), np.int64)
        rows = HostRows(identity[order], end[order], lane[order], kind[order])
        parent[order], operator[order] = nesting.link(rows, next_window)

        step = self._steps(lane, ts + self.shift_ns)
        first = 0
        for table in tables:
            part = slice(first, first := first + table.num_rows)
            by_id = np.argsort(identity[part], kind="stable")
            columns = {
                "id": identity[part],
                "ts": ts[part] + self.shift_ns,
                "dur": end[part] - ts[part],
                "parent_id": parent[part],
                "step": step[part],
            }
            linked = (columns["id"][by_id], operator[part][by_id], columns["step"][by_id])
            self._note_targets(table, linked, by_id, (launches, operators))
            if "launch" in set(table.column("kind").unique().to_pylist()):
                columns["op_id"] = operator[part]
            yield from self._by_kind(table, by_id, columns, unfinished[part])

    def _note_targets(
        self,
        table: pa.Table,
        linked: tuple[Int64s, Int64s, Int64s],
        by_id: Int64s,
        indexes: tuple[LinkIndex, LinkIndex],
    ) -> None:
        """Remember the rows of this table, taken by id, that device rows may point to: launches and ops.

        linked: their ids, the ops around them, their steps.
        """
        launches, operators = indexes
        kinds = set(table.column("kind").unique().to_pylist())
        if "launch" in kinds:
            launches.add(self._key(table)[by_id], *linked)
        if "op" in kinds:
            chosen = _of_kind(table, "op")[by_id]
            identity = linked[0][chosen]
            operators.add(numbers(table, "external_id")[by_id][chosen], identity, identity)

    def _device_rows(self, table: pa.Table, launches: LinkIndex, operators: LinkIndex) -> Iterator[pa.Table]:
        ts = numbers(table, "ts")
        end, unfinished = self._ends(table, ts, unknown=None)
        keys = (
            -end,
            _codes(table, "kind", _DEVICE_ORDER),
            *(numbers(table, name) for name in ("device", "stream", "correlation", "graph_node_id", "grid_x")),
        )
        order = order_rows(ts, *keys)
        order = _by_content_where_equal(order, (ts, *keys), [table])
        launch_id, op_id, step = launches.find(self._key(table))
        _, by_external_id = operators.find(numbers(table, "external_id"))
        columns = {
            "id": self._identities(order),
            "ts": ts + self.shift_ns,
            "dur": end - ts,
            "launch_id": launch_id,
            "op_id": np.where(launch_id == NONE, by_external_id, op_id),
            "step": step,
        }
        yield from self._by_kind(table, order, columns, unfinished)

    def _external_ids_are_op_ids(self, device: pa.Table, launches: LinkIndex, operators: LinkIndex) -> bool:
        if not len(operators.wanted):
            return False
        _, nested, _ = launches.find(self._key(device))
        _, claimed = operators.find(numbers(device, "external_id"))
        both = (nested != NONE) & (claimed != NONE)
        return bool(both.any()) and float((nested == claimed)[both].mean()) >= _TRUST

    def _ends(self, table: pa.Table, ts: Int64s, unknown: int | None) -> tuple[Int64s, Bools]:
        """Ends of rows, and which of them were still running when recording stopped.

        Those end with the trace on the host; on a device, where such a row is damage, at their start.
        """
        duration = numbers(table, "dur", NONE)
        unfinished = duration < 0
        end = ts + np.maximum(duration, 0)
        if unknown is not None:
            end[unfinished] = np.maximum(ts[unfinished], unknown)
        return end, unfinished

    def _identities(self, order: Int64s) -> Int64s:
        identity = np.empty(len(order), np.int64)
        identity[order] = np.arange(self.next_id, self.next_id + len(order))
        self.next_id += len(order)
        return identity

    def _key(self, table: pa.Table) -> Int64s:
        return key_of(table, self.ranks)

    def _rank(self, table: pa.Table) -> Int64s:
        return rank_of(table, self.ranks)

    def _lane(self, table: pa.Table) -> Int64s:
        """A number for each thread, the same in every window."""
        rank, pid, tid = self._rank(table), numbers(table, "pid"), numbers(table, "tid")
        codes = np.zeros(table.num_rows, np.int64)
        for values in (rank, pid, tid):
            encoded = int64_array(values).dictionary_encode()
            codes = codes * max(1, len(encoded.dictionary)) + integers(encoded.indices)
        encoded = int64_array(codes).dictionary_encode()
        indices = integers(encoded.indices)
        first = np.zeros(len(encoded.dictionary), np.int64)
        first[indices[::-1]] = np.arange(len(indices))[::-1]
        threads = [(int(rank[row]), int(pid[row]), int(tid[row])) for row in first] if len(indices) else []
        lanes = np.array([self._lanes.setdefault(thread, len(self._lanes)) for thread in threads], np.int64)
        return lanes[indices] if len(indices) else indices

    def _steps(self, lane: Int64s, ts: Int64s) -> Int64s:
        """The step of each host row; `ts` in times of the table."""
        step = np.full(len(ts), NONE)
        if self.steps:
            timelines = [self.steps.timeline(*thread) for thread in self._lanes]
            distinct = {id(timeline): timeline for timeline in timelines if timeline is not None}
            number = {identity: position for position, identity in enumerate(distinct)}
            of_lane = np.array([number.get(id(timeline), NONE) for timeline in timelines], np.int64)[lane]
            for position, timeline in enumerate(distinct.values()):
                rows = np.flatnonzero(of_lane == position)
                step[rows] = timeline.at(ts[rows])
        return step

    def _by_kind(
        self, table: pa.Table, order: Int64s, columns: dict[str, Int64s], unfinished: Bools
    ) -> Iterator[pa.Table]:
        for kind in sorted(table.column("kind").unique().to_pylist()):
            chosen = order[_of_kind(table, kind)[order]]
            self.by_kind[kind] += len(chosen)
            yield self._event_table(table, chosen, columns, unfinished)

    def _event_table(self, table: pa.Table, chosen: Int64s, columns: dict[str, Int64s], unfinished: Bools) -> pa.Table:
        taken = table.take(int64_array(chosen))
        rank = self._rank(taken)
        absent = {column_type: pa.nulls(len(chosen), column_type) for column_type in set(event_schema().types)}
        arrays: list[pa.Array] = []
        for column in event_schema():
            if column.name == "rank":
                arrays.append(int32_array(rank))
            elif column.name == "step":
                step = columns["step"][chosen]
                arrays.append(int32_array(step, step == NONE) if self.steps else absent[column.type])
            elif column.name in columns:
                values = columns[column.name][chosen]
                nullable = column.name.endswith("_id")
                arrays.append(int64_array(values, values == NONE if nullable else None))
            elif column.name in taken.column_names:
                arrays.append(_as(column.type, one_array(taken.column(column.name))))
            else:
                arrays.append(absent[column.type])
        result = pa.table(arrays, schema=event_schema())
        if unfinished[chosen].any():
            args = result.column("args").cast(pa.string())
            marked = pc.if_else(pa.array(unfinished[chosen]), _marked_as_unfinished(args), args)
            result = result.set_column(result.schema.get_field_index("args"), "args", marked.dictionary_encode())
        return result


def rank_of(table: pa.Table, ranks: Mapping[str | None, int]) -> Int64s:
    """The rank of each row of a source, whose ranks are given by process label."""
    if "label" not in table.column_names or len(ranks) == 1:
        return np.full(table.num_rows, next(iter(ranks.values())))
    label = one_array(table.column("label"))
    if not pa.types.is_dictionary(label.type):
        return np.full(table.num_rows, ranks.get(None, 0))
    otherwise = ranks.get(None, 0)
    known = [ranks.get(value, otherwise) for value in label.dictionary.to_pylist()]
    of_code = np.array([*known, otherwise], np.int64)
    return of_code[integers(label.indices, len(known))]


def key_of(table: pa.Table, ranks: Mapping[str | None, int]) -> Int64s:
    """Correlation, made unique within the source if it holds several processes."""
    key = numbers(table, "correlation")
    if "process" in table.column_names and not pa.types.is_null(table.column("process").type):
        process = numbers(table, "process", 0)
    elif len(ranks) > 1:
        process = rank_of(table, ranks)
    else:
        return key
    return np.where(key == ABSENT, key, (key & ((1 << _PROCESS_BIT) - 1)) | (process << _PROCESS_BIT))


def _window_rows(rows: int) -> int:
    """Few rows still make some windows, so that encoding one overlaps with linking the next."""
    return max(1, min(WINDOW_ROWS, max(WINDOW_ROWS // 4, rows // 3)))


def _marked_as_unfinished(args: pa.ChunkedArray) -> pa.ChunkedArray:
    """JSON objects, with a word on it where the profiler said none."""
    rest = pc.replace_substring(args, "{", _UNFINISHED[:-1] + ", ", max_replacements=1)
    marked = pc.if_else(pc.match_substring(args, '"finished"'), args, rest)
    return pc.coalesce(marked, _UNFINISHED)


def _concatenate(tables: list[pa.Table], names: tuple[str, ...]) -> pa.Table:
    slim = [table.select([name for name in names if name in table.column_names]) for table in tables]
    return pa.concat_tables(slim, promote_options="default").unify_dictionaries().combine_chunks()


def _codes(table: pa.Table, name: str, order: dict[str, int]) -> Int64s:
    """What a column of texts stands for, as a number of `order`."""
    column = one_array(table.column(name))
    return np.array([order[value] for value in column.dictionary.to_pylist()], np.int64)[integers(column.indices)]


def _of_kind(table: pa.Table, kind: str) -> Bools:
    column = one_array(table.column("kind"))
    chosen: Bools = integers(column.indices) == column.dictionary.to_pylist().index(kind)
    return chosen


def _as(column_type: pa.DataType, column: pa.Array) -> pa.Array:
    """As the event table has it; a row group gets a dictionary of the texts in it alone."""
    if column_type == TEXT and pa.types.is_dictionary(column.type):
        return compact(column)
    return column.cast(column_type)


def _by_content_where_equal(order: Int64s, keys: tuple[Int64s, ...], tables: list[pa.Table]) -> Int64s:
    """Rows that agree in all keys, by name, and of those with one name by all that `tables`, one after the other, say.

    Two files with the same events in another order must give the same ids.
    """
    agree = _agree(order, keys)
    if not agree.any():
        return order
    names = one_array(_concatenate(tables, ("name",)).column("name"))
    order = _settle(order, agree, lambda rows: list(names.take(int64_array(rows)).to_pylist()))

    def contents(rows: Int64s) -> list[str]:
        whole = _concatenate(tables, tuple({name for table in tables for name in table.column_names}))
        taken = whole.take(int64_array(rows)).to_pylist()
        return [str(sorted((name, value) for name, value in row.items() if value is not None)) for row in taken]

    return _settle(order, _agree(order, (*keys, integers(names.indices))), contents)


def _agree(order: Int64s, keys: tuple[Int64s, ...]) -> Bools:
    """Whether each row but the first has the keys of the one before it."""
    agree = np.ones(max(0, len(order) - 1), np.bool_)
    for key in keys:
        ordered = key[order]
        agree &= ordered[1:] == ordered[:-1]
    return agree


def _settle(order: Int64s, agree: Bools, describe: Callable[[Int64s], list[str]]) -> Int64s:
    """Sort what agrees with its neighbours by a description of the rows."""
    if not agree.any():
        return order
    tied = np.zeros(len(order), np.bool_)
    tied[1:] |= agree
    tied[:-1] |= agree
    places = np.flatnonzero(tied)
    group = np.concatenate([[0], np.cumsum(~agree)])[places]
    rows = order[places]
    texts = describe(rows)
    number = {text: position for position, text in enumerate(sorted(set(texts)))}
    settled: Int64s = order.copy()
    settled[places] = rows[np.lexsort((np.array([number[text] for text in texts]), group))]
    return settled
