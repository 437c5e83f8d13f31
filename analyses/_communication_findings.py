"""What the time of communication says: where nothing covers it, for whom ranks wait, which messages are slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analyses import _communication_texts as texts
from tracekit.analyses._communication_cases import Case, Messages
from tracekit.analysis import Finding, Severity, duration

Links = Mapping[tuple[int, int | None], float]  # peak of the links of each device, bytes per second in one direction
_SHOWN = 5  # rows of evidence
_NAMED = 3  # kinds of messages named in a sentence
_FAR = 4  # times larger messages that take as long show that size does not matter,
_AS_LONG = 1.5  # that is at most so many times as long
_RATE = "bytes/ns"  # which are GB/s
_OWN = ("custom_allreduce", "fused_norm")


@dataclass(frozen=True, slots=True)
class Limits:
    """The parameters of the analysis that judge, by their names."""

    exposed_share: float
    critical_share: float
    finding_share: float
    last_share: float
    small_bytes: int
    latency_share: float
    bandwidth_share: float


@dataclass(frozen=True, slots=True)
class Judged:
    """A case with its messages told apart: those that are too small to fill the links, and those that should and do
    not. link: peak of its links, None if that is not known. larger: how large others are that take as long as small
    ones.
    """

    case: Case
    link: float | None
    small: tuple[Messages, ...]
    slow: tuple[Messages, ...]
    larger: int | None

    @property
    def small_ns(self) -> int:
        """Exposed time of small messages without waiting."""
        return sum(one.exposed_transfer_ns for one in self.small)

    @property
    def slow_ns(self) -> int:
        """What of the exposed time of slow messages would be gone at the peak of the links."""
        exposed = sum(one.exposed_transfer_ns for one in self.slow)
        return exposed - round(exposed * self.reached)

    @property
    def reached(self) -> float:
        """The bandwidth of slow messages as a part of the peak."""
        sent, taken = sum(one.link_bytes for one in self.slow), sum(one.carrying_ns for one in self.slow)
        return min(1.0, 1e9 * sent / taken / self.link) if taken and self.link else 1.0

    def promised(self, kind: Kind) -> int:
        """Time that a finding of this kind says could be saved at most."""
        return {"waiting": self.case.exposed_wait_ns, "small": self.small_ns, "slow": self.slow_ns}[kind]


Kind = Literal["waiting", "small", "slow"]
_WORDS: Mapping[Kind, str] = {
    "waiting": "waiting",
    "small": "small messages",
    "slow": "what is beyond the peak of the links",
}


def findings(cases: Sequence[Case], links: Links, limits: Limits) -> Iterator[Finding]:
    """For each phase at most one of each kind, of the device where it takes the largest share of the steps. What one
    promises no other one does.
    """
    judged = [_judge(case, cases, links.get((case.rank, case.device)), limits) for case in cases]
    several = len({(case.rank, case.device) for case in cases}) > 1
    for phase in dict.fromkeys(case.phase for case in cases):
        here = [one for one in judged if one.case.phase == phase]
        told: dict[Kind, Finding] = {}
        makers: Mapping[Kind, Callable[[Judged, str, Limits], Finding]]
        makers = {"waiting": _waiting, "small": _small, "slow": _slow}
        for kind, make in makers.items():
            worst, where = _worst(here, [one.promised(kind) for one in here], several)
            ns = worst.promised(kind)
            if ns and worst.case.share(ns) >= limits.finding_share:
                told[kind] = make(worst, where, limits)
        worst, where = _worst(here, [one.case.exposed_ns for one in here], several)
        if worst.case.exposed_ns and worst.case.share(worst.case.exposed_ns) >= limits.exposed_share:
            yield _exposed(worst, where, limits, tuple(told))
        yield from told.values()


def _worst(here: Sequence[Judged], times: Sequence[int], several: bool) -> tuple[Judged, str]:
    """The one where a time is the largest share, and which device that is, where there are several."""
    shares = [one.case.share(ns) for one, ns in zip(here, times, strict=True)]
    worst = here[shares.index(max(shares))]
    hit = sum(ns > 0 for ns in times)
    where = f" on rank {worst.case.rank} device {worst.case.device}" if several else ""
    return worst, where + (f", the worst of {hit}" if hit > 1 else "")


# ---- which messages are what -----------------------------------------------------------------------------------------


def _judge(case: Case, cases: Sequence[Case], link: float | None, limits: Limits) -> Judged:
    device = [
        one for other in cases if (other.rank, other.device) == (case.rank, case.device) for one in other.messages
    ]
    small: list[Messages] = []
    slow: list[Messages] = []
    larger = 0
    for one in case.messages:
        if one.message is None or not one.matched:
            continue
        reached = 1e9 * one.link_bytes / one.carrying_ns / link if link and one.carrying_ns and one.link_bytes else None
        if one.message > limits.small_bytes:
            if reached is not None and reached < limits.bandwidth_share:
                slow.append(one)
            continue
        as_long = _as_long(one, device)
        if as_long or (reached is not None and reached < limits.latency_share):
            small.append(one)
            larger = max(larger, as_long)
    return Judged(case, link, tuple(small), tuple(slow), larger or None)


def _as_long(one: Messages, others: Sequence[Messages]) -> int:
    """The largest message that is far larger and takes about as long to transfer; 0 without one."""
    sizes = [
        other.message
        for other in others
        if (other.group, other.collective, other.subcategory) == (one.group, one.collective, one.subcategory)
        and other.matched
        and other.message is not None
        and other.message >= _FAR * max(1, one.message or 0)
        and other.transfer_ns * one.matched <= _AS_LONG * one.transfer_ns * other.matched
    ]
    return max(sizes, default=0)


# ---- findings --------------------------------------------------------------------------------------------------------


def _exposed(one: Judged, where: str, limits: Limits, told: Sequence[Kind]) -> Finding:
    case = one.case
    ns = case.exposed_ns
    left = ns - sum(one.promised(kind) for kind in told)
    said = [f"Mostly {_named(case.messages, case)}. {texts.EXPOSED.detail}"]
    if case.matched:
        said.append(f"Of it {duration(case.exposed_wait_ns)} is waiting for ranks that came later.")
    else:
        said.append("How much of it is waiting for other ranks cannot be told from this trace.")
    sizes = [(each.message, each.exposed_ns) for each in case.messages if each.message is not None]
    is_small = 2 * sum(spent for size, spent in sizes if size <= limits.small_bytes) > ns
    first = (
        f"Most of it is of messages up to {texts.size(limits.small_bytes)}. {texts.SMALL.remedy} " if is_small else ""
    )
    return Finding(
        severity=_severity(case, ns, limits),
        title=f"exposed communication takes {_cost(case, ns)}{where}",
        detail=" ".join(said),
        saving_high_ns=left,
        evidence=_evidence(case.messages),
        remedy=(first if "small" not in told else "") + texts.EXPOSED.remedy + _less(case),
        cost=texts.EXPOSED.cost,
        verify=texts.EXPOSED.verify,
        arithmetic=tuple(_sums(case, "exposed", "sum(exposed_ns)", ns)) + tuple(_remaining(one, told)),
    )


def _remaining(one: Judged, told: Sequence[Kind]) -> Iterator[str]:
    """What other findings do not promise."""
    left = one.case.exposed_ns
    for kind in told:
        if promised := one.promised(kind):
            yield arithmetic.less(f"without {_WORDS[kind]}", left, promised)
            left -= promised
    if left:
        yield arithmetic.saving(0, left)


def _less(case: Case) -> str:
    """How to send less of what costs most."""
    spent: Counter[str] = Counter()
    for each in case.messages:
        spent[each.collective] += each.exposed_ns
    return texts.SEND_LESS.get(spent.most_common(1)[0][0], texts.SEND_LESS_OF_OTHERS)


def _waiting(one: Judged, where: str, limits: Limits) -> Finding:
    case = one.case
    ns = case.exposed_wait_ns
    by_last: Counter[int] = Counter()
    for each in case.messages:
        by_last.update(each.waits)
    rank, of_rank = max(by_last.items(), key=lambda item: (item[1], -item[0]))
    is_named = of_rank >= limits.last_share * ns
    who = f"rank {rank}" if is_named else "other ranks"
    waited = [each for each in case.messages if each.exposed_wait_ns]
    return Finding(
        severity=_severity(case, ns, limits),
        title=f"waiting for {who} in collectives takes {_cost(case, ns)}{where}",
        detail=f"{of_rank / ns:.1%} of it is for rank {rank}, which came last. Mostly in {_named(waited, case)}. "
        f"{texts.WAIT.detail}",
        saving_high_ns=ns,
        evidence=_evidence(waited),
        remedy=(texts.NAMED_LAST.format(rank=rank) if is_named else texts.NOBODY_LAST) + texts.WAIT.remedy,
        cost=texts.WAIT.cost,
        verify=texts.WAIT.verify,
        arithmetic=(
            *_sums(case, "exposed waiting", "sum(exposed_wait_ns)", ns),
            arithmetic.share(f"for rank {rank}", of_rank, ns),
            arithmetic.saving(0, ns),
        ),
    )


def _small(one: Judged, where: str, limits: Limits) -> Finding:
    case, ns = one.case, one.small_ns
    transfer, matched = sum(each.transfer_ns for each in one.small), sum(each.matched for each in one.small)
    detail = f"Mostly {_named(one.small, case)}; {duration(transfer / matched)} each without waiting. "
    if one.larger:
        detail += f"Messages of {texts.size(one.larger)} take about as long. "
    lines = [
        *_sums_of(one, one.small, "exposed transfer of small messages"),
        arithmetic.each("of each message", transfer, matched, "message"),
    ]
    if sent := sum(each.link_bytes for each in one.small if one.link):
        peak = (one.link or 0.0) / 1e9
        least = sent / peak
        detail += f"Their bytes alone would take {duration(least / matched)} on the links. "
        lines.append(f"at the peak of the links: {sent:,} bytes / {arithmetic.amount(peak, _RATE)} = {least:,.0f} ns")
    is_own = all(each.subcategory in _OWN for each in one.small)
    return Finding(
        severity=_severity(case, ns, limits, at_most="warning"),
        title=f"collectives of small messages, up to {texts.size(max(each.message or 0 for each in one.small))}, take "
        f"{_cost(case, ns)}{where}",
        detail=f"{detail}{texts.SMALL.detail}",
        saving_high_ns=ns,
        evidence=_evidence(one.small),
        remedy=(texts.OWN_ALREADY if is_own else "") + texts.SMALL.remedy,
        cost=texts.SMALL.cost,
        verify=texts.SMALL.verify,
        arithmetic=(*lines, arithmetic.saving(0, ns)),
    )


def _slow(one: Judged, where: str, limits: Limits) -> Finding:
    case, ns, peak = one.case, one.slow_ns, (one.link or 0.0) / 1e9
    sent, taken = sum(each.link_bytes for each in one.slow), sum(each.carrying_ns for each in one.slow)
    exposed, rate = sum(each.exposed_transfer_ns for each in one.slow), sent / taken
    written = arithmetic.amount(peak, _RATE)
    lines = (
        f"bandwidth: {sent:,} bytes / {taken:,} ns = {rate:,.1f} {_RATE}",
        f"of the peak: {sent:,} bytes / {taken:,} ns / {written} = {one.reached:.1%}",
        arithmetic.less("exposed transfer", sum(each.exposed_ns for each in one.slow), _waits(one.slow)),
        f"at the peak: {exposed:,} ns * {sent:,} bytes / {taken:,} ns / {written} = {exposed - ns:,} ns",
        arithmetic.less("beyond the peak", exposed, exposed - ns),
        *_of_steps(case, ns),
        arithmetic.saving(0, ns),
    )
    return Finding(
        severity=_severity(case, ns, limits, at_most="warning"),
        title=f"collectives of large messages reach {one.reached:.1%} of the links' bandwidth: "
        f"{_cost(case, ns)} more than at the peak{where}",
        detail=f"{rate:,.1f} of {peak:,.1f} GB/s, without waiting for ranks; mostly "
        f"{_named(one.slow, case)}. {texts.SLOW.detail}",
        saving_high_ns=ns,
        evidence=_evidence(one.slow),
        remedy=texts.SLOW.remedy,
        cost=texts.SLOW.cost,
        verify=texts.SLOW.verify,
        arithmetic=lines,
    )


# ---- words -----------------------------------------------------------------------------------------------------------


def _severity(case: Case, ns: int, limits: Limits, *, at_most: Severity = "critical") -> Severity:
    return at_most if case.share(ns) >= limits.critical_share else "warning"


def _step(case: Case) -> str:
    return "step" if case.phase == "unknown" else f"{case.phase} step"


def _cost(case: Case, ns: int) -> str:
    if not case.steps:
        return f"{duration(ns)}, {case.share(ns):.1%} of the span"
    which = "in the only" if case.steps == 1 else "per"
    return f"{duration(ns / case.steps)} {which} {_step(case)}, {case.share(ns):.1%} of its time"


def _sums(case: Case, label: str, measure: str, ns: int) -> Iterator[str]:
    """A time of all calls, of each step, and as a share."""
    yield arithmetic.queried(label, f"SELECT {measure} FROM {case.source}", ns)
    yield from _of_steps(case, ns)


def _sums_of(one: Judged, messages: Sequence[Messages], label: str) -> Iterator[str]:
    """The same of the exposed transfer of some of them."""
    exposed, waits = sum(each.exposed_ns for each in messages), _waits(messages)
    yield arithmetic.less(label, exposed, waits)
    yield from _of_steps(one.case, exposed - waits)


def _waits(messages: Sequence[Messages]) -> int:
    return sum(each.exposed_wait_ns for each in messages)


def _of_steps(case: Case, ns: int) -> Iterator[str]:
    if case.steps:
        yield arithmetic.each("of each step", ns, case.steps)
    yield arithmetic.queried("time of the steps" if case.steps else "span", case.whole, case.total_ns)
    yield arithmetic.share("share", ns, case.total_ns)


def _named(messages: Sequence[Messages], case: Case) -> str:
    """The most exposed ones."""
    said = []
    for one in messages[:_NAMED]:
        what = one.collective if one.message is None else f"{one.collective} of {texts.size(one.message)}"
        often = f"{one.count / case.steps:,.4g} a step" if case.steps else f"{one.count:,}"
        said.append(f"{what} ({often}, {duration(one.exposed_ns)} exposed in all)")
    return ", ".join(said)


def _evidence(messages: Sequence[Messages]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(id for one in messages for id in one.examples))[:_SHOWN]
