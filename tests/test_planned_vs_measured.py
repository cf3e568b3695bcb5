"""Does the clock agree with the plan? And would it disagree with a model that is wrong?

The machine may be noisy and its speed drift: probes and programs take turns, medians are compared, only programs that
the clock tells apart are ranked, and ratios count relative to their own median. What remains is judged again, with more
calls and devices calibrated anew, before a test fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forced import device_mesh
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from costmodel import CostModel
from executor.calibrate import Calibration
from executor.race import Program, compile_programs, contenders, race
from experiments.random_plans import random_plans
from experiments.workloads import workload
from planner import Plan, plan

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]  # a calibration, and several attempts, on a slow machine

APART = 1.9
"""Programs whose medians differ by this factor have a rank that noise does not change."""
WIDEST_RATIO = 2.0
"""By which a program may be off, beside what all programs are off together."""
WIDEST_SHIFT = 3.0
"""By which all programs together may be off: what a machine's speed drifts within minutes."""
ATTEMPTS = 4
TURNS = 64
"""Of a loop, so that nothing counts that happens once in a call: memory that the system hands out anew, or does not."""

Seconds = Mapping[str, float]


def disagreements(predicted: Seconds, measured: Seconds) -> list[str]:
    """What a model that is right does not get wrong, in words; empty if there is nothing."""
    ratios = {name: predicted[name] / measured[name] for name in measured}
    shift = float(np.median(list(ratios.values())))
    found = [] if 1 / WIDEST_SHIFT <= shift <= WIDEST_SHIFT else [f"all programs are off by {shift:.2g}"]
    found += [
        f"{name} is predicted {ratio / shift:.2g} times too long"
        for name, ratio in ratios.items()
        if not 1 / WIDEST_RATIO <= ratio / shift <= WIDEST_RATIO
    ]
    found += [
        f"{slow} is slower than {fast} by the clock, not by the model"
        for slow in measured
        for fast in measured
        if measured[slow] > APART * measured[fast] and predicted[slow] <= predicted[fast]
    ]
    return found


@dataclass(frozen=True)
class Attempt:
    """Programs of one function timed, and the devices calibrated meanwhile."""

    programs: list[Program]
    model: CostModel
    measured: Seconds

    def verdict(self, wrong: Callable[[CostModel], CostModel] = lambda model: model) -> list[str]:
        """What the model has wrong, or what one made from it has."""
        model = wrong(self.model)
        predicted = {
            program.names[0]: program.plan.repriced(model).prediction.step_seconds for program in self.programs
        }
        return disagreements(predicted, self.measured)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    made = Calibration(jax.devices(), (2**12, 2**17, 2**22), ("float32",))
    made.compile()
    made.time_round()  # with that of the first attempt there are two: one alone is what another process made of it
    return made


def raced(calibration: Calibration, plans: Mapping[str, Plan], args: Sequence[jax.Array]) -> list[Attempt]:
    """Attempts until the model has nothing wrong."""
    programs = compile_programs(plans)
    attempts: list[Attempt] = []
    while len(attempts) < ATTEMPTS and not (attempts and attempts[-1].verdict() == []):
        calibration.time_round()
        samples = race(programs, args, least_rounds=7 * (1 + len(attempts)), least_seconds=0.1)
        medians = map(float, map(np.median, samples))
        measured = {program.names[0]: taken for program, taken in zip(programs, medians, strict=True)}
        attempts.append(Attempt(programs, calibration.model(), measured))
    return attempts


@pytest.fixture(scope="module")
def gathering(calibration: Calibration) -> list[Attempt]:
    """A loop whose array is gathered on every device in each turn, and one where it stays split."""
    x = jnp.full((1024, 1024), 0.01)
    mesh, rows = device_mesh(x=2, y=4), PartitionSpec(("x", "y"))

    def turns(specs: PartitionSpec) -> Callable[[jax.Array], jax.Array]:
        def turn(_: jax.Array, x: jax.Array) -> jax.Array:
            x = lax.with_sharding_constraint(x * 0.5, NamedSharding(mesh, specs))
            return lax.with_sharding_constraint(x + 1, NamedSharding(mesh, rows))

        return lambda x: lax.fori_loop(0, TURNS, turn, x)

    plans = {
        name: plan(turns(specs), (x,), mesh, in_specs=rows, out_specs=rows)
        for name, specs in (("gathered", PartitionSpec()), ("kept", rows))
    }
    gathers = plans["gathered"].prediction.collectives  # over both axes at once or, by some prices, one by one
    assert {(gather.kind, gather.count) for gather in gathers} == {("all-gather", TURNS)}
    return raced(calibration, plans, (x,))


@pytest.mark.parametrize("name", [pytest.param("mlp", marks=pytest.mark.long), "sigmoid-layer-grad"])
def test_the_clock_agrees_with_the_model(calibration: Calibration, name: str) -> None:
    work, mesh = workload(name), jax.make_mesh((2, 4), ("x", "y"))
    planned = plan(work.fn, work.example_args, mesh, donate_argnums=work.donate_argnums)
    plans = {**contenders(planned), **random_plans(planned, 4)}
    assert raced(calibration, plans, work.make_args(jax.random.key(0)))[-1].verdict() == []


def test_the_clock_agrees_where_a_collective_is_most_of_the_work(gathering: list[Attempt]) -> None:
    assert gathering[-1].verdict() == []


def planted(model: CostModel, kind: str, factor: float) -> CostModel:
    """The model with one kind of collective at so many times its price."""
    measured = tuple(
        replace(curve, timed_seconds=tuple(factor * seconds for seconds in curve.timed_seconds))
        if curve.kind == kind
        else curve
        for curve in model.topology.measured
    )
    return replace(model, topology=replace(model.topology, measured=measured))


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_wrong_price_of_a_collective_does_not_pass(gathering: list[Attempt], factor: float) -> None:
    assert all(attempt.verdict(lambda model: planted(model, "all-gather", factor)) for attempt in gathering)


def test_disagreements_are_told() -> None:
    measured = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 4.2}
    assert disagreements(measured, measured) == []
    assert disagreements({name: 2 * each for name, each in measured.items()}, measured) == []
    assert disagreements({name: 9 * each for name, each in measured.items()}, measured) == ["all programs are off by 9"]
    (ratio, *ranks) = disagreements(measured | {"c": 0.9}, measured)
    assert ratio == "c is predicted 0.23 times too long"
    assert ranks == [f"c is slower than {fast} by the clock, not by the model" for fast in "ab"]
