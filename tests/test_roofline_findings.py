"""Findings of a roofline: what each promises, that no group is in two, and what is said where nothing can be judged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.roofline_rows import MS, US, Row, group, h100, unknown
from tracekit.analyses._roofline_findings import findings, kind_of
from tracekit.analysis import Finding

PARAMETERS = {"near_roof": 0.6, "short_ns": 10_000, "share": 0.05, "covered_share": 0.9, "above_roof": 1.05}
# A decode GEMM: 32 rows x 4096 by 4096 x 14336, bf16: 117,440,512 bytes of weights, 1,179,648 of the rest.
WEIGHT_BYTES = 4096 * 14336 * 2
BYTES = WEIGHT_BYTES + 32 * 4096 * 2 + 32 * 14336 * 2
FLOPS = 2 * 32 * 4096 * 14336


def judged(rows: Sequence[Row], *summary: Row, **parameters: Any) -> list[Finding]:
    return list(findings(rows, summary or [h100()], {**PARAMETERS, **parameters}))


def gemm(**said: Any) -> Row:
    """At 80 % of what is achievable: its bytes take 40 us (119 MB at 2.97 TB/s), its FLOPs 5 us, and it takes 50 us."""
    row = group(
        **{"kernel": "void nvjet_tst_64x8(Params)", "op": "aten::mm", "math": "bf16", "evidence": "B"},
        **{"flops": FLOPS, "bytes": BYTES, "weight_bytes": WEIGHT_BYTES, "weight_bits": 16, "bound": "memory"},
        **{"dur_ns": 50 * US, "memory_ns": 40.0 * US, "compute_ns": 5.0 * US, "roof_ns": 40.0 * US},
        **{"roof_fraction": 0.8, "datasheet_fraction": 0.72, "example_id": 7},
    )
    return row | said


def slow(**said: Any) -> Row:
    """Needs 3 of its 10 ms, in 5 steps."""
    row = group(
        **{"kernel": "ns::slow<int>(int)", "op": "aten::mm", "math": "bf16", "evidence": "B"},
        **{"dur_ns": 10 * MS, "steps": 5},
        **{"flops": 2e12, "bytes": 1e9, "memory_ns": 1.0 * MS, "compute_ns": 3.0 * MS, "roof_ns": 3.0 * MS},
        **{"roof_fraction": 0.3, "datasheet_fraction": 0.24, "example_id": 3},
    )
    return row | said


def covered(ns: int, **said: Any) -> Row:
    """A group that nothing is to be said of."""
    return group(kernel="fine", dur_ns=ns, evidence="B", bound="compute", roof_ns=0.9 * ns, **said)


# ---- nothing ---------------------------------------------------------------------------------------------------------


def test_nothing_in_nothing_out() -> None:
    assert list(findings([], [], PARAMETERS)) == []
    assert judged([], h100(busy_ns=0), unknown(busy_ns=0)) == []
    assert judged([covered(10 * MS)]) == []


# ---- time beyond the least -------------------------------------------------------------------------------------------


def test_of_kernels_that_could_be_fused_the_analysis_fusion_says_what_is_to_be_saved() -> None:
    (finding,) = judged([slow(category="norm"), covered(10 * MS)], h100(busy_ns=20 * MS))
    assert "spend 7.00 ms beyond their least time" in finding.title
    assert finding.saving_high_ns == 0


def test_whole_finding_of_time_above_the_roof() -> None:
    (finding,) = judged([slow(), covered(10 * MS)], h100(busy_ns=20 * MS))
    assert finding == Finding(
        severity="warning",
        title="gemm: kernels below 60% of their roof spend 7.00 ms beyond their least time, 1.40 ms per step",
        detail="Mostly mm in slow (30% of its roof, 1.40 ms in each of 5 steps). That is 35.0% of the busy time. What "
        "they compute and move at least would take 3.00 ms at achievable peaks; no real kernel gets all of the rest "
        "back.",
        saving_low_ns=0,
        saving_high_ns=7 * MS,
        evidence=(3,),
        remedy="Tuned kernels: cuBLASLt's heuristics or max-autotune of torch.compile.",
        cost="Tuning time at start.",
        verify="Same load, this one change: roof_fraction of these kernels.",
        arithmetic=(
            'beyond their least time: tracekit sql TRACE "SELECT sum(greatest(0, least(alone_ns - roof_ns, '
            'exclusive_ns))) FROM roofline() WHERE example_id IN (3)" = 7,000,000 ns',
            "of each step: 7,000,000 ns / 5 steps = 1,400,000 ns",
            "of the busy time: 7,000,000 ns / 20,000,000 ns = 35.0%",
            "saving: at least 0 ns, at most 7,000,000 ns",
        ),
    )


@pytest.mark.parametrize(
    "changed, saving",
    [
        ({}, 7 * MS),
        ({"evidence": "A"}, 7 * MS),
        ({"evidence": "D"}, 7 * MS),
        ({"evidence": "E"}, None),  # a window of the whole device
        ({"evidence": None}, None),
        ({"exclusive_ns": 2 * MS}, 2 * MS),  # the rest runs beside other work
        ({"alone_ns": 4 * MS}, 1 * MS),  # without what overlaps the kernel before
        ({"alone_ns": 2 * MS}, None),  # below what it needs, yet no error
        ({"roof_fraction": 0.6}, None),
        ({"bound": "compute"}, int(3 * MS - 3 * MS * 989 / 1979)),  # in FP8, which is another finding
        ({"bound": "compute", "math": "fp32"}, None),
        ({"notes": "bf16 assumed, may be far more"}, None),
        ({"roof_ns": None, "roof_fraction": None}, None),
        ({"problem": "above roof"}, 0),
        ({"category": "communication"}, None),
    ],
)
def test_time_above_the_roof(changed: Row, saving: int | None) -> None:
    found = judged([slow(**changed), covered(10 * MS)], h100(busy_ns=20 * MS), covered_share=0.0)
    assert [one.saving_high_ns for one in found] == ([] if saving is None else [saving])


def test_each_category_for_itself_and_only_what_is_enough() -> None:
    rows = [
        slow(),
        slow(category="norm", steps=4),
        slow(category="attention"),
        slow(category="moe", dur_ns=1, alone_ns=1),
    ]
    titles = [
        finding.title.partition(" spend")[0] for finding in judged(rows, h100(busy_ns=40 * MS), covered_share=0.0)
    ]
    assert titles == [f"{name}: kernels below 60% of their roof" for name in ("gemm", "norm", "attention")]
    assert judged(rows, h100(busy_ns=40 * MS), covered_share=0.0, share=0.2) == []


def test_no_figure_per_step_where_groups_are_in_other_steps() -> None:
    (finding,) = judged([slow(), slow(steps=1)], h100(busy_ns=20 * MS))
    assert finding.title == "gemm: kernels below 60% of their roof spend 14.0 ms beyond their least time"


def test_the_device_where_it_is_worst() -> None:
    summary = [h100(busy_ns=40 * MS), h100(rank=1, busy_ns=10 * MS)]
    (finding,) = judged([slow(), slow(), slow(rank=1, example_id=9), covered(20 * MS)], *summary)
    assert finding.title.endswith("spend 7.00 ms beyond their least time, 1.40 ms per step on rank 1 device 0")
    assert (finding.saving_high_ns, finding.evidence) == (7 * MS, (9,))


def test_latency() -> None:
    row = slow(bound="latency", count=1000, waves=0.25)
    copies = group(kernel="Memcpy DtoD (Device -> Device)", category="memory", bound="latency", evidence="G")
    (finding,) = judged([row, copies, covered(9 * MS)], h100(busy_ns=20 * MS))
    assert finding.title == (
        "kernels with fewer blocks than the device has multiprocessors take 50.0% of the busy time"
    )
    assert finding.detail == (
        "Mostly mm in slow (1,000 x 10.0 us, 0.25 waves, 30% of its roof). They are far below both roofs: their time "
        "is start, waiting for memory and end. They spend 7.00 ms, 1.40 ms per step beyond their least time. Copies "
        "that are as short, 5.0% of the busy time, are not among them."
    )
    assert "programmatic dependent launch" in finding.remedy
    assert finding.saving_high_ns == 7 * MS


@pytest.mark.parametrize(
    "counts, title",
    [
        ((1001,), "short kernels take"),
        ((1000,), "kernels with fewer blocks than the device has multiprocessors take"),
        ((1000, 1001), "kernels that are short or leave multiprocessors idle take"),
    ],
)
def test_what_is_too_small(counts: Sequence[int], title: str) -> None:
    """10 ms in so many launches, against 10 us each."""
    rows = [slow(bound="latency", count=count) for count in counts]
    (finding,) = judged(rows, h100(busy_ns=20 * MS))
    assert finding.title.startswith(title)


# ---- advice that fits ------------------------------------------------------------------------------------------------

MI300X = {"name": "AMD Instinct MI300X", "spec": "AMD Instinct MI300X"}
TILED, ODD = "[[8, 4096], [4096, 14336]]", "[[8944, 2880], [2880, 5000]]"


@pytest.mark.parametrize(
    "row, device, said, unsaid",
    [
        ({"shapes": TILED}, {}, ["cuBLASLt", "split-K", "larger batch"], ["multiples", "AITER"]),
        ({"shapes": ODD}, {}, ["2880, 5000 are no multiples of 128"], ["split-K"]),
        ({"shapes": TILED, "kernel": "nvjet_splitK_TNT"}, {}, ["larger batch"], ["split-K"]),
        ({"kernel": "Cijk_Alik_Bljk_MT16x16x16"}, MI300X, ["hipBLASLt"], ["cuBLASLt", "multiples"]),
        ({"kernel": "Cijk_Alik_Bljk_MT16x16x16"}, {"name": "", "spec": None}, ["hipBLASLt"], ["cuBLASLt"]),
        ({"subcategory": "grouped", "kernel": "_matmul_ogs_NNT"}, {}, ["benchmark_moe.py", "DeepGEMM"], ["cuBLASLt"]),
        ({"category": "moe"}, MI300X, ["AITER, CK, Triton"], ["DeepGEMM"]),
        ({"category": "attention", "kernel": "fmhaSm100fKernel_Qkv"}, {}, ["now it is TRT-LLM"], ["FlashInfer, TRT"]),
        (
            {"category": "attention", "kernel": "flash::FlashAttnFwdSm90<int>"},
            {},
            ["(FlashInfer, TRT-LLM); now it is FlashAttention 3"],
            ["split-KV"],
        ),
        ({"category": "attention", "kernel": "k", "subcategory": "decode"}, MI300X, ["(AITER, CK, Triton)."], ["now"]),
        ({"category": "conv"}, {}, ["ncu on these kernels"], []),
        ({"category": "conv"}, MI300X, ["rocprof-compute"], ["ncu"]),
        ({"category": "norm"}, {}, ["vectorised or fused"], ["ncu"]),
    ],
)
def test_advice_fits_the_kernel_and_the_device(row: Row, device: Row, said: list[str], unsaid: list[str]) -> None:
    (finding,) = judged([slow(**row)], h100(**device), covered_share=0.0)
    assert [words for words in said if words not in finding.remedy] == []
    assert [words for words in unsaid if words in finding.remedy] == []


# ---- bytes that could be fewer ---------------------------------------------------------------------------------------


def test_weights() -> None:
    """8 bits save half of 98.9...% of 40 us, 4 bits three quarters of it."""
    (finding,) = judged([gemm(), covered(50 * US)], h100(busy_ns=100 * US))
    part = WEIGHT_BYTES / BYTES
    assert finding.title == "reading weights bounds GEMMs that take 50.0% of the busy time"
    assert finding.detail.startswith("Mostly mm in nvjet_tst_64x8 (16 bits, 80% of its roof). They run near")
    assert "with weights of 8 bits at most 19.8 us less, of 4 bits at most 29.7 us." in finding.detail
    assert (finding.saving_low_ns, finding.saving_high_ns) == (0, int(40 * US * part * 0.75))


@pytest.mark.parametrize(
    "changed, saving",
    [
        ({"weight_bytes": BYTES}, 30 * US),
        ({"weight_bytes": 2 * BYTES}, 30 * US),  # counters saw fewer bytes than the shapes have
        ({"weight_bytes": BYTES, "weight_bits": 8}, 20 * US),
        ({"weight_bytes": BYTES, "weight_bits": 32}, 35 * US),
        ({"weight_bytes": BYTES, "weight_bits": 4}, None),
        ({"weight_bytes": BYTES, "exclusive_ns": 20 * US}, 20 * US),  # no more than is theirs
        # Then computing is what binds: at 4 bits with bf16 arithmetic 25 us, at 8 bits with FP8's 12.5, but 20 to read.
        ({"weight_bytes": BYTES, "compute_ns": 25.0 * US}, 20 * US),
        ({"weight_bytes": BYTES, "compute_ns": 25.0 * US, "math": "fp32"}, 20 * US),
        ({"weight_bytes": BYTES // 100}, None),  # the time of reading weights is below the share
        ({"weight_bytes": 0}, None),
        ({"category": "embedding"}, None),
        ({"weight_bytes": BYTES, "evidence": "E"}, 30 * US),  # what is read all the time, the whole device shows
        ({"op": "lm_head"}, None),  # which those who quantise leave alone, like the next three
        ({"op": "router"}, None),
        ({"shapes": "[[32, 4096], [4096, 128256]]"}, None),
        ({"shapes": "[[32, 4096], [4096, 16032]]", "steps": 4, "count": 4}, None),
        ({"shapes": "[[32, 4096], [4096, 28672]]", "steps": 4, "count": 128, "weight_bytes": BYTES}, 30 * US),
        ({"bound": "latency"}, 10 * US),  # then another finding has it
        ({"bound": "latency", "evidence": "E"}, None),
    ],
)
def test_savings_of_smaller_weights(changed: Row, saving: int | None) -> None:
    found = judged([gemm(**changed), covered(50 * US)], h100(busy_ns=100 * US))
    assert [one.saving_high_ns for one in found] == ([] if saving is None else [saving])


def test_a_device_without_small_types_expands_weights() -> None:
    old = h100(busy_ns=100 * US, peaks={"bf16": 312e12})
    (finding,) = judged([gemm(weight_bytes=BYTES, compute_ns=25.0 * US), covered(50 * US)], old)
    assert finding.saving_high_ns == 15 * US
    new = h100(busy_ns=100 * US, peaks={"bf16": 2.25e15, "fp8": 4.5e15, "fp4": 9e15})
    (finding,) = judged([gemm(weight_bytes=BYTES, compute_ns=25.0 * US), covered(50 * US)], new)
    assert finding.saving_high_ns == 30 * US


@pytest.mark.parametrize(
    "changed, device, saving",
    [
        ({}, {}, 20 * US),  # FP8 multiplies twice as fast, within 0.1 %
        ({"category": "moe"}, {"peaks": {"bf16": 2.25e15, "fp8": 4.5e15, "fp4": 9e15}, "achievable": {}}, 30 * US),
        ({}, {"achievable": {"bf16": 0.8, "fp8": 0.6}}, 40 * US * (1 - 989 * 0.8 / (1979 * 0.6))),
        ({"memory_ns": 39.0 * US}, {"peaks": {"bf16": 1e15, "fp8": 4e15}}, 20.5 * US),  # then half of the bytes binds
        ({}, {"peaks": {"bf16": 312e12, "int8": 624e12}}, None),
        ({"math": "fp8"}, {}, None),
        ({"category": "attention"}, {}, None),
        ({"op": "lm_head"}, {}, None),
        ({"evidence": "E"}, {}, None),
    ],
)
def test_savings_of_cheaper_arithmetic(changed: Row, device: Row, saving: float | None) -> None:
    """A GEMM at the compute roof, 40 us of its 50, in half of the time."""
    row = gemm(**{"bound": "compute", "memory_ns": 5.0 * US, "compute_ns": 40.0 * US, **changed})
    found = judged([row, covered(50 * US)], h100(busy_ns=100 * US, **device))
    assert [one.saving_high_ns for one in found] == ([] if saving is None else [pytest.approx(saving, rel=2e-3)])
    assert all(one.title == "arithmetic bounds 16-bit GEMMs that take 50.0% of the busy time" for one in found)


@pytest.mark.parametrize(
    "changed, saving",
    [
        ({}, 18 * US),  # half of 90 % of 40 us
        ({"kv_bytes": 2.0 * BYTES}, 20 * US),
        ({"compute_ns": 30.0 * US}, 10 * US),
        ({"dtypes": '["c10::BFloat16", "c10::Float8_e4m3fn"]'}, None),
        ({"dtypes": '["c10::BFloat16", "unsigned char"]'}, None),
        ({"dtypes": '["c10::BFloat16", "int"]'}, 18 * US),
        ({"kv_bytes": 0.01 * BYTES}, None),
    ],
)
def test_keys_and_values(changed: Row, saving: int | None) -> None:
    attention = gemm(**{"category": "attention", "weight_bytes": 0, "kv_bytes": 0.9 * BYTES, **changed})
    found = judged([attention, covered(50 * US)], h100(busy_ns=100 * US))
    assert [one.saving_high_ns for one in found] == ([] if saving is None else [saving])
    assert all(
        one.title == "reading keys and values bounds attention that takes 50.0% of the busy time" for one in found
    )


def test_no_group_is_in_two_findings() -> None:
    """Together they never promise more than the time of the groups."""
    rows = [
        gemm(),
        gemm(category="attention", weight_bytes=0, kv_bytes=0.9 * BYTES),
        gemm(bound="latency"),
        gemm(bound="compute"),
        gemm(bound="unknown", roof_fraction=0.5),
        gemm(problem="above roof"),
    ]
    kinds = [kind_of(row, PARAMETERS) for row in rows]
    assert kinds == ["weights", "kv", "latency", "arithmetic", "far", "above"]
    found = judged(rows, h100(busy_ns=300 * US), share=0.01)
    assert len(found) == 6
    assert sum(one.saving_high_ns for one in found) <= sum(row["exclusive_ns"] for row in rows)


def test_no_more_is_promised_than_there_is() -> None:
    """Of any groups, however odd: not more than their time above what is left, and never less than nothing."""
    draw = random.Random(6)
    for _ in range(100):
        rows = [
            gemm(
                **{"category": draw.choice(["gemm", "attention", "norm", "communication"]), "bytes": BYTES},
                **{
                    "bound": draw.choice(["memory", "compute", "latency", "unknown"]),
                    "evidence": draw.choice("ABCDEFG"),
                },
                **{"exclusive_ns": draw.randrange(100 * US), "alone_ns": draw.randrange(100 * US)},
                **{"roof_ns": draw.choice([None, draw.uniform(0, 100 * US)]), "roof_fraction": draw.uniform(0, 1)},
                **{"memory_ns": draw.choice([None, draw.uniform(0, 100 * US)]), "compute_ns": draw.uniform(0, 9 * US)},
                **{"weight_bytes": draw.uniform(0, 2 * BYTES), "weight_bits": draw.choice([None, 0, 4, 8, 16, 32])},
                **{
                    "kv_bytes": draw.choice([None, draw.uniform(0, 2 * BYTES)]),
                    "math": draw.choice([None, "bf16", "x"]),
                },
                **{"problem": draw.choice([None, None, "above roof"])},
            )
            for _ in range(6)
        ]
        busy = sum(row["exclusive_ns"] for row in rows)
        found = judged(rows, h100(busy_ns=busy), share=0.0)
        evidence = [row for row in rows if kind_of(row, PARAMETERS) not in ("", "above")]
        assert 0 <= sum(one.saving_high_ns for one in found) <= sum(row["exclusive_ns"] for row in evidence)


# ---- above the roof --------------------------------------------------------------------------------------------------


def test_above_the_roof_is_an_error() -> None:
    row = gemm(
        problem="above roof",
        bound="unknown",
        datasheet_fraction=1.43,
        notes="op out of place, its bytes fit in the cache",
    )
    (finding,) = judged([row, covered(50 * US)], h100(busy_ns=100 * US))
    assert (finding.severity, finding.saving_high_ns) == ("warning", 0)
    assert finding.title == "kernels with 50.0% of the busy time are above a roof, which cannot be"
    assert finding.detail.startswith(
        "Mostly mm in nvjet_tst_64x8 (143% of the datasheet's memory roof: its bytes fit in the cache). A"
    )
    assert finding.remedy.startswith("Check in this order. The device: is it the one of the table (H100 SXM5 80 GB)?")


@pytest.mark.parametrize(
    "how, first",
    [
        ("op shapes", "The device"),
        ("model config, by position", "The configuration: is --model that of the served model"),
        ("capture trace, in order", "The trace that lent the work"),
        ("same kernel elsewhere in the trace", "The trace that lent the work"),
    ],
)
def test_the_first_suspect(how: str, first: str) -> None:
    (finding,) = judged([gemm(problem="above roof", how=how)], h100(busy_ns=50 * US))
    assert finding.remedy.startswith(f"Check in this order. {first}")
