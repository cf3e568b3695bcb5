"""A Llama-3-like decoder, trained with AdamW: rotary positions, grouped queries, gated MLP, layers written out."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.training import cast, cross_entropy, init_state, make_tokens, normal, train_step
from experiments.workloads.workload import Size, Workload

Params = dict[str, Any]

ROTATION_BASE = 500_000.0
"""Of the rotary positions in Llama 3 (arXiv:2407.21783, section 3.2)."""


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    sequence: int
    batch: int
    vocabulary: int
    dtype: jnp.dtype

    @property
    def head_width(self) -> int:
        return self.width // self.heads


CONFIGS: dict[Size, Config] = {
    "test": Config(2, 256, 512, 8, 4, sequence=64, batch=8, vocabulary=2048, dtype=jnp.dtype("float32")),
    # Llama 3 8B (arXiv:2407.21783, table 3).
    "full": Config(32, 4096, 14336, 32, 8, sequence=8192, batch=64, vocabulary=128256, dtype=jnp.dtype("bfloat16")),
}


def llama(size: Size) -> Workload:
    return written_out(CONFIGS[size])


def written_out(config: Config) -> Workload:
    optimizer = optax.adamw(1e-3)

    def loss(params: Params, batch: Params) -> jax.Array:
        params = cast(params, config.dtype)
        x = params["embedding"][batch["inputs"]]
        for layer_params in params["layers"]:
            x = layer(layer_params, x)
        logits = jnp.einsum(
            "bsd,dv->bsv", rms_norm(params["norm"], x), params["head"], preferred_element_type=jnp.float32
        )
        return cross_entropy(logits, batch["targets"])

    def make_args(key: jax.Array) -> tuple[Params, Params]:
        of_embedding, of_layers, of_head, of_batch = jax.random.split(key, 4)
        params = {
            "embedding": normal(of_embedding, config.vocabulary, config.width, fan_in=1),
            "layers": [init_layer(config, key) for key in jax.random.split(of_layers, config.layers)],
            "norm": jnp.ones(config.width),
            "head": normal(of_head, config.width, config.vocabulary, fan_in=config.width),
        }
        batch = make_tokens(config.batch, config.sequence, config.vocabulary, of_batch)
        return init_state(params, optimizer), batch

    return Workload(
        name="llama",
        family="llama",
        description="Llama decoder train step, AdamW, layers written out",
        fn=train_step(loss, optimizer),
        make_args=make_args,
        donate_argnums=(0,),
    )


def init_layer(config: Config, key: jax.Array) -> Params:
    d, f, g, k = config.width, config.ffn, config.kv_heads, config.head_width
    wq, wk, wv, wo, gate, up, down = jax.random.split(key, 7)
    return {
        "attention_norm": jnp.ones(d),
        "wq": normal(wq, d, g, config.heads // g, k, fan_in=d),
        "wk": normal(wk, d, g, k, fan_in=d),
        "wv": normal(wv, d, g, k, fan_in=d),
        "wo": normal(wo, g, config.heads // g, k, d, fan_in=d),
        "mlp_norm": jnp.ones(d),
        "w_gate": normal(gate, d, f, fan_in=d),
        "w_up": normal(up, d, f, fan_in=d),
        "w_down": normal(down, f, d, fan_in=f),
    }


def layer(params: Params, x: jax.Array) -> jax.Array:
    """One decoder layer on (batch, sequence, width)."""
    x = x + attention(params, rms_norm(params["attention_norm"], x))
    return x + mlp(params, rms_norm(params["mlp_norm"], x))


def rms_norm(scale: jax.Array, x: jax.Array) -> jax.Array:
    exact = x.astype(jnp.float32)
    normed = exact * jax.lax.rsqrt(jnp.mean(exact * exact, axis=-1, keepdims=True) + 1e-5)
    return normed.astype(x.dtype) * scale


def attention(params: Params, x: jax.Array) -> jax.Array:
    """`g` groups of `h` query heads, with one key and one value head for each group."""
    query = rotated(jnp.einsum("bsd,dghk->bghsk", x, params["wq"]))
    key = rotated(jnp.einsum("btd,dgk->bgtk", x, params["wk"]))
    value = jnp.einsum("btd,dgk->bgtk", x, params["wv"])
    scores = jnp.einsum("bghsk,bgtk->bghst", query, key, preferred_element_type=jnp.float32)
    scores = scores * query.shape[-1] ** -0.5
    sees = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    weights = jax.nn.softmax(jnp.where(sees, scores, -jnp.inf), axis=-1).astype(x.dtype)
    return jnp.einsum("bghsk,ghkd->bsd", jnp.einsum("bghst,bgtk->bghsk", weights, value), params["wo"])


def rotated(x: jax.Array) -> jax.Array:
    """(..., sequence, head width), each pair of numbers turned by an angle that grows with the position."""
    sequence, width = x.shape[-2:]
    rates = ROTATION_BASE ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = jnp.arange(sequence, dtype=jnp.float32)[:, None] * rates
    cosine, sine = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def mlp(params: Params, x: jax.Array) -> jax.Array:
    return (jax.nn.silu(x @ params["w_gate"]) * (x @ params["w_up"])) @ params["w_down"]
