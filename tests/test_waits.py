"""Devices that share cores wait for each other: by formula, by measurement, and in a plan's prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from costmodel import CostModel, preset
from costmodel.waits import FREE_SECONDS, fit_skew, lateness, waiting_seconds
from planner import Prediction, plan
from planner.buffers import Timeline
from planner.fusion import LIBRARY
from planner.predict import waited_seconds
from planner.program import Collective, Instruction, Program

P = PartitionSpec
MESH = AbstractMesh((8,), ("x",))
SKEW = 1e-4


def waiting(computed: float, group_size: int = 8) -> float:
    return waiting_seconds(SKEW, group_size, 8, computed)


def test_waiting_grows_with_the_root_of_what_was_computed() -> None:
    assert waiting(0.5 * FREE_SECONDS) == 0
    assert waiting(FREE_SECONDS + 4e-3) == pytest.approx(2 * waiting(FREE_SECONDS + 1e-3))
    assert waiting_seconds(4 * SKEW, 8, 8, 1e-3) == pytest.approx(2 * waiting(1e-3))
    assert waiting_seconds(0.0, 8, 8, 1.0) == 0


def test_the_last_of_a_group_is_as_late_as_the_largest_of_as_many_normal_numbers() -> None:
    for size in (1, 2, 3, 4, 8, 16, 64):
        drawn = np.random.default_rng(0).standard_normal((20_000, size))
        assert lateness(size) == pytest.approx(drawn.max(axis=1).mean(), rel=0.05, abs=0.01)


def test_the_skew_is_found_in_its_own_times_whatever_a_few_of_them_say() -> None:
    computed = FREE_SECONDS + np.array([1e-3, 2e-3, 8e-3, 20e-3, 40e-3])
    waited = {size: np.array([waiting(each, size) for each in computed]) for size in (2, 4, 8)}
    assert fit_skew({size: (computed, these) for size, these in waited.items()}, 8) == pytest.approx(SKEW)
    disturbed = {size: (computed, np.array([*these[:3], 1.0, -1.0])) for size, these in waited.items()}
    assert fit_skew(disturbed, 8) == pytest.approx(SKEW)
    assert fit_skew({size: (computed, -these) for size, these in waited.items()}, 8) == 0
    assert fit_skew({}, 8) == 0


def test_a_size_that_was_measured_badly_counts_as_one_of_all() -> None:
    computed = FREE_SECONDS + np.array([1e-3, 2e-3, 8e-3])
    waited = {size: np.array([waiting(each, size) for each in computed]) for size in (2, 4, 8)}
    timed = {size: (computed, these if size > 2 else 0.0 * these) for size, these in waited.items()}
    assert fit_skew(timed, 8) == pytest.approx(SKEW, rel=0.25)


def predicted(fn: Callable[..., jax.Array], skew_seconds: float, *args: jax.Array, **specs: Any) -> Prediction:
    model = CostModel(replace(preset("cpu:8"), skew_seconds=skew_seconds))
    return plan(fn, args, MESH, cost_model=model, **specs).prediction


def waited(fn: Callable[..., jax.Array], *args: jax.Array, **specs: Any) -> tuple[float, Prediction]:
    """Seconds of waiting, and all that is predicted."""
    without, with_waits = predicted(fn, 0.0, *args, **specs), predicted(fn, SKEW, *args, **specs)
    assert with_waits.compute_seconds == without.compute_seconds
    return with_waits.overhead_seconds - without.overhead_seconds, with_waits


def test_at_the_end_of_a_call_all_wait_for_the_last() -> None:
    x = jnp.zeros((1024, 256))
    seconds, prediction = waited(jnp.tanh, x, in_specs=(P("x"),), out_specs=P("x"))
    assert not prediction.collectives
    assert seconds == pytest.approx(waiting(prediction.compute_seconds))


def test_before_each_collective_of_a_loop_all_wait_for_what_was_computed_since_the_last() -> None:
    rounds, side = 10, 512
    whole, rows = NamedSharding(MESH, P()), NamedSharding(MESH, P("x"))

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        """Each round makes a part of the rows on each device, and all are wanted everywhere."""

        def body(_: int, y: jax.Array) -> jax.Array:
            made = jnp.tanh(lax.with_sharding_constraint(y, rows) @ w)
            return lax.with_sharding_constraint(lax.with_sharding_constraint(made, rows), whole)

        return lax.fori_loop(0, rounds, body, x)

    x = jnp.zeros((side, side))
    seconds, prediction = waited(fn, x, x, in_specs=(P(), P()), out_specs=P())
    assert [one.count for one in prediction.collectives if one.count >= rounds] == [rounds]
    each = prediction.compute_seconds / rounds
    assert seconds == pytest.approx(rounds * waiting(each), rel=0.2)
    assert waiting(each) > 0


def waited_in(steps: Sequence[tuple[float, str]], kind: str = "all-reduce") -> float:
    """What is waited in a call on a mesh of 2 x 4, by the seconds computed before each collective and its axes."""
    cost = CostModel(replace(preset("cpu:8"), skew_seconds=SKEW)).on(("x", "y"), (2, 4))
    instructions = []
    for seconds, axes in steps:
        instructions.append(Instruction("tanh", LIBRARY, (), (), "", 1.0, seconds=seconds))
        collective = Collective(kind, 4.0, tuple(axes), 1.0, 0.0, "")
        instructions.append(Instruction(kind, LIBRARY, (), (), "", 1.0, collectives=(collective,)))
    program = Program((), tuple(instructions), ())
    return waited_seconds(cost, program, Timeline(orders={program: program.instructions}))


def waited_between(*axes: str, kind: str = "all-reduce") -> list[float]:
    """What is waited before each of the collectives, a millisecond computed before each."""
    all_meet = (0.0, "xy")  # so that nobody waits at the end of the call
    steps = [(1e-3, over) for over in axes]
    return list(np.diff([waited_in([*steps[:count], all_meet], kind) for count in range(len(axes) + 1)]))


def test_groups_that_have_met_others_wait_with_those() -> None:
    pairs, fours, all_eight = (waiting(1e-3, size) for size in (2, 4, 8))
    assert waited_between("x", "x", "x") == pytest.approx([pairs] * 3)
    assert waited_between("x", "y", "x", "y") == pytest.approx([pairs, *[all_eight] * 3])
    assert waited_between("xy", "y", "y", "xy", "x") == pytest.approx([all_eight, fours, fours, all_eight, pairs])


def test_all_devices_meet_for_a_permutation() -> None:
    assert waited_between("x", "y", "xy", kind="collective-permute") == pytest.approx([waiting(1e-3)] * 3)


def test_at_the_end_of_a_call_groups_wait_that_have_not_met() -> None:
    pairs, all_eight = (waiting(1e-3, size) for size in (2, 8))
    assert waited_in([(1e-3, "xy")]) == pytest.approx(all_eight)
    assert waited_in([(1e-3, "x")]) == pytest.approx(pairs + all_eight)


def test_only_devices_that_share_cores_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    measured = CostModel(replace(preset("cpu:8"), skew_seconds=SKEW), measured_on={"cores": 2})
    assert CostModel.from_json(measured.to_json()).topology.skew_seconds == SKEW
    monkeypatch.setattr(CostModel, "from_json", lambda *_: measured)
    assert preset("cpu:8").skew_seconds == SKEW
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert preset("cpu:8").skew_seconds == 0
