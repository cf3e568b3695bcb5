"""Devices that share cores wait for each other: by formula, by measurement, and in a plan's prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from costmodel import CostModel, preset
from costmodel.waits import FREE_SECONDS, Wait, waiting_seconds
from planner import Prediction, plan

P = PartitionSpec
MESH = AbstractMesh((8,), ("x",))
PAIR, ALL = Wait(2, 0.4e-4), Wait(8, 1.6e-4)


def test_waiting_grows_with_the_root_of_what_was_computed() -> None:
    assert ALL.seconds(0.5 * FREE_SECONDS) == 0
    assert ALL.seconds(FREE_SECONDS + 1e-3) == pytest.approx(4e-4)
    assert ALL.seconds(FREE_SECONDS + 4e-3) == pytest.approx(8e-4)


def test_a_group_between_two_that_were_measured_waits_between_them() -> None:
    waited = [waiting_seconds((ALL, PAIR), size, FREE_SECONDS + 1e-3) for size in (1, 2, 4, 8, 16)]
    assert waited == pytest.approx([0, 2e-4, 3e-4, 4e-4, 4e-4])
    assert waiting_seconds((), 8, 1.0) == 0


def test_a_wait_is_found_in_its_own_times_whatever_a_few_of_them_say() -> None:
    computed = FREE_SECONDS + np.array([1e-3, 2e-3, 8e-3, 20e-3, 40e-3])
    waited = np.array([ALL.seconds(each) for each in computed])
    assert Wait.of(8, computed, waited).skew_seconds == pytest.approx(ALL.skew_seconds)
    assert Wait.of(8, computed, np.array([*waited[:3], 1.0, -1.0])).skew_seconds == pytest.approx(ALL.skew_seconds)
    assert Wait.of(8, computed, -waited).skew_seconds == 0


def predicted(fn: Callable[..., jax.Array], waits: tuple[Wait, ...], *args: jax.Array, **specs: Any) -> Prediction:
    model = CostModel(replace(preset("cpu:8"), waits=waits))
    return plan(fn, args, MESH, cost_model=model, **specs).prediction


def waited(fn: Callable[..., jax.Array], *args: jax.Array, **specs: Any) -> tuple[float, Prediction]:
    """Seconds of waiting, and all that is predicted."""
    without, with_waits = predicted(fn, (), *args, **specs), predicted(fn, (ALL,), *args, **specs)
    assert with_waits.compute_seconds == without.compute_seconds
    return with_waits.overhead_seconds - without.overhead_seconds, with_waits


def test_at_the_end_of_a_call_all_wait_for_the_last() -> None:
    x = jnp.zeros((1024, 256))
    seconds, prediction = waited(jnp.tanh, x, in_specs=(P("x"),), out_specs=P("x"))
    assert not prediction.collectives
    assert seconds == pytest.approx(ALL.seconds(prediction.compute_seconds))


def test_before_each_collective_of_a_loop_all_wait_for_what_was_computed_since_the_last() -> None:
    rounds, side = 10, 512
    whole = NamedSharding(MESH, P())

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        """Each round makes a part of the columns on each device, and all are wanted everywhere."""
        return lax.fori_loop(0, rounds, lambda _, y: lax.with_sharding_constraint(jnp.tanh(y @ w), whole), x)

    x = jnp.zeros((side, side))
    seconds, prediction = waited(fn, x, x, in_specs=(P(), P(None, "x")), out_specs=P())
    assert [one.count for one in prediction.collectives if one.count >= rounds] == [rounds]
    each = prediction.compute_seconds / rounds
    assert seconds == pytest.approx(rounds * ALL.seconds(each), rel=0.2)
    assert ALL.seconds(each) > 0


def test_only_devices_that_share_cores_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    measured = CostModel(replace(preset("cpu:8"), waits=(PAIR, ALL)), measured_on={"cores": 2})
    assert CostModel.from_json(measured.to_json()).topology.waits == (PAIR, ALL)
    monkeypatch.setattr(CostModel, "from_json", lambda *_: measured)
    assert preset("cpu:8").waits == (PAIR, ALL)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert not preset("cpu:8").waits
