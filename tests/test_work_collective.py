"""What collectives move, over the links and in memory, computed by hand."""

from __future__ import annotations

import pytest

from tests.op_calls import call, tensor
from tracekit.op_call import Message, OpCall
from tracekit.work import Work, work_of
from tracekit.work_collective import collective, kind_of, recorded

NO_GROUP = ("group size not recorded",)
COLLECTIVES: list[tuple[OpCall, Work]] = [
    # Seven of eight parts of the result come over the links.
    (
        call("c10d::_allgather_base_", "fp32 65536x384", "fp32 8192x384", None),
        Work("communication", 0, 4 * 9 * 8192 * 384, link_bytes=4 * 7 * 8192 * 384),
    ),
    (
        call("c10d::_reduce_scatter_base_", "bf16 16", "bf16 64", None),
        Work("communication", 0, 2 * 80, link_bytes=2 * 64 * 3 // 4),
    ),
    (call("c10d::alltoall_base_", "bf16 64", "bf16 64"), Work("communication", 0, 256, notes=NO_GROUP)),
    (
        call("symm_mem::multimem_all_reduce_", "bf16 2557440", None, None),
        Work("communication", 0, 2 * 2 * 2557440, notes=NO_GROUP),
    ),
    (call("_C_custom_ar::all_reduce", 1, "bf16 64", "bf16 64", 2, 3), Work("communication", 0, 256, notes=NO_GROUP)),
    (
        call("_c10d_functional::all_gather_into_tensor", "bf16 64", 4, None),
        Work("communication", 0, 2 * 5 * 64, link_bytes=2 * 4 * 64 * 3 // 4),
    ),
    (
        call("_c10d_functional::reduce_scatter_tensor", "bf16 64", None, 4, None),
        Work("communication", 0, 2 * (64 + 16), link_bytes=2 * 64 * 3 // 4),
    ),
]


@pytest.mark.parametrize(
    ("given", "expected"), COLLECTIVES, ids=lambda one: one.name if isinstance(one, OpCall) else ""
)
def test_work(given: OpCall, expected: Work) -> None:
    assert work_of(given) == expected


def test_no_answer() -> None:
    assert work_of(call("c10d::_allgather_base_")) is None
    assert work_of(call("c10d::_allgather_base_", tensor(" 8"), tensor(" 2"))) is None  # types not recorded
    assert work_of(call("_c10d_functional::all_gather_into_tensor", "bf16 64", -4, None)) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", ""),
        ("barrier", ""),
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("_broadcast_oop", "broadcast"),
        ("SendRecv", "send"),
        ("recv", "send"),
    ],
)
def test_names_of_collectives(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_bus_bandwidth_as_nccl_tests_defines_it() -> None:
    assert collective("allreduce", 800, 800, 8) == Work("communication", 0, 1600, link_bytes=800 * 2 * 7 // 8)
    assert collective("allreduce", 800, 800, 1) == Work("communication", 0, 1600)
    assert collective("allreduce", 800, 800, None) == Work("communication", 0, 1600, notes=NO_GROUP)
    assert collective("broadcast", 800, 800, None) == Work("communication", 0, 1600, link_bytes=800)
    assert collective("allreduce", -1, 800, 8) is None
    message = Message("all_gather", "BFloat16", 25136, 201088, 8)
    assert recorded(OpCall("record_param_comms", message=message)) == Work(
        "communication", 0, 2 * 9 * 25136, link_bytes=2 * 7 * 25136
    )
    assert recorded(OpCall("record_param_comms", message=Message("all_gather", "what", 1, 8, 8))) is None
    assert recorded(OpCall("record_param_comms")) is None
