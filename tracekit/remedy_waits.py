"""Which calls of a step make the host wait for the device, and what if they did not?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from tracekit.arrays import Bools, Int64s
from tracekit.replay import Schedule
from tracekit.replay_choice import Group
from tracekit.replay_edits import without_waits
from tracekit.replay_step import Step

_CAUSES = ("sync", "pageable_copy")
# Ops whose result the host goes on with.
_READS = frozenset(
    ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero", "aten::unique2")
)


@dataclass(frozen=True, slots=True)
class NoWait:
    """Calls of one name in one op do not wait any more. cause: sync or pageable_copy. count: of them in the median
    step. reads: the host reads what it waits for, so that it may have to wait all the same: at worst nothing is won.
    """

    cause: str
    call: str
    op: str
    count: int
    reads: bool

    @property
    def name(self) -> str:
        """As texts name it."""
        where = f"{self.call} in {self.op}" if self.op else self.call
        times = f"{where} ({self.count:,} a step)"
        if self.reads:
            return f"no wait for results in {times}"
        return f"pinned memory for {times}" if self.cause == "pageable_copy" else f"no waiting in {times}"

    def calls(self, step: Step) -> Int64s:
        """Those calls of a step."""
        return np.array(
            [call for call in _waiting(step) if _key(step, call) == (self.cause, self.call, self.op)], np.int64
        )

    def apply(self, step: Step, schedule: Schedule, optimistic: bool) -> Schedule:
        """Without the waits, unless they are needed."""
        return schedule if self.reads and not optimistic else without_waits(schedule, self.calls(step))


def waits(group: Group) -> list[NoWait]:
    """One for each kind of call and op of the median step."""
    step = group.median
    keys = [(call, _key(step, call)) for call in _waiting(step)]
    counts = Counter(key for _, key in keys)
    reading = {key for call, key in keys if _reads(step, call)}
    return [NoWait(*key, count=count, reads=key in reading) for key, count in sorted(counts.items())]


def _waiting(step: Step) -> list[int]:
    """Calls of the step itself that wait."""
    found = np.unique(step.schedule.wait_call)
    return [one for one in found[own_calls(step)[found]].tolist() if step.calls.cause[one] in _CAUSES]


def own_calls(step: Step) -> Bools:
    """Which calls are of the step itself: those that start its work, and from the first of these on those that start
    none. (Before them are those of the step that leads in.)
    """
    own = np.zeros(len(step.calls), np.bool_)
    starting = step.rows.call[step.rows.own]
    starting = starting[starting >= 0]
    if len(starting):
        first = int(starting.min())
        own[first:] = step.calls.rows[first:] == 0
        own[starting] = True
    return own


def _key(step: Step, call: int) -> tuple[str, str, str]:
    return step.calls.cause[call], step.calls.name[call], step.calls.op[call]


def _reads(step: Step, call: int) -> bool:
    """Whether it waits for a copy to the host: its own, or that of the call before it on its thread."""
    if step.calls.op[call] in _READS:
        return True
    before = int(step.schedule.call_before[call])
    started = np.flatnonzero((step.rows.call == call) | ((step.rows.call == before) & (before >= 0)))
    return any("DtoH" in step.rows.name[row] or "D2H" in step.rows.name[row] for row in started.tolist())
