"""Kernels of steps and a model's sizes in, the work of each kernel out; counted by hand, and against naive counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.model_configs import DEEPSEEK_V3, GPT_OSS_20B, LLAMA_3_8B, TINY, TINY_EXPERTS
from tests.real_traces import trace as real_trace
from tracekit.config_work import BY_POSITION, CONFIG_WORK, IN_ALL, ConfigWork, config_work, shares_by_time
from tracekit.errors import UsageError
from tracekit.model_config import model_config
from tracekit.step_marks import Composition
from tracekit.trace import open as open_trace

DECODE = Composition("decode", 0, 0, 3, 3, decode_kv_tokens=60)
KERNELS = {
    "E": ("embed", "embedding", ""),
    "n": ("rms_norm", "norm", ""),
    "N": ("fused_add_rms_norm", "norm", ""),
    "D": ("gemm", "gemm", "dense"),
    "V": ("gemm, other", "gemm", "dense"),
    "+": ("splitK", "gemm", "splitk_reduce"),
    "G": ("grouped", "gemm", "grouped"),
    "r": ("rope", "rope", ""),
    "w": ("write", "kv_cache", "write"),
    "A": ("attention", "attention", "generic"),
    "P": ("prefill attention", "attention", "prefill"),
    "Q": ("decode attention", "attention", "decode"),
    "m": ("merge", "attention", "merge"),
    "s": ("silu", "activation", ""),
    "x": ("copy", "elementwise", "copy"),
}
LAYER = "NDrwAmDNDsD"
WHOLE = "EnD" + LAYER[2:] + LAYER + "N" + "V"
_RANK = {"rank": 0, "device": 0, "step": 0}


def rows(kernels: str, load: Composition = DECODE, durations: Sequence[int] = (), **more: Any) -> pa.Table:
    """Kernels of one step, one after the other; ids count from 0."""
    fields = {name: getattr(load, name) for name in Composition.__dataclass_fields__}
    found = []
    for at, letter in enumerate(kernels):
        name, category, subcategory = KERNELS[letter]
        dur = durations[at] if durations else 10
        place = {"id": at, "ts": 100 * at, "dur": dur, "name": name, "category": category, "subcategory": subcategory}
        found.append({**place, **_RANK, **fields, **more})
    numbers = [name for name in fields if name != "phase"]
    table = pa.Table.from_pylist(found) if found else pa.table({"step": pa.array([], pa.int32())})
    for name in numbers if found else ():
        table = table.set_column(table.column_names.index(name), name, table.column(name).cast(pa.int64()))
    return table


def work(kernels: str, said: dict[str, Any] = TINY, load: Composition = DECODE, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = config_work(rows(kernels, load, **more), model_config(said, "c")).work.to_pylist()
    return found


def parts(found: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(row["id"], row["part"]) for row in found]


def cells(found: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in found]


# ---- which kernel is which -------------------------------------------------------------------------------------------


def test_nothing_in_nothing_out() -> None:
    assert config_work(rows(""), model_config(TINY, "c")) == ConfigWork(CONFIG_WORK.empty_table(), {})


def test_a_whole_step() -> None:
    """Two layers of hidden size 8, 4 heads of 2, 2 for keys and values, width 16, vocabulary 32; 3 tokens of fp16."""
    found = work(WHOLE)
    assert {(row["how"], row["notes"]) for row in found if row["family"] == "gemm"} == {
        (BY_POSITION, "padding not counted")
    }
    first = [row for row in found if row["id"] < 12]
    names = ("id", "family", "part", "math", "flops", "bytes", "bytes_high", "weight_bytes", "weight_bits", "kv_bytes")
    norm, both = 3 * 8 * 2, 4 * 3 * 8 * 2
    gemm = {"qkv": (8, 16), "o": (8, 8), "gate_up": (8, 32), "down": (16, 8), "lm_head": (8, 32)}
    moved = {part: 2 * (k * n + 3 * k + 3 * n) for part, (k, n) in gemm.items()}
    keys = 60 * 2 * (2 + 2) * 2
    attention = keys + 3 * 4 * (2 + 2) * 2
    assert cells(first, *names) == [
        (0, "embedding", "embedding", "", 0, 2 * 3 * 8 * 2, 2 * 3 * 8 * 2, 0, 0, 0),
        (1, "norm", "norm", "fp32", 4 * 3 * 8, 2 * norm, 4 * norm, 0, 0, 0),
        (2, "gemm", "qkv", "fp16", 2 * 3 * 8 * 16, moved["qkv"], moved["qkv"], 8 * 16 * 2, 16, 0),
        (3, "rope", "rope", "fp32", 3 * 3 * 6 * 2, 2 * 3 * 6 * 2 * 2, 2 * 3 * 6 * 2 * 2, 0, 0, 0),
        (4, "kv_cache", "kv_cache", "", 0, 2 * 3 * 2 * 4 * 2, 2 * 3 * 2 * 4 * 2, 0, 0, 0),
        (5, "attention", "attention", "fp16", 2 * 60 * 4 * (2 + 2), attention, attention, 0, 0, keys),
        (7, "gemm", "o", "fp16", 2 * 3 * 8 * 8, moved["o"], moved["o"], 8 * 8 * 2, 16, 0),
        (8, "norm", "norm", "fp32", 4 * 3 * 8, both, both, 0, 0, 0),
        (9, "gemm", "gate_up", "fp16", 2 * 3 * 8 * 32, moved["gate_up"], moved["gate_up"], 8 * 32 * 2, 16, 0),
        (10, "activation", "activation", "fp32", 4 * 3 * 16, 3 * 3 * 16 * 2, 3 * 3 * 16 * 2, 0, 0, 0),
        (11, "gemm", "down", "fp16", 2 * 3 * 16 * 8, moved["down"], moved["down"], 16 * 8 * 2, 16, 0),
    ]
    assert cells(found[-1:], *names) == [
        (24, "gemm", "lm_head", "fp16", 2 * 3 * 8 * 32, moved["lm_head"], moved["lm_head"], 8 * 32 * 2, 16, 0)
    ]


@pytest.mark.parametrize(
    ("kernels", "said", "products"),
    [
        ("DADDD" * 2, {}, "qkv o gate_up down " * 2),
        ("DADDDDADDDD", {}, "qkv o gate_up down " * 2 + "lm_head"),
        ("DDDADDDD" * 2, {}, "q k v o gate up down " * 2),
        ("DDADDD" * 2, {}, "q kv o gate_up down " * 2),
        ("DDD" + "DDD" * 1 + "DDDDDD", {}, None),  # no attention, and no activation to tell the layers by
        ("DDDsD" * 2, {}, "qkv o gate_up down " * 2),  # attention known elsewhere
        ("DDDsD" * 2 + "V", {}, "qkv o gate_up down " * 2 + "lm_head"),
        ("DDsDD" * 2, {}, None),  # the activation stands where no order has it
        ("DAsDDD" * 2, {}, None),
        ("DADD" * 2, {"model_type": "gpt_neox"}, None),
        ("DADDD" * 2, {"model_type": "gpt_neox"}, "qkv o up down " * 2),
        ("DADDGG" * 2, TINY_EXPERTS, "qkv o router experts_gate_up experts_down " * 2),
        ("DADGG" * 2, TINY_EXPERTS, "qkv o experts_gate_up experts_down " * 2),
        ("DADDGG" * 2 + "D", TINY_EXPERTS, "qkv o router experts_gate_up experts_down " * 2 + "lm_head"),
        (
            "DADDGGDD" * 2,
            TINY_EXPERTS | {"n_shared_experts": 1},
            "qkv o router experts_gate_up experts_down shared_gate_up shared_down " * 2,
        ),
        # The router before or after the shared experts: only their activation tells which is which.
        ("DADDDDGG" * 2, TINY_EXPERTS | {"n_shared_experts": 1}, "qkv o experts_gate_up experts_down " * 2),
        (
            "DADDDsDGG" * 2,
            TINY_EXPERTS | {"n_shared_experts": 1},
            "qkv o router shared_gate_up shared_down experts_gate_up experts_down " * 2,
        ),
    ],
)
def test_orders(kernels: str, said: dict[str, Any], products: str | None) -> None:
    """products: by position, None where all are taken as one."""
    found = [row for row in work(kernels, TINY | said) if row["family"] in ("gemm", "moe")]
    expected = ["gemms"] * kernels.count("D") if products is None else products.split()
    assert [row["part"] for row in found] == expected
    assert {row["how"] for row in found} == {IN_ALL if products is None else BY_POSITION}


@pytest.mark.parametrize(
    ("kernels", "why"),
    [
        ("DADDD", "2 layers, but 1 attention kernel in a step"),
        ("DADDD" * 3, "2 layers, but 3 attention kernels in a step"),
        ("DDD", "2 layers, but 3 matrix products and no attention in a step"),
        ("A", "2 layers, but 1 attention kernel in a step"),
        ("x", "no kernel of a step is a matrix product or attention"),
        ("AA", "2 layers, but 1 attention kernel in a step"),
    ],
)
def test_steps_that_are_not_whole(kernels: str, why: str) -> None:
    """Half a step, a draft model beside this one, no product at all: nothing is said of kernels, but why."""
    found = config_work(rows(kernels), model_config(TINY, "c"))
    assert found == ConfigWork(CONFIG_WORK.empty_table(), {why: 1})


def test_products_in_all() -> None:
    """Three products a layer fit no order: what the step must do is shared by time, to the last operation and byte."""
    found = [row for row in work("DADDxDADD", durations=(7, 1, 3, 1, 9, 5, 1, 1, 3)) if row["family"] == "gemm"]
    shapes = [(8, 16), (8, 8), (8, 32), (16, 8)] * 2
    flops = sum(2 * 3 * k * n for k, n in shapes)
    assert sum(row["flops"] for row in found) == flops
    assert sum(row["bytes"] for row in found) == sum(2 * (k * n + 3 * k + 3 * n) for k, n in shapes)
    assert sum(row["flops_high"] for row in found) == flops + 2 * 3 * 8 * 32  # the vocabulary may be among them
    assert [row["flops"] for row in found] == [
        flops * end // 20 - flops * start // 20
        for start, end in ((0, 7), (7, 10), (10, 11), (11, 16), (16, 17), (17, 20))
    ]
    assert {(row["part"], row["weight_bits"], row["notes"]) for row in found} == {
        ("gemms", 16, "of all products of the step, by time, padding not counted")
    }


@pytest.mark.parametrize("durations", [(0,) * 9, (2**40, 1, 2**41, 1, 5, 0, 1, 1, 3)])
def test_shares_add_up(durations: Sequence[int]) -> None:
    found = work("DADDxDADD", durations=durations)
    even = work("DADDxDADD")
    for name in ("flops", "bytes", "bytes_expected", "bytes_high", "weight_bytes"):
        assert sum(row[name] for row in found) == sum(row[name] for row in even)
    for row in found:
        assert row["flops"] <= row["flops_expected"] <= row["flops_high"]
        assert row["bytes"] <= row["bytes_expected"] <= row["bytes_high"]


@pytest.mark.parametrize("durations", [(1,) * 10, (3, 1, 4, 1, 5)])
def test_shares_of_an_interval_keep_its_order(durations: Sequence[int]) -> None:
    """Of ten alike 14 are 1 1 2 1 .., 15 are 1 2 1 2 ..: shared on their own, the least would pass the most."""
    times = np.array(durations, np.int64)
    for low, likely, high in ((14, 14, 15), (14, 15, 15), (14, 17, 23), (0, 1, 2)):
        figures = [low, likely, high, low, likely, high, low, 16, 0, 0]
        found = [share.tolist() for share in shares_by_time(figures, times)]
        assert [sum(share) for share in found[:7]] == figures[:7]
        assert all(a <= b <= c for a, b, c in zip(*found[:3], strict=True))


def test_split_products() -> None:
    """The kernel that adds up the parts writes the result: it is counted once between the two."""
    found = work("DADDD+" * 2)
    whole = work("DADDD" * 2)
    down, added = (next(row for row in found if row["part"] == part) for part in ("down", "down, split K"))
    assert (added["flops"], added["bytes"], added["math"], added["notes"]) == (0, 3 * 8 * 2, "", "adds up split K")
    assert (down["flops"], down["bytes"] + added["bytes"]) == (whole[4]["flops"], whole[4]["bytes"])


def test_known_rows_mark_a_place_only() -> None:
    table = rows("DADDD" * 2)
    known = pa.array([letter == "A" for letter in "DADDD" * 2])
    found = config_work(table.append_column("known", known), model_config(TINY, "c")).work.to_pylist()
    assert parts(found) == [
        (0, "qkv"), (2, "o"), (3, "gate_up"), (4, "down"), (5, "qkv"), (7, "o"), (8, "gate_up"), (9, "down"),
    ]  # fmt: skip


@pytest.mark.parametrize(("kinds", "parts"), [("fs", ["attention", "attention, window 9"]), ("ff", [])])
def test_ops_that_know_of_no_window(kinds: str, parts: list[str]) -> None:
    """Attention of ops that do not say if it has one is answered for, if layers of the model have windows."""
    layers = {"f": "full_attention", "s": "sliding_attention"}
    said = TINY | {"sliding_window": 9, "layer_types": [layers[kind] for kind in kinds]}
    attends = pa.array([letter == "A" for letter in "DADDD" * 2])
    table = rows("DADDD" * 2).append_column("known", attends).append_column("unsure", attends)
    found = config_work(table, model_config(said, "c")).work.to_pylist()
    assert [row["part"] for row in found if row["family"] == "attention"] == parts


def test_norms_of_heads() -> None:
    """Qwen3 and Gemma 3 normalise queries and keys between the product and attention."""
    found = [row for row in work("nDnnADNDD" + "NDnADNDD") if row["family"] == "norm"]
    assert cells(found, "part", "bytes") == [
        ("norm", 2 * 3 * 8 * 2), ("norm of q", 2 * 3 * 8 * 2), ("norm of k", 2 * 3 * 4 * 2), ("norm", 4 * 3 * 8 * 2),
        ("norm", 4 * 3 * 8 * 2), ("norm of qk", 2 * 3 * 12 * 2), ("norm", 4 * 3 * 8 * 2),
    ]  # fmt: skip


def test_each_step_is_matched_by_itself() -> None:
    """Rows come in any order; steps, devices and ranks are kept apart, and those of one kind share what is found."""
    tables = [
        rows("DADDD" * 2, Composition("decode", None, None, tokens, tokens, decode_kv_tokens=60), rank=rank, step=step)
        for rank, step, tokens in ((0, 0, 3), (0, 1, 5), (1, 0, 3))
    ]
    tables = [table.set_column(0, "id", pa.array(range(100 * at, 100 * at + 10))) for at, table in enumerate(tables)]
    whole = pa.concat_tables([*tables, rows("D", step=None)], promote_options="permissive")
    whole = whole.take(list(reversed(range(len(whole)))))
    found = config_work(whole, model_config(TINY, "c")).work.to_pylist()
    assert {row["id"]: row["flops"] for row in found if row["part"] == "qkv"} == {
        0: 2 * 3 * 8 * 16, 5: 2 * 3 * 8 * 16, 100: 2 * 5 * 8 * 16, 105: 2 * 5 * 8 * 16, 200: 2 * 3 * 8 * 16,
        205: 2 * 3 * 8 * 16,
    }  # fmt: skip


@pytest.mark.parametrize(
    "load",
    [
        Composition("decode"),
        Composition("draft", 0, 0, 3, 3, decode_kv_tokens=60),
        Composition("mixed", 1, None, 3, 3),
        Composition("decode", 0, 0, 3, 0),
        Composition("decode", 0, 0, 3, -3),
        Composition("decode", 0, 0, 2**62, 2**62, decode_kv_tokens=2**63 - 1),
    ],
)
def test_loads_that_say_nothing(load: Composition) -> None:
    assert work("DADDD" * 2, load=load) == []


def test_tensor_parallel() -> None:
    """Heads, widths and the vocabulary are divided, the hidden size is not; a key head is never less than one."""
    found = config_work(rows("DADDD" * 2 + "D"), model_config(TINY, "c"), 4).work.to_pylist()
    shapes = {"qkv": (8, 2 + 2 * 2), "o": (2, 8), "gate_up": (8, 8), "down": (4, 8), "lm_head": (8, 8)}
    assert {row["part"]: row["flops"] for row in found if row["family"] == "gemm"} == {
        part: 2 * 3 * k * n for part, (k, n) in shapes.items()
    }
    with pytest.raises(UsageError, match="tensor parallel size 3 does not divide the model's attention heads 4"):
        config_work(rows("D"), model_config(TINY, "c"), 3)
    with pytest.raises(UsageError, match="tensor parallel size 0: must be 1 or more"):
        config_work(rows("D"), model_config(TINY, "c"), 0)


def test_experts_of_few_tokens() -> None:
    """3 tokens choose 2 of 4 experts: 2 are touched at least, 4 at most, 4 * (1 - (1 / 2) ** 3) = 3.5 evenly."""
    said = TINY_EXPERTS | {"quantization_config": {"quant_method": "mxfp4"}}
    found = {row["part"]: row for row in work("DADDGG" * 2, said) if row["family"] == "moe"}
    gate_up, down = (8 * 32 // 2 + 32, 16 * 8 // 2 + 8)  # half a byte a value and a byte a row's group of 32
    assert cells([found["experts_gate_up"]], "math", "flops", "weight_bytes", "weight_bits", "notes") == [
        ("fp16", 2 * 3 * 2 * 8 * 32, 7 * gate_up // 2, 4, "padding not counted, 4 of 4 experts if routing is uniform")
    ]
    assert cells([found["experts_gate_up"]], "bytes", "bytes_expected", "bytes_high") == [
        (
            2 * gate_up + 3 * 8 * 2 + 6 * 16 * 2,
            7 * gate_up // 2 + 3 * 8 * 2 + 6 * 16 * 2,
            4 * gate_up + 3 * 8 * 2 + 6 * 32 * 2,
        )
    ]
    assert cells([found["experts_down"]], "bytes", "bytes_high") == [
        (2 * down + 6 * 16 * 2 + 3 * 8 * 2, 4 * down + 6 * 16 * 2 + 6 * 8 * 2)
    ]


def test_latent_layers() -> None:
    """Three dense layers, then experts: every product of DeepSeek-V3's decode in the order of vLLM, and its weights."""
    kernels = "DDDADD" + "DsD"
    routed = "DDDADD" + "DDsDGG"
    found = work(kernels * 3 + routed * 58 + "D", DEEPSEEK_V3)
    products = {row["part"]: row for row in found if row["family"] in ("gemm", "moe")}
    assert list(products) == [
        "qkv_a", "q_b", "uk", "uv", "o", "gate_up", "down", "router", "shared_gate_up", "shared_down",
        "experts_gate_up", "experts_down", "lm_head",
    ]  # fmt: skip
    assert cells(
        [products[name] for name in ("qkv_a", "uk", "experts_down")], "math", "weight_bits", "weight_bytes"
    ) == [
        ("fp8", 8, 7168 * (1536 + 576) + 56 * 17 * 4),
        ("bf16", 16, 128 * 128 * 512 * 2),
        # 256 (1 - (1 - 8/256)^3) = 23.2578125 experts, to a millionth of one
        ("fp8", 8, 23257812 * (2048 * 7168 + 16 * 56 * 4) // 10**6),
    ]


# ---- attention -------------------------------------------------------------------------------------------------------


def test_prefill_and_decode_in_two_kernels() -> None:
    load = Composition("mixed", 1, 4, 2, 2, 4, 16, 16, 30, 2, 30)
    found = [row for row in work("DPQDDD" * 2, load=load) if row["family"] == "attention"]
    assert cells(found[:2], "part", "flops", "kv_bytes") == [
        ("attention of prefill", 2 * 10 * 4 * 4, 4 * 2 * 4 * 2),
        ("attention of decode", 2 * 30 * 4 * 4, 30 * 2 * 4 * 2),
    ]  # fmt: skip
    assert [row for row in work("DPPDDD" * 2, load=load) if row["family"] == "attention"] == []


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("fmhaKernel_QkvE4m3O", 1),
        ("paged_attention<__half, (vllm::Fp8KVCacheDataType)1>", 1),
        ("paged_attention<__half, (vllm::Fp8KVCacheDataType)0>", 2),
    ],
)
def test_the_cache_by_the_kernels_name(name: str, cache: int) -> None:
    table = rows("DADDD" * 2)
    names = [name if letter == "A" else "gemm" for letter in "DADDD" * 2]
    table = table.set_column(table.column_names.index("name"), "name", pa.array(names))
    found = [
        row for row in config_work(table, model_config(TINY, "c")).work.to_pylist() if row["family"] == "attention"
    ]
    assert found[0]["kv_bytes"] == 60 * 2 * (2 + 2) * cache


# ---- recordings ------------------------------------------------------------------------------------------------------


def recorded(name: str, said: dict[str, Any]) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Of each part: time and work of its kernels in a public recording."""
    with open_trace(real_trace(name)) as trace:
        table = trace.sql("FROM config_rows()")
    times = dict(zip(table.column("id").to_pylist(), table.column("dur").to_pylist(), strict=True))
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for row in config_work(table, model_config(said, "c")).work.to_pylist():
        found.setdefault(row["part"], []).append((times[row["id"]], row))
    return found


def bandwidth(found: list[tuple[int, dict[str, Any]]]) -> float:
    """Terabytes a second."""
    moved: int = sum(row["bytes"] for _, row in found)
    return round(moved / sum(ns for ns, _ in found) / 1000, 1)


def test_a_graph_of_llama_on_b300() -> None:
    """The longer a product takes, the nearer it comes to the device's 8 TB/s: o 12 us, gate_up 41, lm_head 164."""
    found = recorded("tracelens__sglang_deepseek-r1_b300_tp0_decode", LLAMA_3_8B)
    down = found["down"] + found["down, split K"]
    assert {part: len(rows) for part, rows in found.items()} == {
        "qkv": 32, "o": 32, "gate_up": 32, "down": 32, "down, split K": 32, "lm_head": 1, "attention": 32, "norm": 65,
        "activation": 32, "rope": 32, "kv_cache": 32, "embedding": 1,
    }  # fmt: skip
    speeds = [bandwidth(found[part]) for part in ("gate_up", "lm_head", "qkv", "o")]
    assert (speeds, bandwidth(down)) == ([5.8, 6.4, 4.3, 2.8], 4.9)
    assert found["attention"][0][1]["kv_bytes"] == 8209 * 8 * 2 * 128 * 2


def test_a_graph_of_gpt_oss_on_mi300x() -> None:
    """Every other layer sees 128 keys: told by its place. The vocabulary's product has an op, and gets no row."""
    found = recorded("tracelens__vllm_decode_full_graphexec", GPT_OSS_20B)
    assert {part: len(rows) for part, rows in found.items()} == {
        "qkv": 24, "o": 24, "router": 24, "experts_gate_up": 24, "experts_down": 24, "attention": 12,
        "attention, window 128": 12, "norm": 49,
        "rope": 24, "kv_cache": 24,
    }  # fmt: skip
    pairs = 2 * 64 * (64 + 64)
    both = [found["attention, window 128"][0][1], found["attention"][0][1]]
    assert cells(both, "flops", "flops_expected", "flops_high") == [
        ((128 + 31) * pairs, 32 * 128 * pairs, 32 * 128 * pairs),
        (55086 * pairs, 55086 * pairs, 55086 * pairs),
    ]
    assert bandwidth(found["attention"]) == 2.8
