"""Slices of what was put together read the parts that they cover."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import floats
from forced import device_mesh

from planner import plan
from planner.jaxpr import build_graph
from planner.trace import trace

X, LEFT, RIGHT = floats(16, 24), floats(16, 1), floats(16, 2)


def together(left: jax.Array, x: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.concatenate([left, x, right], axis=1)


def one_after_the_other(left: jax.Array, x: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.concatenate([left, x], axis=1), right], axis=1)


def middle_of_padded(left: jax.Array, x: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.pad(x, 1, mode="edge")[1:-1, 1:-1] * 2


def neighbours(left: jax.Array, x: jax.Array, right: jax.Array) -> jax.Array:
    padded = together(left, x, right[:, :1])
    return padded[:, 2:] - padded[:, :-2]


def read_elsewhere_too(left: jax.Array, x: jax.Array, right: jax.Array) -> Any:
    whole = together(left, x, right)
    return whole.sum(), whole[:, :4]


CASES: dict[str, tuple[Callable[..., Any], list[tuple[str, tuple[int, ...]]]]] = {
    "two of three": (lambda *all_of: together(*all_of)[:, :20], [("concatenate", (16, 25)), ("slice", (16, 20))]),
    "exactly two": (lambda *all_of: together(*all_of)[:, 1:], [("concatenate", (16, 26))]),
    "exactly one": (lambda *all_of: together(*all_of)[:, 1:-2], []),
    "a part of one": (lambda *all_of: together(*all_of)[2:, 3:-3], [("slice", (14, 21))]),
    "all": (lambda *all_of: together(*all_of)[:, :-1], [("concatenate", (16, 27)), ("slice", (16, 26))]),
    "every second": (lambda *all_of: together(*all_of)[:, :20:2], [("concatenate", (16, 27)), ("slice", (16, 10))]),
    "nothing": (lambda *all_of: together(*all_of)[:, :0], [("concatenate", (16, 27)), ("slice", (16, 0))]),
    "beside nothing": (
        lambda left, x, right: together(left, right[:, :0], x)[:, :20],
        [("slice", (16, 0)), ("concatenate", (16, 25)), ("slice", (16, 20))],
    ),
    "of parts put together": (
        lambda *all_of: one_after_the_other(*all_of)[:, 2:],
        [("concatenate", (16, 26)), ("slice", (16, 25))],
    ),
    "middle of padded": (middle_of_padded, [("mul", (16, 24))]),
    "neighbours": (
        neighbours,
        [
            ("slice", (16, 1)), ("concatenate", (16, 25)), ("slice", (16, 24)), ("concatenate", (16, 25)),
            ("slice", (16, 24)), ("sub", (16, 24)),
        ],
    ),
    "read elsewhere too": (
        read_elsewhere_too,
        [("concatenate", (16, 27)), ("reduce_sum", ()), ("concatenate", (16, 25)), ("slice", (16, 4))],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "ops"), CASES.values(), ids=CASES)
def test_slices_read_the_parts_that_they_cover(fn: Callable[..., Any], ops: list[tuple[str, tuple[int, ...]]]) -> None:
    graph = build_graph(trace(fn, (LEFT, X, RIGHT)))
    assert [(op.name, op.results[0].shape) for op in graph.body.ops] == ops


@pytest.mark.parametrize("fn", [fn for fn, _ in CASES.values()], ids=CASES)
def test_plans_compute_the_same(fn: Callable[..., Any]) -> None:
    args = (LEFT, X, RIGHT)
    planned = plan(fn, args, device_mesh(x=2, y=4))
    for found, wanted in zip(jax.tree.leaves(planned.jit()(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
