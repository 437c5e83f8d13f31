"""How much does a collective move, over the links and in memory?

link_bytes is what nccl-tests calls bus bandwidth times time (its PERFORMANCE.md), for n ranks and a message of S bytes:
all-reduce S * 2(n-1)/n, all-gather and reduce-scatter S * (n-1)/n of the larger side, all-to-all S * (n-1)/n,
broadcast, reduce, send and receive S. It compares with the speed of a link whatever the algorithm. bytes is HBM of one
rank: its input read and its result written, once. Where the size of the group is not recorded, link_bytes is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.op_call import OpCall, Tensor
from tracekit.work import Model, Work, models
from tracekit.work_sizes import size_of, weigh

_NO_GROUP = ("group size not recorded",)
_ALIASES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "reducescatter": "reduce_scatter",
    "gather": "gather",
    "scatter": "scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send": "send",
    "recv": "send",
    "sendrecv": "send",
}
# How often each byte of a message crosses the links, times (n - 1) / n, or once whatever n is.
_PEERS = {"all_reduce": 2, "all_gather": 1, "all_to_all": 1, "reduce_scatter": 1, "gather": 1, "scatter": 1}
_WHOLE = ("broadcast", "reduce", "send")


def kind_of(name: str) -> str:
    """One of all_reduce, all_gather, reduce_scatter, all_to_all, gather, scatter, broadcast, reduce, send, or "".

    name: as record_param_comms records it (`allreduce`, `_allgather_base`, `reduce_scatter_tensor_coalesced`,
    `all_to_allv`) or as NCCL's kernels are called (`AllReduce`).
    """
    plain = name.lower().replace("_", "")
    for ending in ("coalesced", "tensor", "base", "into", "single", "oop"):
        plain = plain.replace(ending, "")
    return _ALIASES.get(plain.removesuffix("v") if plain != "recv" else plain, _ALIASES.get(plain, ""))


def collective(name: str, read: int, written: int, ranks: int | None) -> Work | None:
    """The work of a collective on one rank, by its name (see `kind_of`), bytes of its input and result, ranks or None.

    For the arguments of record_param_comms: `In msg nelems` and `Out msg nelems` times the size of `dtype`, and
    `Group size`. None for a name that is no data transfer (a barrier) and for negative sizes.
    """
    kind = kind_of(name)
    if not kind or read < 0 or written < 0:
        return None
    message = max(read, written)
    if kind in _WHOLE:
        link, notes = message, ()
    elif ranks is None or ranks < 1:
        return Work("communication", 0, read + written, notes=_NO_GROUP)
    else:
        link, notes = message * _PEERS[kind] * (ranks - 1) // ranks, ()
    return Work("communication", 0, read + written, link_bytes=link, notes=notes)


@dataclass(frozen=True, slots=True)
class _Places:
    """Kind, places of input and result (the same where it is in place), and the place of the size of the group."""

    kind: str
    source: int
    result: int
    ranks: int = -1


_COLLECTIVES: dict[str, _Places] = {
    # torch/csrc/distributed/c10d/Ops.cpp; those on lists of tensors record no element type.
    "c10d::_allgather_base_": _Places("all_gather", 1, 0),
    "c10d::_reduce_scatter_base_": _Places("reduce_scatter", 1, 0),
    "c10d::alltoall_base_": _Places("all_to_all", 1, 0),
    # torch/csrc/distributed/c10d/SymmetricMemory.cpp
    **dict.fromkeys(
        ("symm_mem::multimem_all_reduce_", "symm_mem::two_shot_all_reduce_"),
        _Places("all_reduce", 0, 0),
    ),
    "symm_mem::multimem_one_shot_all_reduce_out": _Places("all_reduce", 0, 3),
    "symm_mem::one_shot_all_reduce_out": _Places("all_reduce", 0, 3),
    "symm_mem::multimem_all_gather_out": _Places("all_gather", 0, 2),
    # vLLM csrc/torch_bindings.cpp, sgl-kernel common_extension.cc
    **dict.fromkeys(("_C_custom_ar::all_reduce", "sgl_kernel::all_reduce"), _Places("all_reduce", 1, 2)),
    **dict.fromkeys(("_C_custom_ar::qr_all_reduce", "sgl_kernel::mscclpp_allreduce"), _Places("all_reduce", 1, 2)),
    "sgl_kernel::qr_all_reduce": _Places("all_reduce", 1, 2),
}
# These return their result: as large as the input, or times or divided by the ranks at a place of the arguments.
_RETURNED: dict[str, _Places] = {
    **dict.fromkeys(
        (
            "symm_mem::multimem_one_shot_all_reduce",
            "symm_mem::one_shot_all_reduce",
            "_c10d_functional::all_reduce",
            "_c10d_functional::all_reduce_",
            "vllm::all_reduce",
            "sglang::outplace_all_reduce",
        ),
        _Places("all_reduce", 0, -1),
    ),
    "_c10d_functional::all_gather_into_tensor": _Places("all_gather", 0, -1, 1),
    "_c10d_functional::reduce_scatter_tensor": _Places("reduce_scatter", 0, -1, 2),
    "_c10d_functional::all_to_all_single": _Places("all_to_all", 0, -1),
    "vllm::all_gather": _Places("all_gather", 0, -1, 2),
    "vllm::reduce_scatter": _Places("reduce_scatter", 0, -1, 2),
}


def _placed(places: _Places) -> Model:
    def model(call: OpCall) -> Work | None:
        source, result = call.tensor(places.source), call.tensor(places.result)
        read, written = weigh(source), weigh(result)
        if source is None or result is None or read is None or written is None:
            return None
        return collective(places.kind, read, written, _ratio(places.kind, source, result))

    return model


def _returned(places: _Places) -> Model:
    def model(call: OpCall) -> Work | None:
        source = call.tensor(places.source)
        read = weigh(source)
        ranks = call.number(places.ranks) if places.ranks >= 0 else None
        if read is None or (places.ranks >= 0 and (not isinstance(ranks, int) or ranks < 1)):
            return None
        count = ranks if isinstance(ranks, int) else None
        if places.kind == "all_gather":
            written = read * (count or 1)
        else:
            written = read // (count or 1) if places.kind == "reduce_scatter" else read
        return collective(places.kind, read, written, count)

    return model


for _name, _where in _COLLECTIVES.items():
    models(_name)(_placed(_where))
for _name, _where in _RETURNED.items():
    models(_name)(_returned(_where))


@models("sglang::inplace_all_reduce", "vllm::inplace_all_reduce")
def in_place_all_reduce(call: OpCall) -> Work | None:
    """(tensor, group name): read and written."""
    size = weigh(call.tensor(0))
    return None if size is None else collective("all_reduce", size, size, None)


def _ratio(kind: str, source: Tensor, result: Tensor) -> int | None:
    """Ranks by how the two sides differ; None where they tell nothing or make no sense."""
    larger, smaller = (result, source) if kind == "all_gather" else (source, result)
    if kind not in ("all_gather", "reduce_scatter") or not smaller.elements:
        return None
    return larger.elements // smaller.elements if larger.elements % smaller.elements == 0 else None


def message_bytes(elements: int, dtype: str) -> int | None:
    """Bytes of a message by the element type that record_param_comms names (`BFloat16`, `Float`, `Byte`)."""
    return size_of(elements, _COMMS_DTYPES.get(dtype.removeprefix("c10::").lower(), ""))


_COMMS_DTYPES = {
    **{"float": "fp32", "double": "fp64", "half": "fp16", "bfloat16": "bf16", "int": "int32", "long": "int64"},
    **{"char": "int8", "byte": "uint8", "bool": "bool", "short": "int16", "float8_e4m3fn": "fp8_e4m3"},
    **{"float8_e5m2": "fp8_e5m2", "float8_e4m3fnuz": "fp8_e4m3", "float8_e5m2fnuz": "fp8_e5m2"},
}


@models("record_param_comms")
def recorded(call: OpCall) -> Work | None:
    """What PyTorch notes of a collective: kind, type, elements in and out, ranks."""
    if (said := call.message) is None:
        return None
    read, written = message_bytes(said.elements_in, said.dtype), message_bytes(said.elements_out, said.dtype)
    return None if read is None or written is None else collective(said.collective, read, written, said.group_size)
