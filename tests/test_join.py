"""Which all-reduces go as one, and in which order groups of devices are listed: against compiled programs."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from forced import device_mesh
from jax.sharding import PartitionSpec

from executor.audit import compile_watched
from executor.compiled import collectives
from executor.race import lower
from experiments.random_plans import random_plans
from experiments.workloads import workload
from planner import Plan, plan
from planner.buffers import timeline
from planner.graph import Value
from planner.join import joined, operands_first
from planner.program import Array, Collective, Instruction
from planner.traits import LIBRARY
from planner.write import write

P = PartitionSpec
S = jax.ShapeDtypeStruct
Joined = Counter[tuple[tuple[str, ...], tuple[float, ...]]]
"""All-reduces by their axes and the bytes of each array that goes."""


def expected(planned: Plan) -> Joined:
    assignment = planned.choice.assignment
    over_time = timeline(assignment, write(assignment).program, planned.request.donors)
    reduced = [one.collectives for order in over_time.orders.values() for one in order if one.name == "all-reduce"]
    return Counter((parts[0].axes, tuple(sorted(each.bytes for each in parts))) for parts in reduced)


def compiled(planned: Plan) -> Joined:
    program, _ = compile_watched(lower(planned))
    together = defaultdict(list)
    for each in collectives(program.as_text(), dict(planned.mesh.shape)):
        if each.kind == "all-reduce":
            together[each.instruction, each.axes].append(each.bytes)
    return Counter((axes, tuple(sorted(sizes))) for (_, axes), sizes in together.items())


@pytest.mark.parametrize("name", ["sigmoid-layer-grad", "mlp"])
def test_as_the_compiler_joins_them_over_three_axes(name: str) -> None:
    """Where groups over one axis can be listed in two orders; in these plans some are in the one, some in the other."""
    work = workload(name)
    planned = plan(work.fn, work.example_args, device_mesh(x=2, y=2, z=2), donate_argnums=work.donate_argnums)
    for each in random_plans(planned, 3).values():
        assert expected(each) == compiled(each)


ROWS, INNER, COLUMNS = 64, 256, 128


@pytest.mark.parametrize(
    ("on_rows", "on_columns"), [("y", "z"), ("z", "y"), ("y", None), (None, "y"), ("z", None), (None, "z")]
)
@pytest.mark.parametrize("rows", [ROWS, COLUMNS, 4 * COLUMNS])
def test_products_list_groups_by_the_operand_that_others_need_less_of(
    on_rows: str | None, on_columns: str | None, rows: int
) -> None:
    """Beside a sum whose groups are listed in the mesh's order: joined with it, or not, as the compiler does."""

    def fn(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
        return a @ b, c.sum(1)

    args = (S((rows, INNER), jnp.float32), S((INNER, COLUMNS), jnp.float32), S((ROWS, INNER), jnp.float32))
    given = (P(on_rows, "x"), P("x", on_columns), P(("y", "z"), "x"))
    wanted = (P(on_rows, on_columns), P(("y", "z")))
    planned = plan(fn, args, device_mesh(x=2, y=2, z=2), in_specs=given, out_specs=wanted)
    assert sum(compiled(planned).values()) in (1, 2)
    assert expected(planned) == compiled(planned)


def test_a_sum_and_a_maximum_do_not_go_as_one() -> None:
    def fn(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return x.max(0), x.sum(0), y.sum(0)

    args = (S((4096, 128), jnp.float32),) * 2
    planned = plan(fn, args, device_mesh(x=8), in_specs=(P("x"), P("x")), out_specs=(P(),) * 3)
    assert expected(planned) == compiled(planned) == {(("x",), (512.0,)): 1, (("x",), (512.0, 512.0)): 1}


def reduction(name: str, *operands: Array, joins: str = "all alike", nbytes: float = 4.0) -> Instruction:
    made = replace(operands[0], name=name)
    one = Collective("all-reduce", nbytes, ("x",), 1.0, 0.0, "")
    return Instruction("all-reduce", LIBRARY, operands, (made,), "", 1.0, collectives=(one,), joins=(joins,))


def returned(*instructions: Instruction) -> Instruction:
    results = [array for one in instructions for array in one.results]
    return Instruction("return", LIBRARY, tuple(results), (), "", 1.0)


def names(instructions: tuple[Instruction, ...]) -> list[list[str]]:
    return [[array.name for array in one.results] for one in instructions if one.name == "all-reduce"]


def test_from_the_outputs_on_until_one_waits(array: Array) -> None:
    """Of the first output, "late" waits for "early"; in the order of the program, "early" would go with "other"."""
    early = reduction("early", array)
    other = reduction("other", array)
    late = reduction("late", early.results[0])
    assert names(joined((early, other, late, returned(late, other)))) == [["early"], ["other", "late"]]
    assert names(joined((early, other, late, returned(other, late)))) == [["early", "other"], ["late"]]


def test_what_differs_in_kind_or_is_too_large_goes_alone(array: Array) -> None:
    these = [reduction("a", array), reduction("b", array, joins="otherwise"), reduction("c", array, nbytes=2.0**25)]
    assert names(joined((*these, returned(*these)))) == [["a"], ["b"], ["c"]]


def test_operands_come_first(array: Array) -> None:
    first, unread = reduction("first", array), reduction("unread", array)
    second = reduction("second", first.results[0])
    program = (first, unread, second, returned(second))
    order = operands_first([(one, one.operands) for one in program])
    assert [one.results[0].name if one.results else one.name for one in order] == [
        "first",
        "second",
        "return",
        "unread",
    ]


@pytest.fixture
def array() -> Array:
    return Array((1,), "array", "", Value((1,), jnp.dtype("float32")))
