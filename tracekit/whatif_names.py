"""What to say of a change that matches nothing: which names come nearest to what was asked for?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

from tracekit.changes import Change, OverlapCommunication, RemoveSync, Scale
from tracekit.kernel_names import name_forms
from tracekit.remedy_waits import own_calls
from tracekit.replay_step import Step
from tracekit.text_grid import cut

_NEAR, _NAME = 5, 70  # names told, characters of each


def nothing_matches(change: Change, steps: Sequence[Step]) -> str:
    """The message. steps: those in which it was looked for."""
    match change:
        case Scale():
            names = Counter(
                name_forms(name).simplified
                for step in steps
                for name, own in zip(step.rows.name, step.rows.own.tolist(), strict=True)
                if own
            )
            return f"no kernel in these steps has a name that matches {change.pattern.pattern!r}{_near(change, names)}"
        case RemoveSync():
            names = _waiting(steps)
            if not names:
                return "no call in these steps waits for the device: there is nothing to remove"
            return f"no call that waits for the device matches {change.pattern.pattern!r}{_near(change, names)}"
        case OverlapCommunication():
            return "there is no communication in these steps to overlap"
        case _:
            return f"{change.name}: there is nothing of it in these steps"


def _near(change: Scale | RemoveSync, names: Counter[str]) -> str:
    """Names most like the expression, and of those that are as like the most frequent."""
    asked = change.pattern.pattern.lower()

    def likeness(name: str) -> float:
        matcher = SequenceMatcher(None, asked, name.lower(), autojunk=False)
        return matcher.find_longest_match().size / max(1, len(asked))

    ranked = sorted(names, key=lambda name: (-likeness(name), -names[name], name))
    return f"; nearest are: {'; '.join(cut(name, _NAME) for name in ranked[:_NEAR])}" if ranked else ""


def _waiting(steps: Sequence[Step]) -> Counter[str]:
    """Calls that may wait, and the ops around them."""
    names: Counter[str] = Counter()
    for step in steps:
        own, waiting = own_calls(step), set(step.schedule.wait_call.tolist())
        for call in range(len(step.calls)):
            if own[call] and (call in waiting or step.calls.cause[call] in ("sync", "pageable_copy")):
                names.update(filter(None, (step.calls.name[call], step.calls.op[call])))
    return names
