"""Which kernel of a step is which product of which layer?

Kernels of a replayed graph have a name, a category and their order. Attention divides them into layers; between two of
them stand the products of one layer's end and the next one's beginning, in the order that the model has them in. Only
an order that fits from the first kernel to the last is believed: one product taken for another shows nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.config_layers import ATTENTION, DENSE, GROUPED, Layers, Order, Place, Slot
from tracekit.wording import counted

_MAIN_ATTENTION = frozenset({"", "decode", "prefill", "generic", "mla"})
# vLLM's kernels name the cache's type in every instance: 0 is that of the activations.
_FP8_CACHE = re.compile(r"kve4m3|Fp8KVCacheDataType\)[12]", re.IGNORECASE)
_BEFORE = frozenset({"qkv", "q", "k", "v", "kv"})
_LATENT = frozenset({"q_b", "kv_a", "kv_b", "uk"})
UNSURE = Slot("", 0, 0)
_LIKE = 0.9  # of the layers run a product by the same kernel


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is seen of a device row. known: an op with shapes launched it."""

    name: str
    category: str
    subcategory: str
    known: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """What a kernel does. kind: gemm, reduce (adds up the parts of a product), attention, norm, rope, activation,
    kv_cache, embedding; gemms and experts: all products of the step, shared by time.

    part: of attention, prefill, decode or all; of a norm and an activation, of what. split: another kernel writes the
    result. cache_bits: of the cache by the kernel's name, 0 where it does not say.
    """

    kind: str
    layer: int = 0
    slot: Slot | None = None
    part: str = ""
    name: str = ""
    split: bool = False
    cache_bits: int = 0

    @property
    def shared(self) -> bool:
        """Whether the work is that of several kernels, by their time."""
        return self.kind in ("gemms", "experts")


@dataclass(slots=True)
class _Group:
    """One letter of the order: kernels that do one thing together."""

    symbol: str
    rows: list[int]
    reduces: list[int]


def roles_of(kernels: Sequence[Kernel], layers: Layers, phase: str) -> list[Role | None]:
    """The role of each kernel of one step on one device, in order of time; None where that cannot be told."""
    groups = _groups(kernels)
    roles: list[Role | None] = [None] * len(kernels)
    decode = phase in ("decode", "verify", "draft")
    fitting = [order for order in layers.orders(decode) if _fits(groups, order, kernels)]
    if fitting and (phase != "mixed" or layers.config.latent is None):
        divided = any(group.symbol == ATTENTION for group in groups)
        _assign(roles, groups, kernels, layers, _agreed([one.places(divided) for one in fitting]))
    else:
        _in_all(roles, groups, kernels, layers)
    return roles


def why_none(kernels: Sequence[Kernel], layers: Layers) -> str:
    """Why a step of these kernels has no roles."""
    symbols, count = _symbols(_groups(kernels)), layers.config.layers
    attention, products = symbols.count(ATTENTION), len(symbols) - symbols.count(ATTENTION)
    if not symbols:
        return "no kernel of a step is a matrix product or attention"
    if attention == count:
        return "the order of kernels in a step is none that the model has"
    if attention:
        return f"{counted(count, 'layer')}, but {counted(attention, 'attention kernel')} in a step"
    return f"{counted(count, 'layer')}, but {counted(products, 'matrix product')} and no attention in a step"


def _agreed(orders: Sequence[Sequence[Place]]) -> list[Place]:
    """What all fitting orders say of each kernel. Where they differ, it may be either of two products: no role."""
    return [
        places[0] if all(place == places[0] for place in places) else Place(places[0].layer, UNSURE)
        for places in zip(*orders, strict=True)
    ]


def _groups(kernels: Sequence[Kernel]) -> list[_Group]:
    """Products and attention in order. Kernels of attention without a product between them are one layer's."""
    groups: list[_Group] = []
    for at, kernel in enumerate(kernels):
        if kernel.category == "gemm" and kernel.subcategory == "splitk_reduce":
            if groups and groups[-1].symbol != ATTENTION:
                groups[-1].reduces.append(at)
        elif kernel.category == "gemm":
            groups.append(_Group(GROUPED if kernel.subcategory == "grouped" else DENSE, [at], []))
        elif kernel.category == "attention" and kernel.subcategory in _MAIN_ATTENTION:
            if groups and groups[-1].symbol == ATTENTION:
                groups[-1].rows.append(at)
            else:
                groups.append(_Group(ATTENTION, [at], []))
    return groups


def _symbols(groups: Sequence[_Group]) -> str:
    return "".join(group.symbol for group in groups)


def _fits(groups: Sequence[_Group], order: Order, kernels: Sequence[Kernel]) -> bool:
    """Whether the kernels are in this order, activations stand before the products that need them, and, where attention
    does not divide the layers, each product is run by one kernel in nearly all of them.
    """
    symbols = _symbols(groups)
    divided = ATTENTION in symbols
    if symbols != (order.symbols if divided else order.symbols.replace(ATTENTION, "")):
        return False
    activated = {at for at, kernel in enumerate(kernels) if kernel.category == "activation"}
    names: dict[str, list[str]] = {}
    for number, (group, place) in enumerate(zip(groups, order.places(divided), strict=True)):
        if place.slot is None:
            continue
        names.setdefault(place.slot.name, []).append(kernels[group.rows[0]].name)
        if not place.slot.name.endswith("down") or place.slot.rows == "routed":
            continue
        between = range(groups[number - 1].rows[-1], group.rows[0])
        if (activated or not divided) and activated.isdisjoint(between):
            return False
    return divided or all(max(map(found.count, set(found))) >= _LIKE * len(found) for found in names.values())


def _assign(
    roles: list[Role | None], groups: Sequence[_Group], kernels: Sequence[Kernel], layers: Layers, places: list[Place]
) -> None:
    for group, place in zip(groups, places, strict=True):
        layer = layers.like(place.layer)
        if place.slot is None:
            _attention(roles, group, kernels, layer)
            continue
        if place.slot is UNSURE:
            continue
        for at in group.rows:
            roles[at] = Role("gemm", layer, place.slot, split=bool(group.reduces))
        for at in group.reduces[:1]:
            roles[at] = Role("reduce", layer, place.slot)
    for number in range(len(groups) + 1):
        start = groups[number - 1].rows[-1] + 1 if number else 0
        end = groups[number].rows[0] if number < len(groups) else len(kernels)
        before = places[number - 1].slot if number else None
        after = places[number].slot if number < len(groups) else None
        between = _Between(before, after, number == 0, number < len(groups) and after is None)
        _small(roles, range(start, end), kernels, layers, between)


def _attention(roles: list[Role | None], group: _Group, kernels: Sequence[Kernel], layer: int) -> None:
    """One kernel does all of a layer's attention; two may be its prefill and its decode half."""
    parts = [kernels[at].subcategory for at in group.rows]
    for at, part in zip(group.rows, parts, strict=True):
        bits = _cache_bits(kernels[at].name)
        if len(parts) == 1:
            roles[at] = Role("attention", layer, part="all", cache_bits=bits)
        elif sorted(parts) == ["decode", "prefill"]:
            roles[at] = Role("attention", layer, part=part, cache_bits=bits)


def _cache_bits(name: str) -> int:
    return 8 if _FP8_CACHE.search(name) else 0


@dataclass(frozen=True, slots=True)
class _Between:
    """What kernels stand between: the products before and after, at the beginning, before attention."""

    before: Slot | None
    after: Slot | None
    first: bool
    attends: bool


def _small(roles: list[Role | None], rows: range, kernels: Sequence[Kernel], layers: Layers, between: _Between) -> None:
    """Kernels that are no products, where there are as many as the place has work for."""
    found: dict[str, list[int]] = {}
    for at in rows:
        kind = kernels[at].category
        if kernels[at].known or (kind == "kv_cache" and kernels[at].subcategory != "write"):
            continue
        if between.first and kind == "index" and kernels[at].subcategory == "gather":
            kind = "embedding"
        found.setdefault(kind, []).append(at)
    for kind, places in found.items():
        names = [kernels[at].name for at in places]
        for at, role in zip(places, _small_roles(kind, names, layers, between), strict=False):
            roles[at] = role


def _small_roles(kind: str, names: list[str], layers: Layers, between: _Between) -> list[Role]:
    if kind == "norm":
        return _norms(names, layers, between)
    after = between.after.name if between.after else ""
    if len(names) != 1:
        return []
    if kind == "activation" and after.endswith("down"):
        return [Role("activation", part=after.removesuffix("_down") if after != "down" else "dense", name=names[0])]
    place = {"rope": between.attends, "kv_cache": between.attends, "embedding": between.first}
    bits = _cache_bits(names[0]) if kind == "kv_cache" else 0
    return [Role(kind, cache_bits=bits)] if place.get(kind) else []


def _norms(names: list[str], layers: Layers, between: _Between) -> list[Role]:
    """Between the products with Q, K and V and attention: of the heads. Elsewhere of the hidden state, except for those
    of the ranks of latent attention.
    """
    before, after = (slot.name if slot else "" for slot in (between.before, between.after))
    if between.attends and before in _BEFORE:
        return [Role("norm", part=part) for part in {1: ("qk",), 2: ("q", "k")}.get(len(names), ())]
    if layers.config.latent is not None and (between.attends or after in _LATENT):
        return []
    return [Role("norm", part="hidden", name=name) for name in names] if len(names) <= 2 else []


def _in_all(roles: list[Role | None], groups: Sequence[_Group], kernels: Sequence[Kernel], layers: Layers) -> None:
    """The products of the whole step as one, if the whole step is here: as much attention as there are layers, or as
    many products as they can have.
    """
    symbols = _symbols(groups)
    dense = symbols.count(DENSE)
    whole = symbols.count(ATTENTION) == layers.config.layers
    if ATTENTION not in symbols:
        counts = [order.symbols.count(DENSE) for order in (*layers.orders(True), *layers.orders(False))]
        whole = min(counts) <= dense <= max(counts)
    if not whole:
        return
    for number, group in enumerate(groups):
        if group.symbol == ATTENTION:
            layer = layers.like(symbols[:number].count(ATTENTION))
            _attention(roles, group, kernels, layer)
            continue
        kind = "experts" if group.symbol == GROUPED else "gemms"
        for at in (*group.rows, *group.reduces):
            roles[at] = Role(kind)
