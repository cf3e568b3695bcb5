"""Devices that share cores wait for each other: by formula, by measurement, and in a plan's prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from costmodel import CostModel, MeshCost, preset
from costmodel.waits import Waits, lateness, measured_waits
from planner import Prediction, plan
from planner.buffers import Timeline
from planner.predict import waited_seconds
from planner.program import Collective, Instruction, Program
from planner.traits import LIBRARY

P = PartitionSpec
MESH = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
WAITS = Waits((1e-3, 4e-3, 16e-3), (0.3e-3, 0.6e-3, 1.2e-3))
"""With the root of what was computed, between these about."""
WAKING = replace(WAITS, least_seconds={2: 0.1e-3, 8: 0.4e-3})


def waiting(computed: float, group_size: int = 8, held_up: int | None = None) -> float:
    """Of eight devices; by default only those of the group are held up."""
    return WAITS.seconds(group_size, [(computed, held_up or group_size)], 8)


def test_what_is_waited_lies_on_lines_between_what_was_measured() -> None:
    last = lateness(8)
    assert [waiting(each * 1e-3) / last * 1e3 for each in (0, 0.5, 1, 2.5, 4)] == pytest.approx(
        [0, 0.15, 0.3, 0.45, 0.6]
    )
    assert waiting(64e-3) == pytest.approx(2 * waiting(16e-3))  # as far as a random walk goes


def test_a_group_waits_no_less_than_it_takes_to_wake() -> None:
    assert [WAKING.seconds(size, [(1e-3, size)], 8) for size in (1, 2, 8)] == pytest.approx([0, 0.1e-3, waiting(1e-3)])
    assert WAKING.seconds(4, [(1e-3, 4)], 8) == pytest.approx(0.25e-3)  # by log2 of the size
    assert WAKING.seconds(2, [(0.25e-3, 2)], 8) == pytest.approx(0.25 * 0.1e-3)
    assert WAKING.seconds(2, [(16e-3, 8)], 8) == waiting(16e-3, 2, held_up=8)


@pytest.mark.parametrize("computed", [0.0, 0.3e-3, 1e-3, 7e-3, 16e-3, 90e-3])
def test_computing_and_waiting_for_all_are_told_apart_by_their_sum(computed: float) -> None:
    assert WAKING.computed(8, computed + WAKING.least(8, computed)) == pytest.approx(computed)


def test_the_last_of_a_group_is_as_late_as_the_largest_of_as_many_normal_numbers() -> None:
    for size in (1, 2, 3, 4, 8, 16, 64):
        drawn = np.random.default_rng(0).standard_normal((20_000, size))
        assert lateness(size) == pytest.approx(drawn.max(axis=1).mean(), rel=0.05, abs=0.01)


def test_noise_makes_nobody_wait_less_than_nothing_or_less_after_more() -> None:
    waits = measured_waits((1e-3, 4e-3, 16e-3), (-1e-4, 4e-4, 3e-4), {2: -1e-5, 8: -1e-4})
    assert waits.least_seconds == {2: 0, 8: 0}
    assert [waits.seconds(8, [(each, 8)], 8) for each in (1e-3, 4e-3, 16e-3)] == pytest.approx([0, 4e-4, 4e-4])


def waited(fn: Callable[..., jax.Array], *args: jax.Array, **specs: Any) -> tuple[float, Prediction]:
    """Seconds of waiting, and all that is predicted."""
    nobody, all_wait = (CostModel(replace(preset("cpu:8"), waits=waits)) for waits in (None, WAKING))
    planned = plan(fn, args, MESH, cost_model=nobody, **specs)
    without, with_waits = planned.prediction, planned.repriced(all_wait).prediction
    assert with_waits.compute_seconds == without.compute_seconds
    return with_waits.overhead_seconds - without.overhead_seconds, with_waits


def test_at_the_end_of_a_call_all_wait_for_the_last() -> None:
    x = jnp.zeros((1024, 256))
    seconds, prediction = waited(jnp.tanh, x, in_specs=(P("x"),), out_specs=P("x"))
    assert not prediction.collectives
    assert prediction.compute_seconds > 0
    assert seconds == pytest.approx(WAKING.least(8, prediction.compute_seconds))


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
    assert seconds == pytest.approx(rounds * WAKING.seconds(8, [(each, 8)], 8), rel=0.2)
    assert WAKING.seconds(8, [(each, 8)], 8) > 0


PARTING = {2: 3e-6, 4: 4e-6, 8: 0.0}
"""By group size."""


def mesh_cost(sizes: Mapping[str, int], parting: Mapping[int, float] = {}) -> MeshCost:
    """Of eight devices that wait as `WAITS` says."""
    topology = replace(preset("cpu:8"), waits=WAITS)
    curves = (replace(each, parting_seconds=parting.get(each.group_size, 0.0)) for each in topology.measured)
    return CostModel(replace(topology, measured=tuple(curves))).on(tuple(sizes), tuple(sizes.values()))


def met(axes: str, count: float, computed: float, kind: str = "all-reduce") -> tuple[Instruction, Instruction]:
    """So many times something is computed, so long, and then a collective."""
    collective = Collective(kind, 4.0, tuple(axes), count, 0.0, "")
    makes = Instruction("tanh", LIBRARY, (), (), "", count, seconds=computed)
    return makes, Instruction(kind, LIBRARY, (), (), "", count, collectives=(collective,))


def waited_in(
    steps: Sequence[tuple[float, str]],
    kind: str = "all-reduce",
    parting: Mapping[int, float] = {},
    waits: Waits = WAITS,
    **sizes: int,
) -> float:
    """What is waited in a call, on 2 x 4 unless told otherwise, with what is computed before each collective."""
    cost = replace(mesh_cost(sizes or {"x": 2, "y": 4}, parting), waits=waits)
    program = Program((), tuple(one for seconds, axes in steps for one in met(axes, 1.0, seconds, kind)), ())
    return waited_seconds(cost, program, Timeline(orders={program: program.instructions}))


MET = (0.0, "xy")
"""All devices have waited for each other since the call."""


def test_groups_that_have_met_others_wait_with_those_for_what_came_before() -> None:
    pairs, fours, all_eight = (waiting(1e-3, size) for size in (2, 4, 8))
    together = WAITS.seconds(4, [(3e-3, 8), (1e-3, 4)], 8)  # the last millisecond makes fours late alone
    assert waited_in([MET, *[(1e-3, "x")] * 3, (0.0, "y")]) == pytest.approx(3 * pairs + waiting(3e-3, 4, held_up=8))
    assert waited_in([MET, (2e-3, "x"), (1e-3, "y"), MET]) == pytest.approx(waiting(2e-3, 2) + together + all_eight)
    in_turn = [(1e-3, "x"), (1e-3, "y")] * 2
    pairs_again, fours_each = (WAITS.seconds(size, [(2e-3, 8), (1e-3, size)], 8) for size in (2, 4))
    waited = pairs + pairs_again + 2 * fours_each + all_eight  # at last for what pairs have computed since they met
    assert waited_in([MET, *in_turn, (0.0, "xy")]) == pytest.approx(waited)
    nested = [(1e-3, axes) for axes in ("xy", "y", "y", "xy", "x")]
    at_the_end = waiting(1e-3)
    assert waited_in([MET, *nested]) == pytest.approx(all_eight + 2 * fours + waiting(3e-3) + pairs + at_the_end)


@pytest.mark.parametrize("before", ["xy", "x y", "y x", "y x y"])
def test_groups_that_met_others_before_anything_was_computed_wait_alone(before: str) -> None:
    """And at the end of the call those wait that have not met since."""
    steps = [(0.0, axes) for axes in before.split()]
    assert waited_in([MET, *steps, (4e-3, "x")]) == pytest.approx(waiting(4e-3, 2) + waiting(4e-3))


def test_the_more_was_computed_since_a_group_met_others_the_less_is_lost() -> None:
    """Steadily, from where others wait with it for all that was computed to where none does."""
    shares = np.linspace(0.0, 1.0, 11)
    lost = [WAITS.seconds(2, [(4e-3, 8), (share * 4e-3, 2)], 8) for share in shares]
    assert lost[0] == pytest.approx(waiting(4e-3, 2, held_up=8))
    assert lost[-1] == pytest.approx(waiting(4e-3, 2))
    assert np.all(np.diff(lost) < 0)
    assert lost[0] - WAITS.seconds(2, [(4e-3, 8), (1e-9, 2)], 8) < 1e-9


MEASURED = {
    "x": 0.09, "yz": 0.15, "x z": 0.12, "x yz": 0.37, "yz xy": 0.75, "xyz x": 0.69, "xyz yz": 0.73, "xy yz xyz z": 0.57,
    "z xy!": 0.9, "xy z!": 0.49, "x y! z!": 0.56, "yz x!": 0.56, "x yz!": 0.78, "xyz x!": 0.87, "yz xy!": 1.11,
}  # fmt: skip
"""What eight devices on two cores waited in a loop on 2 x 2 x 2, as a part of what they wait over all axes.

For each half to eight milliseconds of computing; collectives that follow the one before at once have an exclamation
mark. Means of two to seven runs; two runs of one sequence are 0.2 apart at the median.
"""


@pytest.mark.parametrize("sequence", MEASURED)
def test_coupled_groups_wait_as_was_measured(sequence: str) -> None:
    def for_each(steps: Sequence[str]) -> float:
        """Of one millisecond among many."""
        turns = [(0.0 if axes.endswith("!") else 1e-3, axes.rstrip("!")) for axes in steps]
        sizes = {"x": 2, "y": 2, "z": 2}
        few, many = (waited_in([*turns * count, (0.0, "xyz")], **sizes) for count in (100, 500))
        return (many - few) / 400 / sum(seconds > 0 for seconds, _ in turns)

    assert for_each(sequence.split()) / for_each(["xyz"]) == pytest.approx(MEASURED[sequence], abs=0.3)


@pytest.mark.parametrize(
    ("sequence", "micros"),
    [
        ("y y y xy", 4 * 3**0.5),  # the two fours drift apart, and wait when they meet
        ("xy y xy", 4),
        ("y x", 4 + 3),  # and at the end of the call all do
        ("x y x xy", 3 + 4 + 3),
        ("xy x x xy xy", 3 * 2**0.5),
        ("xy xy", 0),
    ],
)
def test_groups_that_have_come_apart_wait_when_they_meet(sequence: str, micros: float) -> None:
    assert waited_in([(0.0, axes) for axes in sequence.split()], parting=PARTING) == pytest.approx(1e-6 * micros)


@pytest.mark.parametrize("before", ["", "xy", "y"])
def test_groups_that_meet_in_a_loop_alone_come_apart_round_by_round(before: str) -> None:
    rounds = 100
    cost = mesh_cost({"x": 2, "y": 4})
    body = Program((), (*met("x", rounds, 1e-5), Instruction("return", LIBRARY, (), (), "", rounds)), ())
    loop = Instruction("scan", LIBRARY, (), (), "", 1.0, bodies=(body,))
    first = met(before, 1.0, 0.0) if before else ()
    program = Program((), (*first, loop, *met("xy", 1.0, 0.0)), ())
    waited = waited_seconds(cost, program, Timeline(orders={each: each.instructions for each in (program, body)}))
    each_round = rounds * waiting(1e-5, 2)
    assert waited - each_round == pytest.approx(waiting(rounds * 1e-5), rel=0.02)


def test_collectives_that_are_joined_come_apart_once() -> None:
    cost = CostModel(replace(preset("cpu:8"), waits=None)).on(("x", "y"), (2, 4))
    group = cost.groups[frozenset("y")]
    curves = tuple(replace(curve, parting_seconds=4e-6) for curve in group.measured)
    cost = replace(cost, groups={**cost.groups, frozenset("y"): replace(group, measured=curves)})
    reduced = (Collective("all-reduce", 4.0, ("y",), 1.0, 0.0, ""),) * 9
    joined = Instruction("all-reduce", LIBRARY, (), (), "", 1.0, collectives=reduced)
    program = Program((), (joined,), ())
    assert waited_seconds(cost, program, Timeline(orders={program: program.instructions})) == pytest.approx(4e-6)


def test_groups_within_those_of_the_last_collective_have_not_come_apart() -> None:
    sizes = {"x": 2, "y": 2, "z": 2}
    steps = [(0.0, axes) for axes in ("yz", "z", "yz", "xyz")]
    fours, pairs = 4e-6, 3e-6
    within, at_last = pairs, (2 * fours**2 + pairs**2) ** 0.5
    assert waited_in(steps, parting=PARTING, **sizes) == pytest.approx(within + at_last)


def test_what_computing_and_what_collectives_take_apart_adds_by_its_variance() -> None:
    together = waited_in([(0.0, "y"), (1e-3, "xy")], parting={4: 1e-4})
    assert together == pytest.approx((waiting(1e-3) ** 2 + 1e-4**2) ** 0.5)


def test_all_devices_meet_for_a_permutation() -> None:
    steps = [(1e-3, over) for over in ("x", "y", "xy")]
    for count in (1, 2, 3):
        assert waited_in([MET, *steps[:count]], "collective-permute") == pytest.approx(count * waiting(1e-3))


@pytest.mark.parametrize("kind", ["all-reduce", "collective-permute"])
def test_along_an_axis_of_one_device_nobody_is_waited_for(kind: str) -> None:
    steps = [MET, (1e-3, "xy"), (4e-3, "xy")]
    assert waited_in(steps, kind, x=8, y=1) == waited_in([(each, "x") for each, _ in steps], kind, x=8)


def test_at_the_end_of_a_call_groups_wait_that_have_not_met() -> None:
    pairs, all_eight = (waiting(1e-3, size) for size in (2, 8))
    assert waited_in([MET, (1e-3, "xy")]) == pytest.approx(all_eight)
    assert waited_in([MET, (1e-3, "x")]) == pytest.approx(pairs + all_eight)


@pytest.mark.parametrize("first", ["x", "y", "xy"])
def test_what_is_computed_before_any_wait_in_a_call_makes_nobody_late(first: str) -> None:
    """They wait for threads to wake; what comes after makes late those that have met and those that have not."""
    size = {"x": 2, "y": 4, "xy": 8}[first]
    assert waited_in([(16e-3, first)]) == 0
    waking = waited_in([(16e-3, first)], waits=WAKING)
    assert waking == pytest.approx(WAKING.least(size, 16e-3) + (WAKING.least(8, 16e-3) if size < 8 else 0))
    late = waited_in([(16e-3, first), (4e-3, "xy"), (4e-3, "xy")], waits=WAKING)
    assert late == pytest.approx(WAKING.least(size, 16e-3) + 2 * waiting(4e-3))


def test_of_several_layers_one_is_the_first_in_the_call() -> None:
    program = Program((), met("xy", 9.0, 4e-3), ())
    waited = waited_seconds(mesh_cost({"x": 2, "y": 4}), program, Timeline(orders={program: program.instructions}))
    assert waited == pytest.approx(8 * waiting(4e-3))


@pytest.mark.parametrize(("meets", "seconds"), [("xy", 8 * waiting(4e-3)), ("", 0.0)])
def test_a_loop_that_begins_a_call_waits_as_in_its_midst_from_the_second_round(meets: str, seconds: float) -> None:
    steps = met("xy", 9.0, 4e-3)
    inside = steps if meets else steps[:1]
    body = Program((), (*inside, Instruction("return", LIBRARY, (), (), "", 9.0)), ())
    loop = Instruction("scan", LIBRARY, (), (), "", 1.0, bodies=(body,))
    program = Program((), (loop, *met("xy", 1.0, 0.0)), ())
    orders = {each: each.instructions for each in (program, body)}
    waited = waited_seconds(mesh_cost({"x": 2, "y": 4}), program, Timeline(orders=orders))
    assert waited == pytest.approx(seconds)


def test_only_devices_that_share_cores_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    measured = CostModel(replace(preset("cpu:8"), waits=WAITS), measured_on={"cores": 2})
    assert CostModel.from_json(measured.to_json()).topology.waits == WAITS
    monkeypatch.setattr("costmodel.cpus.measured_model", lambda _: measured)
    assert preset("cpu:8").waits == WAITS
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert preset("cpu:8").waits is None
