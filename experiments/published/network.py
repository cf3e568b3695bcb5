"""The network of a published run, with its activations laid out as its framework lays them out."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from experiments.published import kernels
from experiments.published.kernels import cross_entropy, gelu, normalised, softmax, swiglu
from experiments.published.shapes import Layout, Model, Params, Weight

FLOAT8 = jnp.float8_e4m3fn
WHOLE = (None, None, None)
"""Batch, sequence, width of an activation that no axis splits."""


def constrain(x: jax.Array, layout: Layout, spec: PartitionSpec) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(layout.mesh, spec))


@dataclass(frozen=True)
class Network:
    """A decoder on the tokens of one replica; replicas are vmapped, so that what they exchange is in the program."""

    model: Model
    layout: Layout
    weights: Mapping[str, Weight]

    def loss(self, params: Params, tokens: jax.Array) -> jax.Array:
        """The mean cross-entropy of `[batch, sequence + 1]` tokens."""
        params = {**params, **self.gathered({path: params[path] for path in ("embedding", "head") if path in params})}
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.laid_out(params["embedding"][inputs], self.between)
        for kind in ("dense", "sparse"):
            layers = {path.partition("/")[2]: w for path, w in params.items() if path.startswith(kind)}
            if layers:
                x = self.stack(x, layers, kind=kind)
        x = self.laid_out(normalised(x), WHOLE)
        head = params["embedding"].T if self.model.tied else params["head"]
        logits = self.laid_out(_product(x, head, 1), (None, None, "tensor"))
        return jnp.mean(cross_entropy(logits, targets).astype(jnp.float32))

    def stack(self, x: jax.Array, layers: Params, *, kind: str) -> jax.Array:
        def layer(x: jax.Array, params: Params) -> jax.Array:
            return self.layer(x, params, kind=kind)

        saved = jax.checkpoint_policies.save_only_these_names(*(("qkv",) if self.layout.remat == "save_qkv" else ()))
        body = layer if self.layout.remat == "none" else jax.checkpoint(layer, policy=saved)
        x, _ = jax.lax.scan(lambda x, params: (body(x, params), None), x, layers)
        return x

    @property
    def between(self) -> tuple[str | None, ...]:
        """What splits batch, sequence and width between layers."""
        return (None, "tensor" if self.layout.sequence_parallel else None, None)

    def laid_out(self, x: jax.Array, axes: tuple[Any, ...]) -> jax.Array:
        return constrain(x, self.layout, self.layout.spec(*axes))

    def layer(self, x: jax.Array, params: Params, *, kind: str) -> jax.Array:
        params = self.gathered(params, f"{kind}/")
        y = self.laid_out(normalised(x), WHOLE)
        x = x + self.laid_out(self.attention(y, params), self.between)
        y = self.laid_out(normalised(x), WHOLE)
        y = self.mixture(y, params) if kind == "sparse" else self.mlp(y, params)
        return x + self.laid_out(y, self.between)

    def gathered(self, params: Params, within: str = "") -> Params:
        """The weights as they are used: FSDP's shards are gathered just before, and again where work is done again."""
        found = {}
        for path, weight in params.items():
            split = self.weights[within + path]
            if split.fsdp is not None:
                weight = self.laid_out(weight, split.axes[-weight.ndim :])  # a shard until here
                weight = jax.lax.all_gather(weight, "fsdp", axis=weight.ndim + split.fsdp, tiled=True)
            found[path] = weight
        return found

    def attention(self, x: jax.Array, params: Params) -> jax.Array:
        heads = (None, None, "tensor")
        query, key, value = (  # batch, sequence, groups, heads (of the query), width
            checkpoint_name(self.laid_out(self.product(x, params[name]), heads), "qkv")
            for name in ("query", "key", "value")
        )
        if "context" in self.layout.separate:
            key, value = (jax.lax.all_gather(y, "context", axis=1, tiled=True) for y in (key, value))
        key, value = self.laid_out(key, heads), self.laid_out(value, heads)
        attend = kernels.attention if self.layout.flash else plain_attention
        return self.product(self.laid_out(attend(query, key, value), heads), params["out"], summed=3)

    def mlp(self, x: jax.Array, params: Params) -> jax.Array:
        inner = [
            self.laid_out(self.product(x, params[name]), (None, None, "tensor"))
            for name in ("gate", "up")
            if name in params
        ]
        return self.product(activated(inner), params["down"])

    def mixture(self, x: jax.Array, params: Params) -> jax.Array:
        """Every token to `chosen` of the experts, evenly: from a device's tokens to an expert's and back."""
        if self.layout.grouped:
            return self.masked_mixture(x, params)
        batch, sequence, width = x.shape
        chosen, experts = self.model.chosen, self.model.experts
        shares = softmax(self.product(x, params["router"]))[..., :chosen, None]
        sent = (x[:, :, None] * shares).reshape(-1, experts, width)
        held = self.to_experts(jnp.transpose(sent, (1, 0, 2)))
        back = jnp.transpose(self.from_experts(self.of_each(held, params)), (1, 0, 2))
        return jnp.sum(back.reshape(batch, sequence, chosen, width), axis=2)

    def masked_mixture(self, x: jax.Array, params: Params) -> jax.Array:
        """The same in groups, tokens sent and fetched by products with masks [group, token, expert, place]."""
        groups, experts = x.size // x.shape[-1] // self.layout.grouped, self.model.experts
        places = self.model.chosen * self.layout.grouped // experts
        sent = x.reshape(groups, self.layout.grouped, -1)
        shares = softmax(self.product(sent, params["router"]))
        masks = jnp.broadcast_to(shares[..., None], (*shares.shape, places))
        held = self.to_experts(jnp.einsum("gsec,gsm->egcm", masks, sent).reshape(experts, -1, x.shape[-1]))
        made = self.from_experts(self.of_each(held, params)).reshape(experts, groups, places, -1)
        return jnp.einsum("gsec,egcm->gsm", masks, made).reshape(x.shape)

    def of_each(self, held: jax.Array, params: Params) -> jax.Array:
        """Each expert's MLP on its tokens."""
        inner = [self.expert_product(held, params[name], "tensor") for name in ("gate", "up") if name in params]
        return self.expert_product(activated(inner), params["down"], None)

    def to_experts(self, sent: jax.Array) -> jax.Array:
        """`[experts, tokens, width]`, of all experts and a device's tokens, to its own experts' and all tokens."""
        if "expert" in self.layout.separate:
            sent = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
        return self.laid_out(sent, WHOLE)

    def from_experts(self, made: jax.Array) -> jax.Array:
        if "expert" in self.layout.separate:
            made = jax.lax.all_to_all(made, "expert", split_axis=1, concat_axis=0, tiled=True)
        return self.laid_out(made, WHOLE)

    def expert_product(self, held: jax.Array, weight: jax.Array, split: str | None) -> jax.Array:
        return self.laid_out(jax.vmap(self.product)(held, weight), (None, None, split))

    def product(self, x: jax.Array, weight: jax.Array, summed: int = 1) -> jax.Array:
        """`x` times a weight over its last dimensions, in the run's precision."""
        if self.layout.precision == "float8_e4m3fn":
            return float8_product(x, weight, summed)
        return _product(x, weight, summed)


def activated(inner: Sequence[jax.Array]) -> jax.Array:
    """The MLP's inner product, gated by another where there are two."""
    return swiglu(*inner) if len(inner) == 2 else gelu(*inner)


def plain_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """With its scores in memory; the causal half is masked, not left out."""
    scores = jnp.einsum("bsgrd,btgd->bgsrt", query, key)
    return jnp.einsum("bgsrt,btgd->bsgrd", softmax(scores), value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def float8_product(x: jax.Array, weight: jax.Array, summed: int) -> jax.Array:
    """A product of operands cast to float8, its gradients' products too, as Transformer Engine does."""
    return _float8(x, weight, summed)


def _product(x: jax.Array, weight: jax.Array, summed: int) -> jax.Array:
    axes = tuple(range(x.ndim - summed, x.ndim)), tuple(range(summed))
    return jax.lax.dot_general(x, weight, (axes, ((), ())))


def _float8(x: jax.Array, weight: jax.Array, summed: int) -> jax.Array:
    axes = tuple(range(x.ndim - summed, x.ndim)), tuple(range(summed))
    return jax.lax.dot_general(
        x.astype(FLOAT8), weight.astype(FLOAT8), (axes, ((), ())), preferred_element_type=x.dtype
    )


def _float8_forward(x: jax.Array, weight: jax.Array, summed: int) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _float8(x, weight, summed), (x, weight)


def _float8_backward(
    summed: int, saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, weight = saved
    made, kept = weight.ndim - summed, x.ndim - summed
    back = jnp.transpose(weight, (*range(summed, weight.ndim), *range(summed)))
    of_weight = jax.lax.dot_general(
        x.astype(FLOAT8),
        gradient.astype(FLOAT8),
        ((tuple(range(kept)), tuple(range(gradient.ndim - made))), ((), ())),
        preferred_element_type=x.dtype,
    )
    return _float8(gradient, back, made), of_weight


float8_product.defvjp(_float8_forward, _float8_backward)
