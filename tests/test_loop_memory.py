"""Bytes that loops take: what goes round is updated in place or copied, held against the compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec
from peaks import ONE, compiled_peak_of, peak_of

from costmodel.model import measured_model
from executor.hlo import parse
from planner import plan
from planner.buffers import timeline
from planner.write import write

MIB = 1 << 20
ARRAY = (256, 1024)
"""One mebibyte."""


@pytest.mark.parametrize(
    "step",
    [
        lambda u: jnp.sin(u) * 2,
        lambda u: u.at[3].set(u[4] * 2),
        lambda u: u.at[1:-1].set(u[2:] + u[:-2]),
        lambda u: u.at[1:-1, 1:-1].set((u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]) / 4),
        lambda u: u + jnp.roll(u, 1, axis=0),
    ],
    ids=["elementwise", "a row", "neighbours", "a plane's neighbours", "rolled"],
)
def test_what_goes_round_a_loop_is_updated_in_place(step: Callable[[jax.Array], jax.Array]) -> None:
    """What is read of it elsewhere is put aside first."""

    def fn(u: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 10, lambda _, u: step(u), u)

    assert peak_of(fn, ARRAY) == pytest.approx(compiled_peak_of(fn, ARRAY), rel=0.01)


@pytest.mark.parametrize(
    ("step", "copies"),
    [
        (lambda u: jnp.sin(u) * 2, 0),
        (lambda u: u.at[1:-1].set(u[2:] + u[:-2]), 0),
        (lambda u: u + jnp.roll(u, 1, axis=0), 1),
        (lambda u: jnp.flip(u, 0) / 2, 1),
    ],
    ids=["elementwise", "neighbours", "rolled", "turned round"],
)
def test_a_loop_copies_what_it_could_not_write_over_what_it_reads(
    step: Callable[[jax.Array], jax.Array], copies: int
) -> None:
    """In each round, as the compiled program does, and pays for it."""
    rounds = 10

    def fn(u: jax.Array) -> jax.Array:
        return lax.fori_loop(0, rounds, lambda _, u: step(u), u)

    args = (jax.ShapeDtypeStruct((512, 512), jnp.float32),)
    chosen = plan(fn, args, ONE).choice
    program = write(chosen.assignment).program
    assert sum(timeline(chosen.assignment, program, chosen.request.donors).copied.values()) == rounds * copies
    module = parse(jax.jit(fn).lower(*args).compile().as_text())
    inside = [
        times
        for name, times in module.executions.items()
        for instruction in module.computations[name].instructions.values()
        if instruction.opcode == "copy" and "512,512" in instruction.type and times > 1
    ]
    assert sum(inside) == rounds * copies


@pytest.mark.parametrize(
    ("donated", "before", "copies"),
    [((), lambda u: u, 1), (0, lambda u: u, 0), ((), jnp.cumsum, 0)],
    ids=["kept", "donated", "made there"],
)
def test_what_a_loop_may_not_write_over_is_copied_before_its_first_round(
    donated: Any, before: Callable[[jax.Array], jax.Array], copies: int
) -> None:
    """Once, as the compiled program does, and pays for it."""

    def fn(u: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 10, lambda _, u: jnp.sin(u) * 2, before(u))

    args = (jax.ShapeDtypeStruct((2**18,), jnp.float32),)
    planned = plan(fn, args, ONE, donate_argnums=donated)
    program = write(planned.choice.assignment).program
    assert sum(timeline(planned.choice.assignment, program, planned.choice.request.donors).begun.values()) == copies
    module = parse(jax.jit(fn, donate_argnums=donated).lower(*args).compile().as_text())
    (entry,) = [module.computations[name] for name, times in module.executions.items() if "main" in name and times == 1]
    assert sum(one.opcode == "copy" and "262144" in one.type for one in entry.instructions.values()) == copies


def test_beginning_a_loop_takes_longer_where_it_begins_with_a_copy() -> None:
    def fn(u: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 10, lambda _, u: jnp.sin(u) * 2, u)

    args = (jax.ShapeDtypeStruct((2**18,), jnp.float32),)
    cost = measured_model("cpu-2core-intel.json")
    mesh, whole = AbstractMesh((8,), ("x",)), PartitionSpec()
    plans = [
        plan(fn, args, mesh, in_specs=whole, out_specs=whole, donate_argnums=argnums, cost_model=cost)
        for argnums in ((), 0)
    ]
    kept, donated = (one.alternatives["replicated"].prediction.overhead_seconds for one in plans)
    device = cost.topology.device
    assert kept - donated > float(device.memory_seconds(2 * MIB, MIB, 1.0, MIB))


def _leapfrog(state: Any, _: None) -> Any:
    u, v = state
    v = v + 0.1 * (jnp.roll(u, 1, axis=0) - 6 * u)
    return (u + 0.1 * v, v), None


def _watched(state: Any, _: None) -> Any:
    (u, v), _ = _leapfrog(state, None)
    return (u, v), jnp.sum(state[0] ** 2)


@pytest.mark.parametrize("step", [_leapfrog, _watched], ids=["leapfrog", "watched"])
@pytest.mark.parametrize("donated", [(0, 1), ()], ids=["donated", "kept"])
def test_a_loop_goes_on_in_donated_memory_and_copies_what_is_read_beside(step: Any, donated: tuple[int, ...]) -> None:
    """Nothing but the order of kernels sees to it that the sum has read what the step writes over."""

    def fn(u: jax.Array, v: jax.Array) -> Any:
        return lax.scan(step, (u, v), None, length=10)

    predicted = peak_of(fn, ARRAY, ARRAY, donate_argnums=donated)
    assert predicted == pytest.approx(compiled_peak_of(fn, ARRAY, ARRAY, donate_argnums=donated), rel=0.01)


@pytest.mark.parametrize(
    "step",
    [
        lambda u, w: jnp.sin(u) * jnp.exp(w),
        lambda u, w: jnp.sin(u) / jnp.where(w == 0, 1, w),
        lambda u, w: jnp.tanh(u @ (w @ w)),
        lambda u, w: u + jnp.exp(w)[0],
    ],
    ids=["elementwise", "where", "a product", "a row of it"],
)
def test_what_is_the_same_in_all_rounds_is_computed_before(step: Callable[[jax.Array, jax.Array], jax.Array]) -> None:
    def fn(u: jax.Array, w: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 10, lambda _, u: step(u, w), u)

    shapes = (512, 512), (512, 512)
    assert peak_of(fn, *shapes) == pytest.approx(compiled_peak_of(fn, *shapes), rel=0.01)


def test_a_loop_goes_on_in_the_memory_of_what_was_made_for_it() -> None:
    def fn(x: jax.Array) -> jax.Array:
        y = lax.fori_loop(0, 4, lambda _, u: jnp.sort(u, axis=1), jnp.sort(x, axis=0))
        return jnp.sort(y, axis=0)

    assert peak_of(fn, ARRAY) == pytest.approx(3 * MIB, rel=0.01)
    assert peak_of(fn, ARRAY) == pytest.approx(compiled_peak_of(fn, ARRAY), rel=0.01)


def test_what_a_scan_stacks_has_memory_before_it_begins() -> None:
    """Beside two arrays of four, the argument and a copy of it: those of three that the scan will fill."""

    def fn(x: jax.Array) -> jax.Array:
        wide = jnp.sort(x @ jnp.concatenate([x] * 4, axis=1), axis=0)
        _, stacked = lax.scan(lambda u, _: (jnp.sort(u * wide[0, 0], axis=1), u), x, None, length=3)
        return jnp.sum(stacked, axis=0)

    assert peak_of(fn, (512, 512)) == pytest.approx(compiled_peak_of(fn, (512, 512)), rel=0.01)
