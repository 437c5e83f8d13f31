"""Is this config.json of the model that ran? What ops and kernels of the trace say against it, before it is believed.

Order and number of kernels are the same in many models. But some ops outside the graphs have the vocabulary or the
heads in their shapes, and kernels of products of quantised weights say so in their names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from math import prod

from tracekit.config_layers import Layers

_PADDING = 1024  # rows that engines add at most to a vocabulary, to divide it well
_LOGITS = re.compile(r"softmax|argmax|topk|sampling_from")
_ATTENTION = re.compile(r"::unified_attention")
# Which argument is the weight, and which of its dimensions are the hidden size and the vocabulary.
_TABLES = {"aten::mm": (1, 0, 1), "aten::addmm": (2, 0, 1), "aten::linear": (1, 1, 0), "aten::embedding": (0, 1, 0)}
# Names of kernels that multiply weights of 4 bits, and of 8. A letter of a type after another letter means something
# else: `VWA8` of hipBLASLt is a vector's width. In cuBLAS's `nvjet_qqtst` a q is a quarter of 32 bits, an o an eighth.
_ANY_BITS = r"marlin|machete|gptq|exl(?:lama|2)|mul_mat_(?:vec_)?i?q|fp?a_int_?b|bitblas"
_FEW_BITS = re.compile(
    _ANY_BITS + r"|awq|fp4|e2m1|nf4|int4|wna16|4bit|mxf|gemm_half_q|tinygemm|nvjet_(?:sm\d+_)?oo"
    r"|(?<![a-z])(?:[wafui]4|u4b)(?![0-9])",
    re.IGNORECASE,
)
_EIGHT_BITS = re.compile(
    _ANY_BITS + r"|fp8|e4m3|e5m2|float8|int8|8bit|deep_?gemm|imma|block_?scale|signed_char|nvjet_(?:sm\d+_)?qq"
    r"|(?<![a-z])[wafuis]8(?![0-9])",
    re.IGNORECASE,
)


def doubt(layers: Layers, ops: Iterable[tuple[str, str]], products: Iterable[tuple[str, str]]) -> str:
    """Why the config is not that of the trace, "" if nothing says so.

    ops: name and shapes (JSON) of those that may tell. products: name and subcategory of the kernels of products.
    What nothing agrees with is refused: beside the model there may be others in the trace, such as one that drafts.
    """
    calls = [(name, shapes) for name, text in ops if (shapes := _shapes(text))]
    return (
        _of_vocabulary(layers, calls)
        or _of_hidden(layers, calls)
        or _of_heads(layers, calls)
        or _of_weights(layers, list(products))
    )


Shapes = list[list[int]]


def _shapes(text: str) -> Shapes:
    """Dimensions of each argument; [] for one that is no tensor, and for text that no profiler wrote."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list):
        return []
    return [one if isinstance(one, list) and all(type(size) is int for size in one) else [] for one in found]


def _is_vocabulary(whole: int, parts: int, size: int) -> bool:
    """The whole of it, or one of so many parts."""
    return any(least <= size < least + _PADDING for least in (whole, -(-whole // parts)))


def _of_vocabulary(layers: Layers, calls: Iterable[tuple[str, Shapes]]) -> str:
    found = {
        tensor[1]
        for name, shapes in calls
        if _LOGITS.search(name)
        for tensor in shapes[:1]
        if len(tensor) == 2 and tensor[1] > 1000  # experts are chosen alike, of fewer
    }
    config, parts = layers.config, layers.tensor_parallel
    if not found or any(_is_vocabulary(config.vocab, parts, size) for size in found):
        return ""
    return f"a vocabulary of {config.vocab}, but logits of {_list(found)} in the trace"


def _of_hidden(layers: Layers, calls: Iterable[tuple[str, Shapes]]) -> str:
    """The vocabulary's table, or the product with it, has the hidden size as its other side."""
    found = set(_hidden_sizes(layers, calls))
    if not found or layers.config.hidden in found:
        return ""
    return f"a hidden size of {layers.config.hidden}, but {_list(found)} beside the vocabulary in the trace"


def _hidden_sizes(layers: Layers, calls: Iterable[tuple[str, Shapes]]) -> Iterator[int]:
    for name, shapes in calls:
        at, hidden, vocabulary = _TABLES.get(name, (0, 0, 0))
        weight = shapes[at] if name in _TABLES and len(shapes) > at else []
        # A part of the vocabulary may be as many as the outputs of any other product.
        parts = layers.tensor_parallel if name == "aten::embedding" else 1
        if len(weight) == 2 and _is_vocabulary(layers.config.vocab, parts, weight[vocabulary]):
            yield weight[hidden]


def _of_heads(layers: Layers, calls: Iterable[tuple[str, Shapes]]) -> str:
    """Rows of queries and of keys, where attention is not that of latent keys."""
    width = layers.config.head_dim
    rows = {
        (prod(shapes[0][1:]), prod(shapes[1][1:]))
        for name, shapes in calls
        if _ATTENTION.search(name) and len(shapes) > 2 and min(len(one) for one in shapes[:2]) > 1
    }
    if not rows or layers.config.latent is not None or (layers.heads * width, layers.kv_heads * width) in rows:
        return ""
    query, key = min(rows)
    return (
        f"queries of {layers.heads} x {width} values and keys of {layers.kv_heads} x {width} on a device, but {query} "
        f"and {key} in the trace"
    )


def _of_weights(layers: Layers, products: list[tuple[str, str]]) -> str:
    stored = layers.config.quantization
    if stored is None or stored.bits > 8 or not products:
        return ""
    said = _EIGHT_BITS if stored.bits == 8 else _FEW_BITS
    if any(said.search(name) or subcategory == "quantized" for name, subcategory in products):
        return ""
    return f"weights of {stored.bits} bits ({stored.method}), but no kernel of a product is named for such in the trace"


def _list(sizes: Iterable[int]) -> str:
    """The largest few."""
    return ", ".join(str(size) for size in sorted(sizes, reverse=True)[:3])
