"""How much work is a convolution?

Forward: 2 * result elements * input channels per group * kernel elements (torch.utils.flop_counter, conv_flop_count);
of a transposed one the input takes the place of the result. Backward is that once for each gradient that is asked for.
Bytes: input, weight, bias and result once. The result's size follows from strides, padding and dilation; where these
were not recorded there is no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tracekit.op_call import Argument, OpCall, Tensor
from tracekit.work import Model, Work, models
from tracekit.work_sizes import matrix_math, size_of, sum_known, weigh


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a schema has its arguments, -1 for none. transposed: place of a flag. always: transposed without a flag."""

    stride: int
    padding: int
    dilation: int
    bias: int = -1
    transposed: int = -1
    output_padding: int = -1
    groups: int = -1
    always: bool = False


_PLACES: dict[str, _Places] = {
    **dict.fromkeys(("aten::convolution", "aten::_convolution"), _Places(3, 4, 5, 2, 6, 7, 8)),
    "aten::convolution_overrideable": _Places(3, 4, 5, 2, 6, 7, 8),
    "aten::cudnn_convolution": _Places(3, 2, 4),
    "aten::cudnn_convolution_transpose": _Places(4, 2, 5, output_padding=3, groups=6, always=True),
    "aten::cudnn_convolution_relu": _Places(3, 4, 5, 2),
    "aten::miopen_convolution": _Places(4, 3, 5, 2),
    "aten::miopen_depthwise_convolution": _Places(4, 3, 5, 2),
    "aten::miopen_convolution_transpose": _Places(5, 3, 6, 2, output_padding=4, groups=7, always=True),
    "aten::mkldnn_convolution": _Places(4, 3, 5, 2),
    "aten::_conv_depthwise2d": _Places(4, 5, 6, 3),
    "aten::_slow_conv2d_forward": _Places(4, 5, -1, 3),
}


def _model(places: _Places) -> Model:
    def model(call: OpCall) -> Work | None:
        source, weight = call.tensor(0), call.tensor(1)
        transposed = places.always or (places.transposed >= 0 and call.flag(places.transposed) is True)
        if source is None or weight is None or (result := _result(call, places, source, weight, transposed)) is None:
            return None
        bias = call.tensor(places.bias) if places.bias >= 0 else None
        flops = _flops(source.shape, weight.shape, result, transposed)
        reads = weigh(source, weight) if bias is None else weigh(source, weight, bias)
        total = sum_known((reads, size_of(prod(result), source.dtype)))
        math = matrix_math(source.dtype)
        if total is None or not math:
            return None
        bits = 8 * (weight.itemsize or 0)
        return Work("conv", flops, total, math if flops else "", weight_bytes=weight.bytes or 0, weight_bits=bits)

    return model


for _name, _place in _PLACES.items():
    models(_name)(_model(_place))


@models("aten::convolution_backward")
def convolution_backward(call: OpCall) -> Work | None:
    """(gradient, input, weight, ..., transposed at 7, mask of what is asked for): as many products as gradients."""
    gradient, source, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    if gradient is None or source is None or weight is None or len(source.shape) < 3:
        return None
    mask = str(call.args[10]) if len(call.args) > 10 else ""
    asked = [word.strip() == "True" for word in mask.strip("[]").split(",")]
    if len(asked) != 3:
        return None
    once = _flops(source.shape, weight.shape, gradient.shape, call.flag(7) is True)
    results = [one for one, wanted in zip((source, weight), asked, strict=False) if wanted]
    reads = [gradient, *([weight] if asked[0] else []), *([source] if asked[1] else [])]
    total = weigh(*reads, *results)
    math = matrix_math(source.dtype)
    if total is None or not math:
        return None
    flops = once * len(results)
    return Work("conv", flops, total, math if flops else "")


def _flops(source: tuple[int, ...], weight: tuple[int, ...], result: tuple[int, ...], transposed: bool) -> int:
    """One operation pair for each element of the result (of the input, if transposed) and of a filter over it."""
    places = source if transposed else result
    return 2 * source[0] * prod(places[2:]) * prod(weight)


def _result(call: OpCall, places: _Places, source: Tensor, weight: Tensor, transposed: bool) -> tuple[int, ...] | None:
    """The shape of the result: batch, channels, and each dimension by the formula of torch.nn.Conv/ConvTranspose."""
    spatial = len(source.shape) - 2
    if spatial < 1 or len(weight.shape) != len(source.shape):
        return None
    stride, padding = _sizes(call, places.stride, spatial), _sizes(call, places.padding, spatial)
    dilation = _sizes(call, places.dilation, spatial) if places.dilation >= 0 else (1,) * spatial
    more = _sizes(call, places.output_padding, spatial) if places.output_padding >= 0 else (0,) * spatial
    if stride is None or padding is None or dilation is None or more is None or 0 in stride:
        return None
    sizes = []
    for at in range(spatial):
        size, reach = source.shape[2 + at], dilation[at] * (weight.shape[2 + at] - 1)
        if transposed:
            sizes.append((size - 1) * stride[at] - 2 * padding[at] + reach + more[at] + 1)
        else:
            sizes.append((size + 2 * padding[at] - reach - 1) // stride[at] + 1)
    if min(sizes) < 0:
        return None
    groups = call.number(places.groups) if places.groups >= 0 else None
    channels = weight.shape[1] * (groups if isinstance(groups, int) else 1) if transposed else weight.shape[0]
    return (source.shape[0], max(0, channels), *sizes)


def _sizes(call: OpCall, place: int, count: int) -> tuple[int, ...] | None:
    """As many numbers as there are dimensions; one stands for all."""
    value: Argument = call.args[place] if place < len(call.args) else None
    if not isinstance(value, tuple) or not all(type(one) is int and one >= 0 for one in value):
        return None
    numbers = tuple(one for one in value if isinstance(one, int))
    return numbers * count if len(numbers) == 1 else numbers if len(numbers) == count else None
