"""What a roofline cannot judge, why, and what would help: devices without peaks, time without evidence of its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from tracekit.analyses import _arithmetic as arithmetic
from tracekit.analyses import _roofline_advice as advice
from tracekit.analyses._roofline_texts import NO_PEAKS
from tracekit.analysis import Finding, Row, Scalar, duration
from tracekit.devices import HOW_TO_GIVE
from tracekit.roofline_names import COMPILED, kernel_name

COVERED = frozenset("ABCDEG")  # tiers that say what a kernel did
_NAMED, _SHOWN = 3, 8
_NCU = "Measure these kernels with Nsight Compute and give --ncu metrics.csv (analysis counters prints the command)."
_NO_COUNTERS = "Counters of AMD's profilers are not read."


def no_peaks(summary: Sequence[Row]) -> Iterator[Finding]:
    """One for each kind of device."""
    for what, name, problem in dict.fromkeys((_missing(row), row["name"], row["problem"]) for row in summary):
        if not problem or not what:
            continue
        yield Finding(
            severity="info",
            title=NO_PEAKS.title.format(what=what, name=name or "a device without a name"),
            detail=NO_PEAKS.detail.format(problem=_in_one_line(problem.replace(HOW_TO_GIVE, "").strip())),
            remedy=NO_PEAKS.remedy.format(how=HOW_TO_GIVE),
            cost=NO_PEAKS.cost,
            verify=NO_PEAKS.verify,
        )


def _in_one_line(problem: str) -> str:
    """Without the lines of a file, which the report of the analysis has."""
    first, *others = problem.split("\n")
    return f"{first.rstrip(':')} (see the report of roofline). {others[-1]}" if others else problem


def _missing(device: Row) -> str:
    """Which roofs a device lacks; "" if none, or it had nothing to do."""
    if not device["busy_ns"] or (device["peaks"] and device["bandwidth"]):
        return ""
    return "memory roof" if device["peaks"] else "compute roofs" if device["bandwidth"] else "roofs"


def uncovered(
    rows: Sequence[Row],
    summary: Sequence[Row],
    parameters: Mapping[str, Scalar],
    formats: Collection[str],
    tried: Collection[str],
) -> Iterator[Finding]:
    """One for all devices: what has no evidence, why, and what would give it. formats, tried: as for findings."""
    total = sum(row["busy_ns"] for row in summary)
    left = sorted((row for row in rows if row["evidence"] not in COVERED), key=_exclusive, reverse=True)
    missing = sum(map(_exclusive, left))
    if total <= 0 or total - missing >= float(parameters["covered_share"] or 0) * total:
        return
    times: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    for row in left:
        times[cause(row)] += _exclusive(row)
        kernels[kernel_name(row["kernel"])] += _exclusive(row)
    ranked = [why for why, _ in times.most_common()]
    shares = {why: f"{times[why] / total:.1%}" for why in ranked}
    reasons = "; ".join(f"{share} {_CAUSES[why]}" for why, share in shares.items() if share != "0.0%")
    listed = "; ".join(f"{name} ({duration(ns)})" for name, ns in kernels.most_common(_NAMED))
    worth = [why for why in ranked if times[why] >= float(parameters["share"] or 0) * total] or ranked[:1]
    maker = next((found for row in summary if (found := advice.vendor(row, rows))), "")
    remedies = dict.fromkeys(part for why in worth for part in _remedies(why, rows, maker, formats, tried))
    yield Finding(
        severity="info",
        title=f"{missing / total:.1%} of the busy time has no evidence of its work",
        detail=f"Of the busy time, {reasons}. Mostly {listed}.",
        evidence=tuple(row["example_id"] for row in left[:_SHOWN]),
        remedy=" ".join(remedies),
        cost="Another run; recording shapes slows the host, and so does a profiler of counters.",
        verify="by_evidence in the summary of the next run.",
        arithmetic=tuple(_sums(missing, total)),
    )


def _sums(missing: int, busy: int) -> Iterator[str]:
    of_all, known = "SELECT sum(exclusive_ns) FROM roofline()", arithmetic.one_of(sorted(COVERED))
    without = f"{of_all} WHERE evidence IS NULL OR evidence NOT IN {known}"
    yield arithmetic.queried("without evidence", without, missing)
    yield arithmetic.queried("busy time", of_all, busy)
    yield arithmetic.share("share", missing, busy)


def _exclusive(row: Row) -> int:
    return int(row["exclusive_ns"])


# ---- causes and remedies ---------------------------------------------------------------------------------------------

_CAUSES: Mapping[str, str] = {
    "block": "graph replays recorded as one block",
    "communication": "communication, whose sizes were not recorded",
    "graph": "replayed by graphs, which run no op",
    "before": "whose launch was not recorded: before the recording began, or lost",
    "call": "launched outside all recorded ops",
    "compiled": "launched by compiled code without ops of its own",
    "no_shapes": "launched by ops without shapes",
    "no_model": "launched by ops whose work is not known",
}


def cause(row: Row) -> str:
    """Why the work of a group is not known: a key of _CAUSES."""
    if row["category"] in ("graph", "communication"):
        return "block" if row["category"] == "graph" else "communication"
    if row["launch"] in ("graph", "none"):
        return "graph" if row["launch"] == "graph" else "before"
    if not row["op"] or COMPILED.match(row["op"]):
        return "compiled" if row["op"] else "call"
    return "no_model" if row["shapes"] and row["shapes"] != "[]" else "no_shapes"


def _remedies(
    why: str, rows: Sequence[Row], maker: str, formats: Collection[str], tried: Collection[str]
) -> Iterator[str]:
    """What fits the cause, the profiler and the device."""
    is_nsys = any(form.startswith("nsys") for form in formats)
    counters = _NO_COUNTERS if maker == advice.AMD else _NCU
    if why == "block":
        yield "Record the nodes of CUDA graphs (nsys: --cuda-graph-trace=node)."
    elif why == "communication":
        yield "Record with a torch.profiler that writes the sizes of collectives (record_param_comms)."
    elif why == "graph":
        yield _for_graphs(rows, tried)
        if maker != advice.AMD:
            yield "Or measure with Nsight Compute (--graph-profiling node) and give --ncu metrics.csv."
    elif why == "before":
        yield "Nothing is wrong with these: begin to record on an idle device, or leave their time out (--since)."
    elif why in ("call", "no_shapes"):
        yield (
            "Nsight Systems records no shapes: of PyTorch programs record with torch.profiler and record_shapes=True."
            if is_nsys
            else "Record ops with shapes: record_shapes=True in torch.profiler, `tracekit collect` with shapes."
        )
        if is_nsys or why == "call":
            yield counters
    elif why == "compiled":
        yield "Compiled kernels without ops have no shapes in any trace: record a run without torch.compile."
        yield counters
    else:
        yield counters


def _for_graphs(rows: Sequence[Row], tried: Collection[str]) -> str:
    """What was given already need not be asked for."""
    lent = {str(row["how"] or "") for row in rows}
    options = []
    if not any(how.startswith("capture trace") for how in lent) and not set(tried) - {"model", "tensor parallel"}:
        options.append(
            "--capture-trace (a trace with shapes, recorded while the server captured or ran without graphs)"
        )
    if not any(how.startswith("model config") for how in lent) and "model" not in tried:
        options.append("--model config.json of a language model")
    return f"Give {' or '.join(options)}." if options else "What --model and --capture-trace do not tell stays open."
