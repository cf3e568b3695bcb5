"""Copies before permutations: in the compiled program, and in one that is written down by hand."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from planner import program
from planner.graph import Value
from planner.permuted import copied_before_permutations
from planner.program import Instruction
from planner.rearrange import Turn
from planner.traits import LIBRARY

TURN = Turn((0,), 4096.0, 2.0**19, 0.0)


@pytest.mark.parametrize(("gathered", "order"), [(P(None, "y"), "{0,1}"), (P("y"), "{1,0}")], ids=["turned", "in rows"])
def test_what_is_permuted_lies_as_what_is_gathered_then(gathered: P, order: str) -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
    axes = list(gathered)
    steps = [P(*axes[:-1], ("x", "y")), P(*axes[:-1], ("y", "x")), gathered]

    def fn(x: Array) -> Array:
        for spec in steps:
            x = with_sharding_constraint(x, NamedSharding(mesh, spec))
        return x

    x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=NamedSharding(mesh, P()))
    compiled = jax.jit(fn).lower(x).compile().as_text()
    assert re.search(r"= f32\[\d+,\d+\](\{\d,\d\}) collective-permute\(", compiled)[1] == order  # type: ignore[index]


def test_what_is_permuted_for_a_product_lies_as_it_did() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))

    def fn(x: Array, z: Array) -> Array:
        for axes in (("x", "y"), ("y", "x")):
            x = with_sharding_constraint(x, NamedSharding(mesh, P(None, None, axes)))
        y = lax.dot_general(x, z, (((0, 1), (0, 1)), ((), ())))
        return with_sharding_constraint(y, NamedSharding(mesh, P(("y", "x"))))

    whole = NamedSharding(mesh, P())
    args = [jax.ShapeDtypeStruct((8, 64, size), jnp.float32, sharding=whole) for size in (1024, 32)]
    compiled = jax.jit(fn).lower(*args).compile().as_text()
    assert re.search(r"= f32\[8,64,128\]\{2,1,0\} collective-permute\(", compiled)


def array(name: str) -> program.Array:
    return program.Array((1024, 128), name, "", Value((1024, 128), np.dtype("float32")))


def instruction(name: str, read: program.Array, *made: program.Array, turn: Turn | None = None) -> Instruction:
    return Instruction(name, LIBRARY, (read,), made, "", 1.0, turn=turn)


def test_a_copy_for_a_gather_is_made_before_the_permutation_that_brings_what_it_copies() -> None:
    sliced, permuted, sent, gathered = map(array, ("sliced", "permuted", "sent", "gathered"))
    permutation = instruction("collective-permute", sliced, permuted)
    copy = instruction("copy", permuted, sent, turn=TURN)
    gather = instruction("all-gather", sent, gathered)
    moved = copied_before_permutations([permutation, copy, gather])
    first, second = moved[permutation], moved[copy]
    assert (first.name, first.operands, first.turn) == ("copy", (sliced,), TURN)
    assert (second.name, second.operands, second.results) == ("collective-permute", first.results, (sent,))
    assert gather not in moved


def test_a_permutation_that_others_read_and_copies_in_rows_or_for_products_stay_where_they_are() -> None:
    sliced, permuted, sent, gathered, other = map(array, ("sliced", "permuted", "sent", "gathered", "other"))
    permutation = instruction("collective-permute", sliced, permuted)
    copy = instruction("copy", permuted, sent, turn=TURN)
    gather = instruction("all-gather", sent, gathered)
    assert not copied_before_permutations([permutation, copy, gather, instruction("add", permuted, other)])
    assert not copied_before_permutations([permutation, instruction("copy", permuted, sent), gather])
    assert not copied_before_permutations([instruction("all-gather", sliced, permuted), copy, gather])
    assert not copied_before_permutations([permutation, copy, instruction("dot_general", sent, other)])
