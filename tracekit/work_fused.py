"""How much work is a kernel that TorchInductor generated?

Its op is named like the kernel, `triton_poi_fused_add_mul_0`. Its arguments are all tensors that it reads and writes,
then the sizes of its loops. Each tensor counts once: that a pointer (`in_out_ptr`) is read and written is not recorded.
A tensor may be larger than what one launch touches (the table of an embedding), so no more than the loops' elements are
taken of each. Operations are not recorded: one per element.
"""

from __future__ import annotations

from math import prod

from tracekit.op_call import OpCall, Tensor
from tracekit.work import Work, models
from tracekit.work_sizes import size_of, sum_known, vector_math


@models("triton_poi_*", "triton_red_*", "triton_per_*")
def fused_work(call: OpCall) -> Work | None:
    """The work of a generated pointwise (`poi`) or reduction (`red`, `per`) kernel."""
    tensors = [one for one in call.args if isinstance(one, Tensor)]
    if not tensors:
        return None
    elements = _elements(call, tensors)
    limit = elements if elements is not None else max(one.stored for one in tensors)
    total = sum_known(size_of(min(one.stored, limit), one.dtype) for one in tensors)
    if total is None:
        return None
    math = next((math for one in tensors if (math := vector_math(one.dtype))), "")
    notes = ("fused: operations not recorded", *(() if elements is not None else ("loop sizes not understood",)))
    family = "elementwise" if call.name.startswith("triton_poi_") else "reduction"
    return Work(family, limit if math else 0, total, math if limit else "", notes=notes)


def _elements(call: OpCall, tensors: list[Tensor]) -> int | None:
    """What the loops run over: the last number, or the product of the last two or three, if a tensor has that size."""
    numbers = [one for one in call.args if type(one) is int]
    sizes = {one.elements for one in tensors}
    first = 1 if call.name.startswith("triton_poi_") else 2
    for count in range(first, 4):
        if len(numbers) >= count and (product := prod(numbers[-count:])) in sizes and product > 0:
            return product
    return None
