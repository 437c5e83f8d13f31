"""What a roofline cannot judge: devices without peaks, time without evidence; the reason, and a remedy that fits it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.roofline_rows import MS, US, Row, group, h100, unknown
from tests.test_roofline_findings import MI300X, PARAMETERS, covered, judged
from tracekit.analyses._roofline_coverage import cause
from tracekit.analyses._roofline_findings import findings


def test_a_device_without_peaks() -> None:
    found = judged([covered(20 * MS)], unknown(), unknown(rank=1))
    assert [(one.severity, one.title) for one in found] == [("info", "no roofs for a device without a name")]
    assert found[0].detail.startswith(
        "The trace has no device name. No peaks are assumed. Time, FLOPs and bytes are shown;"
    )
    assert "--peak bf16=989e12 --peak bandwidth=3.35e12" in found[0].remedy
    (finding,) = judged([covered(10 * MS)], unknown(name="GPU X", bandwidth=1e12))
    assert finding.title == "no compute roofs for GPU X"
    (finding,) = judged([covered(10 * MS)], h100(bandwidth=None, problem="bandwidth unknown"))
    assert finding.title == "no memory roof for NVIDIA H100 80GB HBM3"


def test_lines_of_a_file_are_not_in_the_finding() -> None:
    problem = 'Not known, as GPU X. Say so in three lines:\n[[device]]\nnames = [""]\nlike = "X"\nNo peaks.'
    (finding,) = judged([covered(10 * MS)], unknown(problem=problem))
    assert finding.detail.startswith(
        "Not known, as GPU X. Say so in three lines (see the report of roofline). No peaks. Time, FLOPs and bytes"
    )


def test_what_has_no_evidence_and_why() -> None:
    rows = [
        covered(4 * MS),
        group(kernel="in_graph", dur_ns=3 * MS, launch="graph", example_id=1),
        group(kernel="no_shapes", dur_ns=2 * MS, op="aten::mm", shapes="[]", evidence="F", launch="op", example_id=2),
        group(kernel="new", dur_ns=600 * US, op="my::op", shapes="[[1]]", launch="op", example_id=3),
        group(kernel="nccl", dur_ns=399 * US, category="communication", bound="communication", example_id=4),
        group(kernel="graph", dur_ns=1 * US, category="graph", launch="graph", example_id=5),
    ]
    (finding,) = judged(rows)
    assert (finding.severity, finding.title) == ("info", "60.0% of the busy time has no evidence of its work")
    assert finding.detail == (
        "Of the busy time, 30.0% replayed by graphs, which run no op; 20.0% launched by ops without shapes; 6.0% "
        "launched by ops whose work is not known; 4.0% communication, whose sizes were not recorded. Mostly in_graph "
        "(3.00 ms); no_shapes (2.00 ms); new (600 us)."
    )
    assert [
        word in finding.remedy for word in ("--capture-trace", "record_shapes", "--ncu", "record_param", "nsys")
    ] == [*(True, True, True, False, False)]
    assert finding.evidence == (1, 2, 3, 4, 5)
    assert judged(rows, covered_share=0.4) == []


@pytest.mark.parametrize(
    "row, why",
    [
        ({"category": "graph", "launch": "graph"}, "block"),
        ({"launch": "graph", "op": "CompiledFxGraph abc"}, "graph"),
        ({"launch": "none"}, "before"),
        ({"launch": "call"}, "call"),
        ({"launch": "op", "op": "Torch-Compiled Region: 0/0"}, "compiled"),
        ({"launch": "op", "op": "aten::mm", "shapes": "[]"}, "no_shapes"),
        ({"launch": "op", "op": "my::op", "shapes": "[[1]]"}, "no_model"),
        ({"category": "communication", "launch": "graph"}, "communication"),
    ],
)
def test_causes(row: Row, why: str) -> None:
    assert cause(group(**row)) == why


@pytest.mark.parametrize(
    "row, device, beside, said, unsaid",
    [
        ({"launch": "graph"}, {}, ((), ()), ["--capture-trace", "--model", "--ncu"], ["record_shapes"]),
        ({"launch": "graph"}, MI300X, ((), ()), ["--capture-trace", "--model"], ["--ncu"]),
        ({"launch": "graph"}, {}, ((), ("model",)), ["--capture-trace"], ["--model"]),
        ({"launch": "graph"}, MI300X, ((), ("model", "a.json")), ["stays open"], ["Give"]),
        ({"launch": "none"}, {}, ((), ()), ["Nothing is wrong"], ["--model", "--ncu", "--capture-trace"]),
        ({"launch": "call"}, {}, (("nsys_export",), ()), ["Nsight Systems records no shapes", "--ncu"], ["collect"]),
        ({"launch": "call"}, MI300X, (("kineto",), ()), ["record_shapes", "AMD's profilers"], ["Nsight", "--ncu"]),
        ({"launch": "op", "op": "CompiledFxGraph"}, MI300X, ((), ()), ["without torch.compile"], ["--ncu"]),
        ({"launch": "op", "op": "my::op", "shapes": "[[1]]"}, {}, ((), ()), ["--ncu"], ["record_shapes"]),
    ],
)
def test_remedies_fit_the_cause(
    row: Row, device: Row, beside: tuple[Sequence[str], Sequence[str]], said: Sequence[str], unsaid: Sequence[str]
) -> None:
    """beside: formats of the trace's files, and what was to lend work."""
    (finding,) = findings([group(dur_ns=10 * MS, **row)], [h100(**device)], PARAMETERS, *beside)
    assert [words for words in said if words not in finding.remedy] == []
    assert [words for words in unsaid if words in finding.remedy] == []
