"""Where do sequences of the catalogue run in a step? Matches on each stream, in device order.

Each kind of work becomes a letter and each stream a text, so that a pattern is a regular expression and the search
takes linear time. Where the text is cut, nothing can be one kernel: the host waited for the device in between, one row
is of a graph replay and the other is not, or another stream waits in the middle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.arrays import Bools, Int64s
from tracekit.classify import words
from tracekit.fusion_inputs import Inputs
from tracekit.fusion_patterns import Catalogue, Pattern, Work
from tracekit.op_call import OpCall
from tracekit.replay_step import Step

_CUT = "\n"
_QUANTILES = (0.0, 0.9)  # of times of the same work
_FIRST_LETTER = 0x10000  # above what has a meaning in a regular expression


@dataclass(frozen=True, slots=True)
class Match:
    """Rows of a step, by index and in order, that a pattern takes for one kernel. kept: rows whose result is written
    all the same.
    """

    rows: tuple[int, ...]
    kept: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Lane:
    """The work of one stream: rows by index, and which of them cannot be one kernel with the row before."""

    rows: Int64s
    cut: Bools


class Scene:
    """A step made ready for matching. works: kind of work of each row. Rows that a match took are taken."""

    def __init__(self, step: Step, inputs: Inputs) -> None:
        self.step, self.inputs = step, inputs
        kinds: dict[Work, int] = {}
        rows = step.rows
        as_words = {name: words(name) for name in set(rows.name)}
        self.kind_of = np.zeros(len(rows), np.int64)
        for row, name in enumerate(rows.name):
            op = inputs.op_words(int(rows.id[row]))
            work = Work(as_words[name], op, rows.category[row], rows.subcategory[row])
            self.kind_of[row] = kinds.setdefault(work, len(kinds))
        self.kinds = list(kinds)
        self.quick_ns, self.slow_ns = self._alike()
        self.lanes = _lanes(step)
        self.taken = np.zeros(len(rows), np.bool_)

    def _alike(self) -> tuple[Int64s, Int64s]:
        """Of each row, what rows of the same kind, size and inputs take when they are quick, and when they are slow:
        which of a few short kernels is the longest is chance.
        """
        rows = self.step.rows
        alike: dict[tuple[int, int, int], list[int]] = {}
        calls: dict[OpCall | None, int] = {}
        for row, id in enumerate(rows.id.tolist()):
            call = calls.setdefault(self.inputs.call(id), len(calls))
            alike.setdefault((int(self.kind_of[row]), self.inputs.threads(id), call), []).append(row)
        quick, slow = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        for same in alike.values():
            quick[same], slow[same] = np.quantile(rows.dur[same], _QUANTILES).astype(np.int64)
        return quick, slow

    def work(self, row: int) -> Work:
        """What kind of work a row is."""
        return self.kinds[int(self.kind_of[row])]

    def fused_rows(self, pattern: Pattern) -> Int64s:
        """Rows of the step that do all of a pattern in one kernel."""
        fused = np.array([pattern.is_fused(work) for work in self.kinds], np.bool_)
        own: Int64s = np.flatnonzero(self.step.rows.own & fused[self.kind_of]) if len(fused) else np.zeros(0, np.int64)
        return own

    def matches(self, catalogue: Catalogue, pattern: Pattern) -> Iterator[Match]:
        """Places of a pattern that no match has taken yet, without overlap."""
        letters = self._letters(catalogue, pattern)
        for sequence in pattern.sequences:
            kept_elements = {piece.element for piece in sequence if piece.kept}
            passed = {piece.element for piece in sequence if piece.passed}
            if any(not letters[piece.element] for piece in sequence if piece.element and not piece.mark):
                continue  # an element that nothing is of
            expression = re.compile(catalogue.expression(pattern, sequence, letters))
            for lane in self.lanes:
                text, place = self._text(lane)
                for found in expression.finditer(text):
                    span = (int(lane.rows[place[at]]) for at in range(found.start(), found.end()))
                    rows = tuple(row for row in span if not self._is_any(row, passed, letters))
                    if len(rows) > 1 and not self.taken[list(rows)].any():
                        kept = (row for row in rows[:-1] if self._is_any(row, kept_elements, letters))
                        yield Match(rows, frozenset(kept))

    def take(self, match: Match) -> None:
        """Keep a match's rows from other patterns."""
        self.taken[list(match.rows)] = True

    def _letters(self, catalogue: Catalogue, pattern: Pattern) -> dict[str, str]:
        """Of each element in the pattern, the letters of the kinds of work that are of it."""
        named = {piece.element for sequence in pattern.sequences for piece in sequence if piece.element}
        unfused = [(code, work) for code, work in enumerate(self.kinds) if not pattern.is_fused(work)]
        return {
            name: "".join(_letter(code) for code, work in unfused if catalogue.elements[name].matches(work))
            for name in named
        }

    def _text(self, lane: Lane) -> tuple[str, list[int]]:
        """Letters of a lane with cuts, and the place in the lane of each character."""
        letters, place = [], []
        taken = self.taken[lane.rows]
        for at, (row, cut) in enumerate(zip(lane.rows.tolist(), lane.cut.tolist(), strict=True)):
            if cut:
                letters.append(_CUT)
                place.append(-1)
            letters.append(_CUT if taken[at] else _letter(int(self.kind_of[row])))
            place.append(at)
        return "".join(letters), place

    def _is_any(self, row: int, elements: set[str], letters: Mapping[str, str]) -> bool:
        letter = _letter(int(self.kind_of[row]))
        return any(letter in letters[element] for element in elements)


def _letter(code: int) -> str:
    return chr(_FIRST_LETTER + code)


def _lanes(step: Step) -> list[Lane]:
    rows, calls, schedule = step.rows, step.calls, step.schedule
    waits = np.concatenate([[0], np.cumsum([cause == "sync" for cause in calls.cause])]).astype(np.int64)
    is_graph = np.array([cause == "graph_launch" for cause in calls.cause], np.bool_)
    awaited, waiting = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    recorded = len(schedule.after_row) - step.inferred_edges  # these come first; the others are guesses
    awaited[schedule.after_on[:recorded]] = True
    waiting[schedule.after_row[:recorded]] = True
    lanes = []
    for stream in dict.fromkeys(rows.stream.tolist()):
        lane = np.flatnonzero(rows.stream == stream)
        cut = np.ones(len(lane), np.bool_)
        one, other = lane[:-1], lane[1:]
        cut[1:] = ~(rows.own[one] & rows.own[other]) | awaited[one] | waiting[other]
        call, after = rows.call[one], rows.call[other]
        known = (call >= 0) & (after >= 0) & (call != after)
        if len(calls):
            between = waits[np.maximum(after, 0)] - waits[np.maximum(call, 0)]
            cut[1:] |= known & ((between != 0) | is_graph[np.maximum(call, 0)] | is_graph[np.maximum(after, 0)])
        lanes.append(Lane(lane, cut))
    return lanes


def rows_of(matches: Sequence[Match]) -> Int64s:
    """All rows of some matches."""
    return np.array([row for match in matches for row in match.rows], np.int64)
