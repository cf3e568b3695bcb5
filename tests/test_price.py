"""Prices: the problem and the prediction tell one story, in closed forms where there are any."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, Case
from costmodel_cases import SOLVERS_PRICES
from forced import device_mesh, priced_on, random_assignments
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec
from programs import PROGRAMS

from costmodel import CostModel, preset
from planner import Plan, Prediction, plan
from planner.assignment import Assignment
from planner.buffers import timeline
from planner.predict import predict
from planner.price import Priced
from planner.write import write

P = PartitionSpec
MESH = device_mesh(x=2, y=4)
S = jax.ShapeDtypeStruct


def seconds_of(assignment: Assignment) -> tuple[float, float]:
    """What the problem and the prediction say of what is computed and communicated."""
    said = predicted(assignment)
    problem = assignment.priced.problem.evaluate(assignment.picks).cost
    return problem, said.compute_seconds + said.communication_seconds


def predicted(assignment: Assignment) -> Prediction:
    return predict(assignment, nothing_donated(assignment))


def nothing_donated(assignment: Assignment) -> tuple[None, ...]:
    return (None,) * len(assignment.priced.graph.body.outputs)


def unmade_seconds(assignment: Assignment) -> float:
    """Of what is not computed, since a loop needs but a slice of it."""
    program = write(assignment).program
    over_time = timeline(assignment, program, nothing_donated(assignment))
    return sum(one.count * (one.seconds - over_time.seconds(one)) for one in program.walk())


def reads_once(priced: Priced) -> bool:
    """Whether no value is needed in two places, so that no copy on the way to one could serve the other."""
    used = [use.value for use in priced.decisions.edges]
    return len(used) == len(set(used))


@pytest.mark.parametrize("case", [*CASES, *PROGRAMS], ids=lambda case: case.name)
def test_the_problem_bounds_the_prediction(case: Case) -> None:
    """The prediction shares copies that two uses pass on their way, the problem prices each way alone: it knows how far
    that may be off. And what is sliced in the loop that makes it is predicted in part."""
    priced = priced_on(case, MESH)
    for assignment in random_assignments(priced, 12, case.name):
        problem, prediction = seconds_of(assignment)
        shared = assignment.shared_seconds()
        assert prediction <= problem * (1 + 1e-9)
        assert prediction == pytest.approx(problem - shared - unmade_seconds(assignment))
        assert shared == 0 or not reads_once(priced)


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case.name)
def test_nothing_is_resharded_for_nobody(case: Case) -> None:
    """A way by a copy that several readers share may pass what its reader wants, or come back to where it began."""
    for assignment in random_assignments(priced_on(case, MESH), 12, case.name):
        program = write(assignment).program
        bodies = [body for one in program.walk() for body in one.bodies]
        read = {array for one in program.walk() for array in one.operands}
        read.update(array for each in (program, *bodies) for array in each.outputs)
        for one in program.walk():
            assert one.op or not one.collectives or not read.isdisjoint(one.results), one.name


@pytest.mark.parametrize("case", [*CASES, *PROGRAMS], ids=lambda case: case.name)
def test_prices_are_finite(case: Case) -> None:
    priced = priced_on(case, MESH)
    for costs in priced.problem.costs:
        assert np.isfinite(costs).all()
        assert (costs >= 0).all()
    for edge in priced.problem.edges:
        assert np.isfinite(edge.cost).all()
        assert (edge.cost >= 0).all()


def brute_force(priced: Priced) -> float:
    options = [range(len(strategies)) for strategies in priced.strategies]
    return min(priced.problem.evaluate((*picks, 0)).cost for picks in itertools.product(*options))


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ w)


def reduction(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x).sum(axis=1) + w[0, 0]


def loop(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=4)[0]


@pytest.mark.parametrize(
    ("fn", "sizes"), [(layer, (8,)), (layer, (2, 4)), (reduction, (2, 4)), (reduction, (2, 2, 2)), (loop, (8,))]
)
def test_the_plan_is_the_best_of_all(fn: Callable[..., Any], sizes: tuple[int, ...]) -> None:
    args = (S((64, 512), jnp.float32), S((512, 512), jnp.float32))
    mesh = AbstractMesh(sizes, ("x", "y", "z")[: len(sizes)])
    planned = plan(fn, args, mesh, in_specs=(None, P()), cost_model=SOLVERS_PRICES)
    priced = planned.choice.priced
    assert math.prod(map(len, priced.strategies)) < 50_000, "or trying them all takes too long"
    assert planned.objective_seconds == pytest.approx(brute_force(priced))
    assert planned.status == "optimal"


def laid_out(*specs: PartitionSpec) -> Callable[[jax.Array], jax.Array]:
    """Sums of an array, too short to be worth gathering, made in the first layout, which changes to the others."""

    def fn(x: jax.Array) -> jax.Array:
        for _ in range(8):
            x = 0.5 * x + 1
        for spec in specs:
            x = lax.with_sharding_constraint(x, spec)
        return x

    return fn


@pytest.mark.parametrize(
    ("specs", "shards", "sliced"), [((P(),), 1, 1), ((P(), P("x")), 1, 2), ((P("x"), P("x", "y")), 2, 4)]
)
def test_a_loop_over_what_is_sliced_computes_the_slice_alone(
    specs: tuple[PartitionSpec, ...], shards: int, sliced: int
) -> None:
    """Predicted and compiled: of what is replicated, and whose reader wants a shard, a device makes a shard."""
    x = S((256, 256), jnp.float32)
    with jax.set_mesh(MESH):
        planned = plan(laid_out(*specs), (x,), MESH, in_specs=(specs[0],), out_specs=specs[-1])
    compiled = planned.jit().lower(x).compile()
    ops = sum(one.seconds for one in write(planned.choice.assignment).program.walk() if one.op)
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * 256 * 256 / (shards * sliced), "the whole is no array"
    assert unmade_seconds(planned.choice.assignment) == pytest.approx((1 - 1 / sliced) * ops, abs=1e-12)


# Closed forms, on a machine with round figures


def collectives_of(planned: Plan) -> list[tuple[str, tuple[str, ...], float, float]]:
    return [(one.kind, one.axes, one.bytes, one.count) for one in planned.prediction.collectives]


def planned_on_gpus(fn: Callable[..., Any], shapes: list[tuple[int, ...]], **options: Any) -> Plan:
    args = tuple(S(shape, jnp.float32) for shape in shapes)
    model = CostModel(preset("h100-dgx:1"))
    return plan(fn, args, AbstractMesh((2, 4), ("data", "model")), cost_model=model, **options)


def planned_here(fn: Callable[..., Any], shapes: list[tuple[int, ...]], **options: Any) -> Plan:
    args = tuple(S(shape, jnp.float32) for shape in shapes)
    return plan(fn, args, AbstractMesh((2, 4), ("data", "model")), **options)


def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


def test_a_contraction_over_an_axis_is_an_all_reduce_of_the_result() -> None:
    specs = {"in_specs": (P("data", "model"), P("model")), "out_specs": P("data")}
    planned = planned_here(matmul, [(64, 128), (128, 32)], **specs)
    assert collectives_of(planned) == [("all-reduce", ("model",), 64 / 2 * 32 * 4, 1)]


def test_a_scattered_result_is_a_reduce_scatter_where_the_backend_does_that() -> None:
    specs = {"in_specs": (P("data", "model"), P("model")), "out_specs": P("data", "model")}
    planned = planned_on_gpus(matmul, [(64, 128), (128, 32)], **specs)
    assert collectives_of(planned) == [("reduce-scatter", ("model",), 64 / 2 * 32 * 4, 1)]


def test_on_cpu_no_reduce_scatter_is_made() -> None:
    specs = {"in_specs": (P("data", "model"), P("model")), "out_specs": P("data", "model")}
    planned = planned_here(matmul, [(64, 128), (128, 32)], **specs)
    assert collectives_of(planned)
    assert all(kind != "reduce-scatter" for kind, *_ in collectives_of(planned))


def test_fsdp_gathers_the_weights() -> None:
    """Rows split over everything, weights too: they are gathered, the larger side is the whole weight."""
    specs = {"in_specs": (P(("data", "model")), P(("data", "model"))), "out_specs": P(("data", "model"))}
    planned = planned_here(matmul, [(1 << 16, 128), (128, 32)], **specs)
    kinds = {kind for kind, *_ in collectives_of(planned)}
    assert kinds == {"all-gather"}
    assert sum(nbytes for _, _, nbytes, _ in collectives_of(planned)) == 128 * 32 * 4


def test_gradients_of_data_parallel_weights_are_all_reduced_once() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    rows = P(("data", "model"))
    planned = planned_here(jax.grad(loss), [(64, 32), (4096, 64)], in_specs=(P(), rows), out_specs=P())
    assert [(kind, nbytes) for kind, _, nbytes, _ in collectives_of(planned)] == [("all-reduce", 64 * 32 * 4)]


@pytest.mark.parametrize("name", ["loop counted", "scan layers"])
def test_what_is_in_a_loop_counts_each_time_round(name: str) -> None:
    (case,) = (case for case in PROGRAMS if case.name == name)
    rounds = {"loop counted": 3, "scan layers": 4}[name]
    assignments = random_assignments(priced_on(case, MESH), 12, name)
    collectives = [one for assignment in assignments for one in predicted(assignment).collectives]
    assert {one.count for one in collectives} == {1, rounds}
    cost = assignments[0].priced.cost
    for one in collectives:
        once = float(cost.collective_seconds(one.kind, one.axes, one.bytes))
        assert one.seconds == pytest.approx(one.count * once)


def test_compute_in_a_loop_counts_each_time_round() -> None:
    def fn(x: jax.Array, w: jax.Array, *, rounds: int) -> jax.Array:
        return lax.fori_loop(0, rounds, lambda i, x: jnp.tanh(x @ w), x)

    args = (S((64, 128), jnp.float32), S((128, 128), jnp.float32))
    once, ten = (
        plan(functools.partial(fn, rounds=rounds), args, AbstractMesh((1,), ("x",))).prediction.compute_seconds
        for rounds in (1, 10)
    )
    assert ten == pytest.approx(10 * once, rel=0.05)


def test_compute_divides_by_the_devices() -> None:
    whole = planned_on_gpus(matmul, [(8192, 8192), (8192, 8192)], in_specs=(P(), P()), out_specs=P())
    rows = P(("data", "model"))
    split = planned_on_gpus(matmul, [(8192, 8192), (8192, 8192)], in_specs=(rows, P()), out_specs=rows)
    assert split.prediction.communication_seconds == 0
    flops = 2 * 8192**3
    cost = CostModel(preset("h100-dgx:1")).on(("data", "model"), (2, 4))
    share = float(cost.matmul_seconds("float32", 1024, 8192, 8192))
    assert flops / 8 / cost.device.rate("float32") < share
    assert split.prediction.compute_seconds == pytest.approx(share, rel=0.01)
    assert whole.prediction.step_seconds > split.prediction.step_seconds


def test_seconds_add_up() -> None:
    planned = planned_here(matmul, [(64, 128), (128, 32)], in_specs=(P("data", "model"), P("model")), out_specs=P())
    prediction = planned.prediction
    parts = prediction.compute_seconds + prediction.communication_seconds + prediction.overhead_seconds
    assert prediction.step_seconds == pytest.approx(parts)
    assert prediction.overhead_seconds > 0
    assert prediction.communication_seconds == pytest.approx(sum(one.seconds for one in prediction.collectives))
    assert prediction.communicated_bytes == sum(one.bytes * one.count for one in prediction.collectives)
    assert all(one.source.startswith("test_price.py:") for one in prediction.collectives if one.kind == "all-reduce")


def test_a_shared_copy_is_paid_once() -> None:
    """Two contractions read one array gathered alike; one gather serves both."""

    def fn(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return w @ x, jnp.sin(w) @ x

    rows = P(("data", "model"))
    planned = planned_on_gpus(fn, [(64, 128), (4096, 64)], in_specs=(rows, rows), out_specs=rows)
    gathered = [one for one in planned.prediction.collectives if one.kind == "all-gather"]
    assert sum(one.bytes for one in gathered) == 64 * 128 * 4


def test_constants_cost_nothing_to_slice() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return x + lax.broadcasted_iota(jnp.float32, (64, 128), 0)

    planned = planned_here(fn, [(64, 128)], in_specs=(P("data", "model"),))
    assert planned.prediction.collectives == ()
