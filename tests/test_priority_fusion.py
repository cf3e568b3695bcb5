"""What a GPU's compiler fuses, on one device of a preset; with what XLA made of the like on an H200 (JAX 0.11.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from costmodel import preset
from planner import plan
from planner.buffers import timeline
from planner.write import write

LARGE = (4096, 4096)


def kernels(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> list[list[str]]:
    """The names of the ops in each kernel, in order."""
    planned = plan(fn, [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes], "h200-dgx:1x1")
    program = write(planned.choice.assignment).program
    ran = timeline(planned.choice.assignment, program, planned.choice.request.donors).kernels[program]
    return [[one.name for one in kernel] for kernel in ran if kernel[-1].name != "return"]


def layer_norm(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("fn", [jax.nn.softmax, jax.nn.log_softmax, layer_norm])
def test_rows_are_normalised_in_one_kernel(fn: Callable[..., Any]) -> None:
    assert len(kernels(fn, LARGE)) == 1


def test_columns_are_reduced_before_they_are_normalised_by() -> None:
    found = kernels(lambda x: x / x.sum(0), LARGE)
    assert ["reduce_sum" in kernel for kernel in found] == [True, False]


def test_a_sum_of_rolls_reads_once() -> None:
    def step(x: jax.Array) -> jax.Array:
        return x + 0.1 * sum(jnp.roll(x, shift, axis) for axis in (0, 1) for shift in (1, -1))

    assert len(kernels(step, LARGE)) == 1


@pytest.mark.parametrize("readers", [1, 2, 4])
def test_what_two_arrays_make_is_written_once_for_several(readers: int) -> None:
    """Each reader reduces columns, and so is a kernel of its own."""

    def fn(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        both = x + y
        return [(both * (1.0 + place)).sum(0) for place in range(readers)]

    assert len(kernels(fn, LARGE, LARGE)) == readers + (readers > 1)


@pytest.mark.parametrize("readers", [1, 2, 4])
def test_what_one_array_makes_is_computed_by_each(readers: int) -> None:
    def fn(x: jax.Array) -> list[jax.Array]:
        made = jnp.tanh(x)
        return [(made * (1.0 + place)).sum(0) for place in range(readers)]

    assert len(kernels(fn, LARGE)) == readers


def test_what_a_product_reads_is_written() -> None:
    """And then read by everybody."""

    def fn(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jnp.tanh(x)
        return y @ w, y + 1

    assert sorted(kernels(fn, LARGE, LARGE)) == [["add"], ["dot_general"], ["tanh"]]


def test_an_update_in_place_reads_its_neighbours_before() -> None:
    """As the heat equation's step: neighbours in one kernel, written over what they were read from in the next."""

    def step(_: int, u: jax.Array) -> jax.Array:
        return u.at[1:-1].add(0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]))

    found = kernels(lambda u: step(0, u), (2**22,))
    assert len(found) == 2
    assert found[-1][-1].startswith("scatter")


def squared_four_times(u: jax.Array) -> jax.Array:
    x = u.reshape(64, 64)
    for _ in range(4):
        x = x @ x
    return x.reshape(-1)


@pytest.mark.parametrize(
    ("step", "started"),
    [
        (lambda u: 0.5 * u + 0.5, 2),
        (lambda u: u.at[1:-1].add(0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])), 3),
        (lambda u: 0.5 * (jnp.roll(u, 1) + jnp.roll(u, -1)), 3),
        (squared_four_times, 2),
    ],
    ids=["one and what counts", "neighbours before", "and a copy", "a graph"],
)
def test_few_kernels_of_a_round_are_started_one_by_one(step: Callable[[jax.Array], jax.Array], started: int) -> None:
    """As in traces of an H100: the heat equation's rounds took 5 microseconds for each of three kernels."""
    rounds, machine = 100, preset("h200-dgx:1x1")

    def fn(u: jax.Array) -> jax.Array:
        return lax.fori_loop(0, rounds, lambda _, u: step(u), u)

    longer = replace(machine, device=replace(machine.device, round_seconds=1e-3))
    predicted = plan(fn, [jax.ShapeDtypeStruct((4096,), "float32")], longer).prediction
    assert predicted.step_seconds == pytest.approx(rounds * started / 2 * 1e-3, rel=0.01)


@pytest.mark.parametrize(("side", "waits"), [(64, True), (8192, False)], ids=["short rounds", "long rounds"])
def test_a_round_takes_as_long_as_its_host_at_least(side: int, waits: bool) -> None:
    rounds, machine = 100, preset("h200-dgx:1x1")

    def fn(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, rounds, lambda _, x: 0.5 * x + 0.5, x)

    without = replace(machine, device=replace(machine.device, round_seconds=0.0))
    x = jax.ShapeDtypeStruct((side, side), "float32")
    with_host, alone = (plan(fn, [x], one).prediction for one in (machine, without))
    more = with_host.step_seconds - alone.step_seconds
    expected = rounds * machine.device.round_seconds - alone.compute_seconds if waits else 0.0
    assert more == pytest.approx(expected, abs=1e-9)
    assert (more > 0) == waits
