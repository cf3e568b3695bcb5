"""Plans are compiled and held against what the compiler made of them."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from executor import Audit, CompiledCollective, audit
from experiments.random_plans import random_plans
from experiments.workloads import workload
from planner import Collective, NoDevices, Plan, plan

MESHES = ((8,), (2, 4), (2, 2, 2))


@cache
def planned(name: str, shape: tuple[int, ...]) -> Plan:
    mesh = jax.make_mesh(shape, ("x", "y", "z")[: len(shape)])
    todo = workload(name)
    return plan(todo.fn, todo.example_args, mesh, donate_argnums=todo.donate_argnums)


SMALL = ("mlp", "sigmoid-layer-grad", "sum-axis", "heat-2d")


@pytest.mark.parametrize(
    ("name", "shape"), [*((name, shape) for name in SMALL for shape in MESHES), ("cnn", (2, 4))], ids=str
)
def test_the_compiler_does_as_planned(name: str, shape: tuple[int, ...]) -> None:
    found = audit(planned(name, shape))
    assert found.fidelity >= 0.98, found.report()
    assert found.rematerializations == 0


@pytest.mark.parametrize("strategy", ["data-parallel", "fsdp", "tensor-parallel", "data x tensor"])
def test_the_compiler_does_as_the_alternatives_say(strategy: str) -> None:
    found = audit(planned("mlp", (2, 4)).alternatives[strategy])
    assert found.fidelity >= 0.98, found.report()
    assert found.planned_bytes > 0


def project(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w  # the only line that can communicate


PROJECT_LINE = f"test_audit.py:{project.__code__.co_firstlineno + 1}"


def projected() -> Plan:
    """Contracts over a sharded dimension: one all-reduce of 64 × 32 float32."""
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((64, 128), (128, 32))]
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    return plan(project, shapes, mesh, in_specs=(P(None, "y"), P("y", None)), out_specs=P())


def test_a_collective_that_nobody_planned_is_found_with_its_line() -> None:
    honest = projected()
    forgetful = replace(
        honest,
        choice=replace(honest.choice, prediction=replace(honest.prediction, collectives=())),
    )
    found = audit(forgetful)
    (extra,) = found.unplanned
    assert (extra.kind, extra.axes, extra.bytes, extra.source) == ("all-reduce", ("y",), 64 * 32 * 4, PROJECT_LINE)
    assert found.fidelity == 0
    assert f"unplanned: all-reduce over y, 8.0 KiB × 1 at {PROJECT_LINE}" in found.report()


def test_an_honest_plan_has_nothing_to_hide() -> None:
    found = audit(projected())
    assert found.fidelity == 1
    assert not found.unplanned
    assert not found.missing
    arguments_and_result = 4 * (64 * 128 // 4 + 128 * 32 // 4 + 64 * 32)
    assert found.compiled_peak_bytes >= arguments_and_result


def test_bfloat16_counts_at_its_own_size() -> None:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((64, 128), (128, 32))]
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    found = audit(plan(project, shapes, mesh, in_specs=(P(None, "y"), P("y", None)), out_specs=P()))
    assert (found.fidelity, found.compiled_bytes) == (1.0, 64 * 32 * 2)


def until(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 6, lambda _, h: jnp.tanh(h @ w), x)


def accumulated(w: jax.Array, batches: jax.Array) -> jax.Array:
    def add(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return total + jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w)))(w), None

    return jax.lax.scan(add, jnp.zeros_like(w), batches.reshape(4, 32, 128))[0]


def looked_up(table: jax.Array, to: jax.Array, of: jax.Array) -> jax.Array:
    """The places are broadcast, along a dimension of one element, in each round."""

    def step(_: int, table: jax.Array) -> jax.Array:
        return table.at[to].add(0.5 * table[of])

    return jax.lax.fori_loop(0, 6, step, table)


@pytest.mark.parametrize("fn", [until, accumulated])
def test_what_a_loop_leaves_alone_is_resharded_before_it(fn: Callable[..., jax.Array]) -> None:
    shapes = [jax.ShapeDtypeStruct((128, 128), np.float32)] * 2
    drawn = random_plans(plan(fn, shapes, jax.make_mesh((2, 4), ("x", "y"))), 8).values()
    once = [
        one
        for each in drawn
        for one in each.prediction.collectives
        if one.kind == "all-gather" and one.bytes == 128 * 128 * 4 and one.count == 1
    ]
    assert once
    for each in drawn:
        found = audit(each)
        assert found.fidelity >= 0.95, found.report()
        assert found.memory_ratio >= 0.9, found.report()


def test_so_it_is_under_another_name() -> None:
    shapes = [jax.ShapeDtypeStruct((1024, 4), np.float32), *[jax.ShapeDtypeStruct((4096,), np.int32)] * 2]
    for each in random_plans(plan(looked_up, shapes, jax.make_mesh((2, 4), ("x", "y"))), 6).values():
        found = audit(each)
        assert found.fidelity >= 0.98, found.report()


def test_steps_that_exchange_borders_keep_what_they_exchange() -> None:
    """Twice the neighbours of neighbours, along split dimensions and others, drawn at random."""

    def fn(x: jax.Array) -> jax.Array:
        for shift in (1, -1, 1):
            x = x - 0.5 * (jnp.roll(x, shift, 0) * jnp.roll(x, shift, 1) + jnp.roll(x, -shift, 0))
        return x

    mesh = jax.make_mesh((2, 4), ("x", "y"))
    for each in random_plans(plan(fn, [jax.ShapeDtypeStruct((512, 64), np.float32)], mesh), 6).values():
        found = audit(each)
        assert found.fidelity >= 0.98, found.report()
        assert 0.9 <= found.memory_ratio <= 1.15, found.report()


def expected(
    kind: str, nbytes: float, axes: tuple[str, ...] = ("x",), count: float = 1.0, source: str = ""
) -> Collective:
    return Collective(kind, nbytes, axes, count, 0.0, source)


def compiled(
    kind: str, nbytes: float, axes: tuple[str, ...] = ("x",), count: float = 1.0, source: str = ""
) -> CompiledCollective:
    return CompiledCollective(kind, nbytes, axes, count, source, "jit(f)/dot_general", "some.1")


def of(planned: list[Collective], compiled: list[CompiledCollective]) -> Audit:
    return Audit(tuple(planned), tuple(compiled), 900.0, 1000.0, 0)


def test_no_communication_as_planned_is_perfect() -> None:
    assert of([], []).fidelity == 1.0


def test_pieces_may_differ_where_their_bytes_agree() -> None:
    one, two = [expected("all-gather", 100)], [compiled("all-gather", 60), compiled("all-gather", 40)]
    assert of(one, two).fidelity == 1.0
    assert not of(one, two).unplanned


def test_the_order_of_axes_makes_no_difference() -> None:
    assert of([expected("all-gather", 8, ("y", "x"))], [compiled("all-gather", 8, ("x", "y"))]).fidelity == 1.0


@pytest.mark.parametrize("prevent_cse", [True, False, (True, True), (True, False)], ids=str)
def test_what_is_computed_again_gathers_in_each_round(prevent_cse: Any) -> None:
    """`jax.checkpoint` puts up a barrier, before which no weights are gathered for all rounds of a loop."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: jax.Array) -> jax.Array:
            return jnp.tanh(jnp.tanh(x @ w) @ w.reshape(1, *w.shape)[0])

        again = jax.checkpoint(step, prevent_cse=prevent_cse)
        x, _ = lax.scan(lambda x, time: (again(x, time), None), x, jnp.arange(5.0))
        return (x**2).sum()

    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((64, 64), (128, 64))]
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    fsdp = plan(jax.value_and_grad(loss), shapes, mesh).alternatives["fsdp"]
    found = audit(fsdp)
    assert found.fidelity == 1, found.report()
    assert found.planned_bytes > 0


def test_the_rounds_of_loops_count() -> None:
    found = of([expected("all-reduce", 10, count=4)], [compiled("all-reduce", 10, count=3)])
    assert found.fidelity == 0.75
    assert [(lost.bytes, lost.count) for lost in found.missing] == [(2.5, 4)]


def test_what_runs_over_other_axes_is_both_unplanned_and_missing() -> None:
    found = of([expected("all-reduce", 30, ("y",))], [compiled("all-reduce", 30, ("x",))])
    assert found.fidelity == 0
    assert [extra.axes for extra in found.unplanned] == [("x",)]
    assert [lost.axes for lost in found.missing] == [("y",)]


def test_of_two_kinds_the_odd_one_is_named_and_its_own_line_covered_first() -> None:
    found = of(
        [expected("all-gather", 100, source="a.py:1"), expected("all-gather", 50, source="a.py:2")],
        [
            compiled("all-gather", 50, source="a.py:2"),
            compiled("all-gather", 70, source="b.py:9"),
            compiled("all-gather", 80, source="a.py:1"),
        ],
    )
    assert [(extra.bytes, extra.source) for extra in found.unplanned] == [(50, "b.py:9")]
    assert found.fidelity == 150 / 200


def test_the_report_reads_like_this() -> None:
    found = replace(
        of(
            [expected("all-reduce", 2048, ("x", "y"), source="train.py:41")],
            [compiled("all-reduce", 2048, ("x", "y")), compiled("all-gather", 1024, ("y",), 3, "train.py:7")],
        ),
        rematerializations=2,
    )
    assert found.report().splitlines() == [
        "fidelity 0.400",
        "collective                           planned    compiled",
        "all-gather over y                        0 B     3.0 KiB",
        "all-reduce over x, y                 2.0 KiB     2.0 KiB",
        "all                                  2.0 KiB     5.0 KiB",
        "peak memory                            900 B      1000 B",
        "unplanned: all-gather over y, 1.0 KiB × 3 at train.py:7 (jit(f)/dot_general)",
        "involuntary full rematerializations: 2",
    ]


def test_rematerializations_are_counted_and_the_compiler_still_heard(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    compile_quietly = jax.stages.Lowered.compile

    def compile_and_warn(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        os.write(2, b"E0 spmd_partitioner.cc:1] Involuntary full rematerialization. The compiler was not able to ...\n")
        return compile_quietly(lowered)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_and_warn)
    assert audit(projected()).rematerializations == 1
    assert capfd.readouterr().err.count("Involuntary full rematerialization") == 1


def test_a_plan_without_devices_cannot_be_audited() -> None:
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((64, 128), (128, 32))]
    with pytest.raises(NoDevices, match="has no devices here"):
        audit(plan(project, shapes, jax.sharding.AbstractMesh((8,), ("x",))))
