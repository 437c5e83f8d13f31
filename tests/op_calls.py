"""Op calls for tests of the work model, written short: "bf16 2x3" is a tensor."""

from __future__ import annotations

from tracekit.op_call import DTYPES, Argument, OpCall, Tensor

_NAMES = set(DTYPES.values())


def tensor(text: str, *strides: int) -> Tensor:
    """A tensor from its type and sizes: "bf16 2x3", "fp32" without dimensions, "int32 0" without elements."""
    dtype, _, sizes = text.partition(" ")
    return Tensor(tuple(int(one) for one in sizes.split("x")) if sizes else (), dtype, strides)


def call(name: str, *args: Argument) -> OpCall:
    """A call with these arguments; a text that begins with an element type is a tensor."""
    return OpCall(
        name, tuple(tensor(one) if isinstance(one, str) and one.partition(" ")[0] in _NAMES else one for one in args)
    )
