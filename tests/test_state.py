"""State that goes round a training loop comes out laid out as it went in, so that the second step moves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import floats
from forced import device_mesh
from jax.sharding import PartitionSpec

from experiments import workloads
from planner import Plan, plan
from planner.state import match_state
from planner.trace import trace

P = PartitionSpec
MESH = device_mesh(x=2, y=4)
S = jax.ShapeDtypeStruct
MATRIX, VECTOR = S((16, 8), jnp.float32), S((8,), jnp.float32)


class State(NamedTuple):
    params: dict[str, Any]
    step: Any


STATE = State({"w": MATRIX, "b": VECTOR}, S((), jnp.int32))


def matched(fn: Callable[..., Any], *args: Any) -> dict[str, str]:
    """Paths of results to the paths of the arguments that they continue."""
    traced = trace(fn, args)
    ties = zip(traced.out_paths, match_state(traced), strict=True)
    return {path: traced.in_paths[tie] for path, tie in ties if tie is not None}


def test_a_state_before_a_loss() -> None:
    def step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
        return state, x.sum()

    assert matched(step, STATE, S((8, 16), jnp.float32)) == {
        "0/params/b": "state/params/b",
        "0/params/w": "state/params/w",
        "0/step": "state/step",
    }


def test_a_state_alone() -> None:
    assert matched(lambda u: u * 2, MATRIX) == {"result": "u"}


def test_gradients_continue_their_parameters() -> None:
    def loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.sum(x @ params["w"] + params["b"])

    found = matched(jax.grad(loss), STATE.params, S((4, 16), jnp.float32))
    assert found == {"b": "params/b", "w": "params/w"}


def test_two_results_of_one_shape_continue_two_arguments() -> None:
    assert matched(lambda a, b: (b, a), MATRIX, MATRIX) == {"0": "a", "1": "b"}


def test_no_argument_is_continued_twice() -> None:
    assert matched(lambda a: (a, a), MATRIX) == {"0": "a"}


@pytest.mark.parametrize("other", [S((8, 16), jnp.float32), S((16, 8), jnp.bfloat16), S((8,), jnp.float32)])
def test_other_shapes_and_dtypes_are_not_continued(other: Any) -> None:
    def fn(a: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), other)

    assert matched(fn, MATRIX) == {}


def test_scalars_and_parts_of_arguments() -> None:
    def step(carry: tuple[State, jax.Array]) -> tuple[jax.Array, State]:
        return carry[0].params["w"].sum(), carry[0]

    assert set(matched(step, (STATE, S((), jnp.uint32)))) == {"1/params/b", "1/params/w", "1/step"}


# On devices


def small_step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((x @ params["w"] + params["b"]) ** 2)

    value, gradient = jax.value_and_grad(loss)(state.params)
    params = jax.tree.map(lambda p, g: p - np.float32(0.1) * g, state.params, gradient)
    return State(params, state.step + 1), value


SMALL_ARGS = (State({"w": floats(32, 64), "b": floats(64)}, np.int32(0)), floats(16, 32))
SPLIT = (State({"w": P("x", "y"), "b": P("y")}, None), P("x"))


def specs_like(specs: Any) -> list[PartitionSpec]:
    return jax.tree.leaves(specs, is_leaf=lambda node: isinstance(node, PartitionSpec))


def test_out_specs_follow_in_specs() -> None:
    planned = plan(small_step, SMALL_ARGS, MESH, in_specs=SPLIT)
    assert specs_like(planned.out_specs[0]) == specs_like(planned.in_specs[0])
    assert planned.in_specs[0].params == SPLIT[0].params


def test_out_specs_may_say_otherwise() -> None:
    other = (State({"w": P("y"), "b": None}, None), None)
    planned = plan(small_step, SMALL_ARGS, MESH, in_specs=SPLIT, out_specs=other)
    assert planned.out_specs[0].params == {"w": P("y"), "b": P("y")}


def transfers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is passed to `jax.device_put` from now on."""
    seen: list[Any] = []
    original = jax.device_put

    def recording(array: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(array)
        return original(array, *args, **kwargs)

    monkeypatch.setattr(jax, "device_put", recording)
    return seen


def run_steps(planned: Plan, args: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of a train loop, of which the second and the third move nothing."""
    state, batch = planned.place(*args)
    step = planned.jit()
    losses = [0.0, 0.0, 0.0]
    moved = transfers(monkeypatch)
    for turn in range(3):
        with jax.transfer_guard("disallow"):
            state, loss = step(state, batch)
        laid_out = jax.tree.map(lambda array: array.sharding, state)
        assert laid_out == planned.in_shardings[0]
        losses[turn] = float(loss)
    assert moved == []
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("in_specs", [None, SPLIT], ids=["planned", "given"])
@pytest.mark.parametrize("donate_argnums", [(), (0,)], ids=["kept", "donated"])
def test_the_second_step_moves_nothing(
    in_specs: Any, donate_argnums: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(small_step, SMALL_ARGS, MESH, in_specs=in_specs, donate_argnums=donate_argnums)
    run_steps(planned, SMALL_ARGS, monkeypatch)


@pytest.mark.parametrize("name", ["mlp", "gpt-scan"])
def test_the_second_step_of_a_workload_moves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = workloads.workload(name)
    planned = plan(workload.fn, workload.example_args, MESH, donate_argnums=workload.donate_argnums)
    run_steps(planned, workload.make_args(jax.random.key(0)), monkeypatch)


def test_explicit_meshes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(small_step, SMALL_ARGS, jax.make_mesh((2, 4), ("x", "y")), in_specs=SPLIT, donate_argnums=0)
    state, batch = planned.place(*SMALL_ARGS)
    step = planned.jit()
    for _ in range(3):
        before = [shard.data.unsafe_buffer_pointer() for shard in batch.addressable_shards]
        with jax.transfer_guard("disallow"):
            state, _ = step(state, batch)
        assert jax.tree.map(lambda array: array.sharding, state) == planned.in_shardings[0]
        assert before == [shard.data.unsafe_buffer_pointer() for shard in batch.addressable_shards]
