"""Which matrix products does a layer of this model run, in which order? What kernels in a graph are matched to.

A layer is what comes before attention, attention, and what comes after it. Engines fuse projections or do not, so each
side has alternatives; which one a trace holds, the number and order of its kernels tells (config_match.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from tracekit.errors import UsageError
from tracekit.model_config import ModelConfig

DENSE, GROUPED, ATTENTION = "D", "G", "A"


@dataclass(frozen=True, slots=True)
class Slot:
    """A matrix product of a layer: rows x inputs times inputs x outputs, for each of `batch` heads.

    rows: "tokens", "sampled" (the tokens whose next one is wanted) or "routed" (tokens times experts of each).
    module: whose weight it is, by its name in the checkpoint without the layer; "" if it is never quantised.
    """

    name: str
    inputs: int
    outputs: int
    module: str = ""
    rows: str = "tokens"
    batch: int = 1

    @property
    def symbol(self) -> str:
        """How its kernel is told from others."""
        return GROUPED if self.rows == "routed" else DENSE


@dataclass(frozen=True, slots=True)
class Place:
    """One kernel of the expected order. slot: None for attention."""

    layer: int
    slot: Slot | None


@dataclass(frozen=True, slots=True)
class Order:
    """An order of kernels that the model may run in: a letter each, and what it is."""

    symbols: str
    all_places: tuple[Place, ...]

    def places(self, divided: bool) -> tuple[Place, ...]:
        """What each kernel is; without attention where that does not divide the layers."""
        return self.all_places if divided else tuple(place for place in self.all_places if place.slot)


@dataclass(frozen=True, slots=True)
class Layers:
    """The model as one of `tensor_parallel` devices runs it. Raises UsageError where its sizes cannot be split so."""

    config: ModelConfig
    tensor_parallel: int = 1
    _orders: dict[bool, tuple[Order, ...]] = field(default_factory=dict, compare=False, repr=False)
    _like: list[int] = field(default_factory=list, compare=False, repr=False)

    def __post_init__(self) -> None:
        config, parts = self.config, self.tensor_parallel
        if parts < 1:
            raise UsageError(f"tensor parallel size {parts}: must be 1 or more")
        experts = config.experts
        sizes = {"attention heads": config.heads, "intermediate size": config.intermediate}
        if experts is not None:
            sizes |= {"expert's intermediate size": experts.intermediate, "shared experts' size": experts.shared}
            if all(config.routed):
                del sizes["intermediate size"]
        for what, size in sizes.items():
            if size % parts:
                raise UsageError(f"tensor parallel size {parts} does not divide the model's {what} {size}")

    @property
    def heads(self) -> int:
        """Query heads on a device."""
        return self.config.heads // self.tensor_parallel

    @property
    def kv_heads(self) -> int:
        """Key and value heads on a device; with more devices than heads each has a copy of one."""
        return max(1, -(-self.config.kv_heads // self.tensor_parallel))

    @property
    def intermediate(self) -> int:
        """Width of the dense MLP on a device."""
        return self.config.intermediate // self.tensor_parallel

    @property
    def expert_intermediate(self) -> int:
        """Width of a routed expert on a device."""
        return self.config.experts.intermediate // self.tensor_parallel if self.config.experts else 0

    @property
    def shared_intermediate(self) -> int:
        """Width of the shared experts on a device, 0 without."""
        return self.config.experts.shared // self.tensor_parallel if self.config.experts else 0

    def like(self, layer: int) -> int:
        """The first layer that does the same work as this one."""
        if not self._like:
            first: dict[tuple[bool, int, tuple[bool, ...]], int] = {}
            for at in range(self.config.layers):
                self._like.append(first.setdefault(self._kind(at), at))
        return self._like[layer]

    def _kind(self, layer: int) -> tuple[bool, int, tuple[bool, ...]]:
        stored = self.config.quantization
        covered = [stored.covers(f"model.layers.{layer}.{module}") for module in _MODULES] if stored else []
        return self.config.is_routed(layer), self.config.window(layer), tuple(covered)

    def head(self) -> Slot:
        """The product with the vocabulary."""
        return Slot("lm_head", self.config.hidden, -(-self.config.vocab // self.tensor_parallel), "lm_head", "sampled")

    def before_attention(self, decode: bool) -> list[tuple[Slot, ...]]:
        """What may run before attention; decode: latent attention works on the latent keys themselves."""
        config = self.config
        if config.latent is not None:
            return self._before_latent(decode)
        width, hidden = config.head_dim, config.hidden
        q, kv = self.heads * width, self.kv_heads * width
        return [
            (Slot("qkv", hidden, q + 2 * kv, "self_attn.q_proj"),),
            (Slot("q", hidden, q, "self_attn.q_proj"), Slot("kv", hidden, 2 * kv, "self_attn.k_proj")),
            (
                Slot("q", hidden, q, "self_attn.q_proj"),
                Slot("k", hidden, kv, "self_attn.k_proj"),
                Slot("v", hidden, kv, "self_attn.v_proj"),
            ),
        ]

    def _before_latent(self, decode: bool) -> list[tuple[Slot, ...]]:
        """DeepSeek-V2 (arXiv 2405.04434) 2.1: queries and keys through low ranks; with decode, the up projection of the
        keys is applied to the queries instead.
        """
        config, latent = self.config, self.config.latent
        assert latent is not None
        keys = latent.key_value + latent.rope
        queries = self.heads * (latent.nope + latent.rope)
        up = (
            Slot("uk", latent.nope, latent.key_value, batch=self.heads)
            if decode
            else Slot("kv_b", latent.key_value, self.heads * (latent.nope + latent.value), "self_attn.kv_b_proj")
        )
        kv_a = Slot("kv_a", config.hidden, keys, "self_attn.kv_a_proj_with_mqa")
        if not latent.query:
            return [(Slot("q", config.hidden, queries, "self_attn.q_proj"), kv_a, up)]
        q_b = Slot("q_b", latent.query, queries, "self_attn.q_b_proj")
        fused = Slot("qkv_a", config.hidden, latent.query + keys, "self_attn.q_a_proj")
        q_a = Slot("q_a", config.hidden, latent.query, "self_attn.q_a_proj")
        return [(fused, q_b, up), (q_a, kv_a, q_b, up), (q_a, q_b, kv_a, up)]

    def output(self, decode: bool) -> tuple[Slot, ...]:
        """From attention back to the hidden size."""
        latent = self.config.latent
        width = self.heads * (latent.value if latent else self.config.head_dim)
        o = Slot("o", width, self.config.hidden, "self_attn.o_proj")
        if latent and decode:
            return Slot("uv", latent.key_value, latent.value, batch=self.heads), o
        return (o,)

    def mlp(self, name: str, width: int, module: str) -> list[tuple[Slot, ...]]:
        """A dense MLP, or the shared experts."""
        hidden = self.config.hidden
        down = Slot(f"{name}down", width, hidden, f"{module}.down_proj")
        up = Slot(f"{name}up", hidden, width, f"{module}.up_proj")
        if not self.config.gated:
            return [(up, down)]
        gate_up = Slot(f"{name}gate_up", hidden, 2 * width, f"{module}.gate_proj")
        return [(gate_up, down), (Slot(f"{name}gate", hidden, width, f"{module}.gate_proj"), up, down)]

    def routed(self) -> tuple[Slot, ...]:
        """The experts' two products."""
        width, hidden = self.expert_intermediate, self.config.hidden
        first = (2 if self.config.gated else 1) * width
        return (
            Slot("experts_gate_up", hidden, first, "mlp.experts", "routed"),
            Slot("experts_down", width, hidden, "mlp.experts", "routed"),
        )

    def after_attention(self, routed: bool, decode: bool) -> list[tuple[Slot, ...]]:
        """What may run from attention to the next layer."""
        output, experts = self.output(decode), self.config.experts
        if not routed or experts is None:
            return [(*output, *mlp) for mlp in self.mlp("", self.intermediate, "mlp")]
        router, pair = (Slot("router", self.config.hidden, experts.count, "mlp.gate"),), self.routed()
        if not experts.shared:
            return [(*output, *router, *pair), (*output, *pair)]
        found: list[tuple[Slot, ...]] = []
        fused = True
        for mlp in self.mlp("shared_", self.shared_intermediate, "mlp.shared_experts"):
            gate = (Slot("shared_gate", self.config.hidden, 1, "mlp.shared_expert_gate"),)
            for shared in [(*mlp, *gate), (*gate, *mlp)] if experts.shared_gate else [mlp]:
                found += [
                    (*output, *router, *shared, *pair),
                    (*output, *shared, *router, *pair),
                    (*output, *router, *pair, *shared),
                ]
                # What has a kernel of its own for the router does not leave gate and up apart: else the two look alike.
                found += [(*output, *shared, *pair), (*output, *pair, *shared)] if fused else []
            fused = False
        return found

    def orders(self, decode: bool) -> tuple[Order, ...]:
        """Every order that this model may run in, with and without the product with the vocabulary at its end."""
        if decode not in self._orders:
            self._orders[decode] = tuple(self._all_orders(decode))
        return self._orders[decode]

    def _all_orders(self, decode: bool) -> Iterator[Order]:
        flags = [self.config.is_routed(layer) for layer in range(self.config.layers)]
        dense = self.after_attention(False, decode) if not all(flags) else [()]
        routed = self.after_attention(True, decode) if any(flags) else [()]
        for before, plain, experts in product(self.before_attention(decode), dense, routed):
            places: list[Place] = []
            for layer, is_routed in enumerate(flags):
                places += [Place(layer, slot) for slot in before]
                places.append(Place(layer, None))
                places += [Place(layer, slot) for slot in (experts if is_routed else plain)]
            symbols = "".join(place.slot.symbol if place.slot else ATTENTION for place in places)
            yield Order(symbols, tuple(places))
            yield Order(symbols + DENSE, (*places, Place(self.config.layers - 1, self.head())))


_MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "mlp.experts",
    "mlp.shared_experts.gate_proj",
    "mlp.shared_experts.down_proj",
)
