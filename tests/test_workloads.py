"""Every workload traces at either size, runs, and learns if it is a train step."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import workloads
from experiments.workloads import heat, moe
from experiments.workloads.workload import Workload

TRAIN_STEPS = tuple(name for name in workloads.names() if workloads.workload(name).donate_argnums)
FUNCTIONS = tuple(name for name in workloads.names() if name not in TRAIN_STEPS)


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda array: (array.shape, array.dtype), tree)


def args_of(workload: Workload) -> tuple[Any, ...]:
    return workload.make_args(jax.random.key(0))


@cache
def losses_of_three_steps(name: str) -> tuple[float, ...]:
    workload = workloads.workload(name)
    state, batch = args_of(workload)
    step = jax.jit(workload.fn, donate_argnums=workload.donate_argnums)
    seen = []
    for _ in range(3):
        state, loss = step(state, batch)
        seen.append(float(loss))
    return tuple(seen)


def test_the_families_are_those_promised() -> None:
    assert set(TRAIN_STEPS) == {"gpt", "gpt-scan", "llama", "moe", "cnn", "lstm", "mlp"}
    examples = {"sigmoid-layer", "sum-axis", "elementwise-40x40", "heat-1d", "heat-2d"}
    assert set(FUNCTIONS) == examples | {f"{name}-grad" for name in examples}


@pytest.mark.parametrize("name", workloads.names())
@pytest.mark.parametrize("size", ["test", "full"])
def test_traces_from_shapes(name: str, size: workloads.Size) -> None:
    workload = workloads.workload(name, size)
    results = jax.eval_shape(workload.fn, *workload.example_args)
    if workload.donate_argnums:
        assert shapes(results[0]) == shapes(workload.example_args[0]), "the state comes back as it went in"


@pytest.mark.parametrize("name", workloads.names())
def test_example_args_are_the_shapes_of_the_arguments(name: str) -> None:
    workload = workloads.workload(name)
    assert shapes(workload.example_args) == shapes(args_of(workload))


@pytest.mark.parametrize("name", TRAIN_STEPS)
def test_a_train_step_learns(name: str) -> None:
    seen = losses_of_three_steps(name)
    assert np.isfinite(seen).all()
    assert seen[0] > seen[1] > seen[2]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_runs(name: str) -> None:
    workload = workloads.workload(name)
    results = jax.tree.leaves(jax.jit(workload.fn)(*args_of(workload)))
    assert all(np.isfinite(result).all() for result in results)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if not name.endswith("-grad")])
def test_a_gradient_has_the_shapes_of_the_arguments(name: str) -> None:
    gradient = workloads.workload(f"{name}-grad")
    assert shapes(jax.eval_shape(gradient.fn, *gradient.example_args)) == shapes(gradient.example_args)


def test_scanned_and_written_out_gpt_are_one_model() -> None:
    written_out, scanned = losses_of_three_steps("gpt"), losses_of_three_steps("gpt-scan")
    np.testing.assert_allclose(written_out, scanned, rtol=1e-5)


def test_cnn_keeps_running_statistics() -> None:
    workload = workloads.workload("cnn")
    state, batch = args_of(workload)
    after, _ = jax.jit(workload.fn)(state, batch)
    before = jax.tree.leaves(state["statistics"])
    assert not any(map(np.array_equal, before, jax.tree.leaves(after["statistics"])))


def test_routing_fills_each_place_once_and_weighs_each_token_once() -> None:
    gates = jax.nn.softmax(jax.random.normal(jax.random.key(0), (4, 32, 8)))
    weights, _ = moe.route(gates, capacity=32)
    assert (np.count_nonzero(weights, axis=1) <= 1).all(), "a place at an expert is for one token"
    assert (np.count_nonzero(weights, axis=(2, 3)) == 2).all(), "none was turned away"
    np.testing.assert_allclose(weights.sum(axis=(2, 3)), 1.0, rtol=1e-6)


def test_routing_turns_away_what_exceeds_the_capacity() -> None:
    everybody_wants_expert_0 = jnp.tile(jnp.array([0.6, 0.3, 0.1]), (1, 8, 1))
    weights, _ = moe.route(everybody_wants_expert_0, capacity=2)
    np.testing.assert_array_equal(np.count_nonzero(weights, axis=(1, 3)), [[2, 2, 0]])


def test_rod_keeps_its_ends_and_plate_its_heat() -> None:
    rod, plate = heat.heat_1d("test"), heat.heat_2d("test")
    (u,), (v,) = args_of(rod), args_of(plate)
    np.testing.assert_array_equal(rod.fn(u)[jnp.array([0, -1])], u[jnp.array([0, -1])])
    np.testing.assert_allclose(jnp.mean(plate.fn(v)), jnp.mean(v), rtol=1e-5)


def test_unknown_name_suggests_its_neighbour() -> None:
    with pytest.raises(ValueError, match=r"no workload is named 'gtp': did you mean 'gpt'"):
        workloads.workload("gtp")
    with pytest.raises(ValueError, match=r"none is near it\. Known: gpt, gpt-scan, llama, moe"):
        workloads.workload("quicksort")
