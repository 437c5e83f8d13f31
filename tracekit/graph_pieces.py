"""Which launches of one step could be a graph each, and which of these are alike?

The macro graph_launches cuts a step into pieces; here pieces are compared with each other, and within one the layers
of the model are found: the period in which launches repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracekit.arrays import ABSENT, Bools, Int64s, numbers, one_array
from tracekit.replay_choice import Group
from tracekit.replay_step import Step
from tracekit.trace import Trace

_PERIODIC = 0.5  # of a sequence is covered by what is called its period
_PERIODS_TRIED = 8  # distances between equal launches, the most frequent first: a layer has its own many times
_LAUNCHES = """
    SELECT
        id,
        rows,
        replay,
        token,
        role,
        splits,
        place = 'inside' AS inside,
        place = 'inside' AND blocker IS NOT NULL AND blocker = 'pause' AS pauses,
        piece
    FROM graph_sequence
    WHERE rank = $rank
        AND device IS NOT DISTINCT FROM $device
        AND step IS NOT DISTINCT FROM $step
    ORDER BY position
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Launches that could be one graph. ids: of the calls, in order; token and role as in the macro graph_launches."""

    ids: Int64s
    token: Int64s
    role: Int64s
    rows: int
    replays: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def structure(self) -> bytes:
        """Equal for pieces with the same kinds of work in the same order."""
        return self.role.tobytes()


@dataclass(frozen=True, slots=True)
class Pieces:
    """A step as the pieces it could be captured in. whole: all calls that could be one graph if nothing stood between
    them; blocking: calls between them that a capture does not allow; rows and replayed: device rows of whole, and how
    many of them come from graph replays. paused: nothing was launched for long in between.
    """

    pieces: tuple[Piece, ...]
    whole: Int64s
    blocking: Int64s
    rows: int
    replayed: int
    replays: int
    paused: bool


def pieces_of(trace: Trace, group: Group, step: Step) -> Pieces:
    """The pieces of a step of a group, kept with the trace."""
    found: Pieces = trace.once(
        ("graph pieces", group.rank, group.device, step.step),
        lambda: _pieces(trace, group.rank, group.device, step.step),
    )
    return found


def _pieces(trace: Trace, rank: int, device: int | None, step: int | None) -> Pieces:
    table = trace.whole.sql(_LAUNCHES, {"rank": rank, "device": device, "step": step})
    ids, rows, token, role, piece = (numbers(table, name) for name in ("id", "rows", "token", "role", "piece"))
    replay, splits, inside = (_flags(table, name) for name in ("replay", "splits", "inside"))
    works = inside & (rows > 0)
    starts = np.flatnonzero(np.diff(piece[piece != ABSENT], prepend=ABSENT))
    places = np.split(np.flatnonzero(piece != ABSENT), starts[1:]) if len(starts) else []
    return Pieces(
        pieces=tuple(
            Piece(ids[at], token[at], role[at], int(rows[at].sum()), int(np.count_nonzero(replay[at]))) for at in places
        ),
        whole=ids[works],
        blocking=ids[inside & splits],
        rows=int(rows[works].sum()),
        replayed=int(rows[works & replay].sum()),
        replays=int(np.count_nonzero(works & replay)),
        paused=bool(_flags(table, "pauses").any()),
    )


def _flags(table: pa.Table, name: str) -> Bools:
    flags: Bools = np.asarray(one_array(table[name]).to_numpy(zero_copy_only=False), np.bool_)
    return flags


def alike(pieces: Sequence[Piece], least: int) -> list[tuple[int, ...]]:
    """Places of pieces with the same structure, those of most launches first; pieces of fewer launches than `least` are
    left out.
    """
    found: dict[bytes, list[int]] = {}
    for place, piece in enumerate(pieces):
        if len(piece) >= least:
            found.setdefault(piece.structure, []).append(place)
    ordered = sorted(found.values(), key=lambda places: (-sum(len(pieces[place]) for place in places), places))
    return [tuple(places) for places in ordered]


def same_places(reference: Pieces, other: Pieces, places: Sequence[int]) -> list[Piece]:
    """Pieces of another step that stand for these of the reference: the same ones where both have as many pieces, else
    those of the same structure.
    """
    if len(other.pieces) == len(reference.pieces):
        return [other.pieces[place] for place in places]
    wanted = {reference.pieces[place].structure for place in places}
    return [piece for piece in other.pieces if piece.structure in wanted]


@dataclass(frozen=True, slots=True)
class Period:
    """Launches that repeat one after the other: `times` times `launches`, as the layers of a model do."""

    launches: int
    times: int

    def __str__(self) -> str:
        return f"{self.times} x {self.launches} launches"


def period_of(token: Int64s) -> Period | None:
    """The period that covers most of a sequence, the shortest of equal ones; None if none covers half of it.

    Tried are the most frequent distances from a launch to the last one equal to it, so time is linear in launches.
    """
    if len(token) < 2:
        return None
    order = np.argsort(token, kind="stable")
    equal = token[order][1:] == token[order][:-1]
    distances = (order[1:] - order[:-1])[equal]
    if not len(distances):
        return None
    values, counts = np.unique(distances, return_counts=True)
    tried = np.sort(values[np.argsort(-counts, kind="stable")[:_PERIODS_TRIED]])
    covered = [(_longest(token[distance:] == token[:-distance]) + int(distance), int(distance)) for distance in tried]
    best = max((launches // distance * distance, -distance) for launches, distance in covered)
    times = best[0] // -best[1]
    return Period(-best[1], times) if times > 1 and best[0] >= _PERIODIC * len(token) else None


def _longest(equal: Bools) -> int:
    """Length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0
