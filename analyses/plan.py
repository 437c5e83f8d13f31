"""What should be changed first, and what is it worth on top of the rest?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tracekit.analyses import _plan_texts as texts
from tracekit.analyses import _replay_sums as replay
from tracekit.analyses._missing import no_device
from tracekit.analysis import Coverage, Finding, Result, Row, Scalar, duration
from tracekit.plan_order import DEFAULTS, Bounds, Plan, plans
from tracekit.plan_table import described, plan_table
from tracekit.trace import Trace
from tracekit.wording import counted


class PlanAnalysis:
    """Remedies of all kinds for the same steps, ranked by what each adds to those before it.

    It promises nothing of its own: the analyses that find the remedies do, each as if it came alone.
    """

    name = "plan"
    question = "What should be changed first, and what is it worth on top of the rest?"
    parameters: Mapping[str, Scalar] = MappingProxyType(
        {
            "min_share": DEFAULTS.min_share,  # of the step: remedies that add less are left out
            "most": DEFAULTS.most,  # remedies of steps of one phase and batch size
            "group_share": DEFAULTS.group_share,  # of the time of all steps: steps that take less are left out
            "max_error": DEFAULTS.max_error,  # of the replay: beyond, nothing is said
        }
    )

    def run(self, trace: Trace, parameters: Mapping[str, Scalar]) -> Result:
        """Replay representative steps with one change after the other."""
        bounds = Bounds(
            float(parameters["min_share"] or 0),
            int(parameters["most"] or 0),
            float(parameters["group_share"] or 0),
            float(parameters["max_error"] or 0),
        )
        found = plans(trace, bounds)
        table = plan_table(trace, bounds)
        if not found:
            reason = no_device(trace.footer) if not trace.macro("device_time").num_rows else texts.NO_STEP
            return Result(self.name, parameters, (), table, (), Coverage(reason=reason))
        total = sum(plan.group.total_ns for plan in found)
        told = [plan for plan in found if plan.told]
        reasons = dict.fromkeys(_refused(plan) for plan in found if not plan.told)
        return Result(
            self.name,
            parameters,
            tuple(map(_summary, found)),
            table,
            tuple(_findings(told)),
            Coverage(sum(plan.group.total_ns for plan in told), total, "; ".join(reasons)),
        )


def _refused(plan: Plan) -> str:
    return ": ".join(filter(None, (plan.group.label, plan.reason)))


def _summary(plan: Plan) -> Row:
    """A group, and what all of its remedies win together."""
    low, high = plan.saving
    return described(plan) | {
        "total_ns": plan.group.total_ns,
        "remedies": len(plan.remedies),
        "saving_low_ns": low,
        "saving_high_ns": high,
        "reason": plan.reason or None,
    }


def _findings(told: list[Plan]) -> Iterator[Finding]:
    for plan in told:
        if not plan.remedies:
            continue
        low, high = plan.saving
        label = plan.group.label or "the whole recording"
        yield Finding(
            severity="info",
            title=f"plan for {label}: {duration(plan.step_ns)} could become {duration(plan.step_ns - high)} to "
            f"{duration(plan.step_ns - low)}, first by: {plan.remedies[0].name}",
            detail=_detail(plan),
            evidence=tuple(dict.fromkeys(id for remedy in plan.remedies for id in remedy.evidence)),
            remedy=texts.REMEDY.format(sources=", ".join(dict.fromkeys(remedy.source for remedy in plan.remedies))),
            cost=" ".join(dict.fromkeys(remedy.price for remedy in plan.remedies)),
            verify=texts.VERIFY,
            arithmetic=(
                *replay.interval("saved of a step", [(one.saving_low_ns, one.saving_high_ns) for one in plan.added]),
                *replay.replayed(plan.step_ns, plan.saving),
            ),
        )


def _detail(plan: Plan) -> str:
    listed = "; ".join(
        f"{place}. {remedy.name}, {duration(added.saving_low_ns)} to {duration(added.saving_high_ns)}"
        for place, (remedy, added) in enumerate(zip(plan.remedies, plan.added, strict=True), start=1)
    )
    return texts.DETAIL.format(
        listed=listed,
        played=len(plan.group.chosen),
        steps=counted(len(plan.group.steps), "step"),
        error=plan.group.error,
        limit=texts.LIMIT.format(free=duration(plan.free_ns), busy=duration(plan.busy_ns)),
    )


ANALYSIS = PlanAnalysis()
