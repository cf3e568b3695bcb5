"""A GPT-2-like decoder, trained with AdamW: its layers written out, or scanned with rematerialisation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.training import cast, cross_entropy, init_state, make_tokens, normal, train_step
from experiments.workloads.workload import Size, Workload

Params = dict[str, Any]


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    heads: int
    sequence: int
    batch: int
    vocabulary: int
    dtype: jnp.dtype

    @property
    def head_width(self) -> int:
        return self.width // self.heads


CONFIGS: dict[Size, Config] = {
    "test": Config(layers=4, width=256, heads=8, sequence=64, batch=8, vocabulary=2048, dtype=jnp.dtype("float32")),
    # GPT-2 small, with its vocabulary of 50,257 rounded up so that it divides.
    "full": Config(
        layers=12, width=768, heads=12, sequence=1024, batch=64, vocabulary=50304, dtype=jnp.dtype("bfloat16")
    ),
}


# 175 billion weights (arXiv:2005.14165, table 2.1), the vocabulary rounded up so that it divides.
GPT3 = Config(
    layers=96, width=12288, heads=96, sequence=2048, batch=1536, vocabulary=51200, dtype=jnp.dtype("bfloat16")
)


def gpt(size: Size) -> Workload:
    return written_out(CONFIGS[size])


def written_out(config: Config) -> Workload:
    def init(key: jax.Array) -> list[Params]:
        return [init_layer(config, key) for key in jax.random.split(key, config.layers)]

    def run(layers: list[Params], x: jax.Array) -> jax.Array:
        for params in layers:
            x = layer(params, x)
        return x

    return _workload("gpt", config, "layers written out", init, run)


def gpt_scan(size: Size) -> Workload:
    config = CONFIGS[size]

    def init(key: jax.Array) -> Params:
        return jax.vmap(lambda key: init_layer(config, key))(jax.random.split(key, config.layers))

    def run(layers: Params, x: jax.Array) -> jax.Array:
        remat_layer = jax.checkpoint(layer)
        x, _ = jax.lax.scan(lambda x, params: (remat_layer(params, x), None), x, layers)
        return x

    return _workload("gpt-scan", config, "layers scanned and rematerialised", init, run)


def _workload(
    name: str,
    config: Config,
    layers_are: str,
    init_layers: Callable[[jax.Array], Any],
    run_layers: Callable[[Any, jax.Array], jax.Array],
) -> Workload:
    optimizer = optax.adamw(1e-3)

    def loss(params: Params, batch: Params) -> jax.Array:
        params = cast(params, config.dtype)
        x = params["wte"][batch["inputs"]] + params["wpe"]
        x = layer_norm(params["norm"], run_layers(params["layers"], x))
        logits = jnp.einsum("bsd,vd->bsv", x, params["wte"], preferred_element_type=jnp.float32)
        return cross_entropy(logits, batch["targets"])

    def make_args(key: jax.Array) -> tuple[Params, Params]:
        of_layers, of_wte, of_wpe, of_batch = jax.random.split(key, 4)
        params = {
            "wte": normal(of_wte, config.vocabulary, config.width, fan_in=config.width),
            "wpe": normal(of_wpe, config.sequence, config.width, fan_in=config.width),
            "layers": init_layers(of_layers),
            "norm": init_norm(config),
        }
        batch = make_tokens(config.batch, config.sequence, config.vocabulary, of_batch)
        return init_state(params, optimizer), batch

    return Workload(
        name=name,
        family="gpt",
        description=f"GPT decoder train step, AdamW, {layers_are}",
        fn=train_step(loss, optimizer),
        make_args=make_args,
        donate_argnums=(0,),
    )


def init_norm(config: Config) -> Params:
    return {"scale": jnp.ones(config.width), "bias": jnp.zeros(config.width)}


def init_layer(config: Config, key: jax.Array) -> Params:
    d, h, k, f = config.width, config.heads, config.head_width, 4 * config.width
    wq, wk, wv, wo, up, down = jax.random.split(key, 6)
    return {
        "attention_norm": init_norm(config),
        "wq": normal(wq, d, h, k, fan_in=d),
        "wk": normal(wk, d, h, k, fan_in=d),
        "wv": normal(wv, d, h, k, fan_in=d),
        "wo": normal(wo, h, k, d, fan_in=d),
        "mlp_norm": init_norm(config),
        "w_up": normal(up, d, f, fan_in=d),
        "b_up": jnp.zeros(f),
        "w_down": normal(down, f, d, fan_in=f),
        "b_down": jnp.zeros(d),
    }


def layer(params: Params, x: jax.Array) -> jax.Array:
    """One decoder layer on (batch, sequence, width)."""
    x = x + attention(params, layer_norm(params["attention_norm"], x))
    return x + mlp(params, layer_norm(params["mlp_norm"], x))


def layer_norm(params: Params, x: jax.Array) -> jax.Array:
    exact = x.astype(jnp.float32)
    mean = jnp.mean(exact, axis=-1, keepdims=True)
    variance = jnp.var(exact, axis=-1, keepdims=True)
    normed = (exact - mean) * jax.lax.rsqrt(variance + 1e-5)
    return normed.astype(x.dtype) * params["scale"] + params["bias"]


def attention(params: Params, x: jax.Array) -> jax.Array:
    query = jnp.einsum("bsd,dhk->bshk", x, params["wq"])
    key = jnp.einsum("btd,dhk->bthk", x, params["wk"])
    value = jnp.einsum("btd,dhk->bthk", x, params["wv"])
    scores = jnp.einsum("bshk,bthk->bhst", query, key, preferred_element_type=jnp.float32)
    scores = scores * query.shape[-1] ** -0.5
    sees = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    weights = jax.nn.softmax(jnp.where(sees, scores, -jnp.inf), axis=-1).astype(x.dtype)
    return jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", weights, value), params["wo"])


def mlp(params: Params, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ params["w_up"] + params["b_up"]) @ params["w_down"] + params["b_down"]
