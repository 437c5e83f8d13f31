"""What in a step does a CUDA graph capture not allow, where is it, and who calls it?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tracekit.replay_choice import Group
from tracekit.roofline_names import kernel_name
from tracekit.trace import Trace

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "readback": "the host waits for a result",
        "pageable_copy": "copy of pageable memory",
        "synchronous_copy": "copy that is not asynchronous",
        "synchronisation": "wait for the device",
        "allocation": "allocation or release of memory",
        "loading": "loading of code or instantiation of a graph",
        "host_callback": "host function in a stream",
        "legacy_stream": "work on the legacy default stream",
        "pause": "nothing was launched for long",
        "varying_shapes": "kernel whose grid or name differs from step to step",
    }
)
_OF_KERNELS = ("varying_shapes", "legacy_stream")  # told by the kernel, not by the call
_SHOWN_IDS = 3  # calls of one kind named as evidence
_LEVELS = 12  # rows around a call that are looked through for a Python function
_PARENTS = "SELECT id, parent_id, kind, name FROM events WHERE id IN (SELECT unnest($ids))"


@dataclass(frozen=True, slots=True)
class Blocker:
    """Calls of one kind, name and op in steps of a group. place: inside of what could be captured, before or after it.
    splits: it ends a piece; else it is too rare, or no hindrance. count: in all steps; steps: those that have it.
    function: innermost Python function around the first, "" if none is recorded.
    """

    kind: str
    call: str
    op: str
    place: str
    splits: bool
    count: int
    steps: int
    ids: tuple[int, ...]
    function: str = ""

    def to_json(self, steps: int) -> dict[str, Any]:
        """As a table shows it. steps: of the group."""
        return {
            "kind": self.kind,
            "call": self.call,
            "op": self.op,
            "function": self.function,
            "place": self.place,
            "splits": self.splits,
            "per_step": round(self.count / max(1, steps), 3),
            "ids": list(self.ids),
        }


def blockers_of(trace: Trace, group: Group) -> tuple[Blocker, ...]:
    """Blockers in the steps of a group, those that split first, then those that come most often."""
    rows = trace.whole.sql(
        """
        SELECT
            blocker,
            call,
            op,
            place,
            splits,
            sum(count)::BIGINT AS count,
            count(DISTINCT coalesce(step, -1)) AS steps,
            list(first_id ORDER BY first_id)[1:$shown] AS ids
        FROM graph_blockers()
        WHERE rank = $rank
            AND device IS NOT DISTINCT FROM $device
            AND (step IS NULL OR step IN (SELECT unnest($steps)))
            AND place <> 'aside'
        GROUP BY ALL
        """,
        {
            "rank": group.rank,
            "device": group.device,
            "steps": [step for step in group.steps if step is not None] or [-1],
            "shown": _SHOWN_IDS,
        },
    ).to_pylist()
    functions = _functions(trace, [row["ids"][0] for row in rows])
    found = [
        Blocker(
            row["blocker"], row["call"], row["op"], row["place"], row["splits"], row["count"], row["steps"],
            tuple(row["ids"]), functions.get(row["ids"][0], ""),
        )
        for row in rows
    ]  # fmt: skip
    order = list(MEANINGS)
    return tuple(
        sorted(
            found,
            key=lambda one: (
                one.place != "inside",
                not one.splits,
                order.index(one.kind),
                -one.count,
                one.call,
                one.op,
            ),
        )
    )


def _functions(trace: Trace, ids: Sequence[int]) -> dict[int, str]:
    """The innermost Python function around each of these calls, of those around which one is recorded."""
    found: dict[int, str] = {}
    above = {call: call for call in ids}  # the row from which to look up
    for _ in range(_LEVELS):
        if not above:
            break
        rows = {row["id"]: row for row in trace.whole.sql(_PARENTS, {"ids": sorted(set(above.values()))}).to_pylist()}
        for call, at in list(above.items()):
            row = rows.get(at)
            if row is not None and row["kind"] == "python":
                found[call] = row["name"]
            if row is None or row["kind"] == "python" or row["parent_id"] is None:
                del above[call]
            else:
                above[call] = row["parent_id"]
    return found


def named(blockers: Iterable[Blocker], steps: int, most: int = 3) -> str:
    """What stands in the way as text, the first few kinds: "2 x readback in aten::item". steps: of the group."""
    counts: dict[str, float] = {}
    for one in blockers:
        where = one.op or one.function or one.call
        text = f"{one.kind} of {kernel_name(one.call)}" if one.kind in _OF_KERNELS else f"{one.kind} in {where}"
        # A copy to the host and the wait for it are one read-back.
        counts[text] = max(counts.get(text, 0), one.count / max(1, steps))
    texts = [f"{count:.0f} x {text}" if count >= 1.5 else text for text, count in counts.items()]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
