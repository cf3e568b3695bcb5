"""One layer on eight devices, planned, and how results are compared."""

from __future__ import annotations

import functools
from typing import Any

import jax
from cases import floats
from forced import device_mesh, differences
from jax.sharding import Mesh, PartitionSpec

from planner import Plan, plan

P = PartitionSpec
MESH = device_mesh(x=2, y=4)
EXPLICIT = jax.make_mesh((2, 4), ("x", "y"))
BIG = floats(512, 256)


def assert_same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    assert not differences(jax.tree.leaves(found), jax.tree.leaves(wanted))


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ w)


@functools.cache
def layer_plan(mesh: Mesh = MESH) -> Plan:
    return plan(layer, (BIG, floats(256, 256)), mesh, in_specs=(P("x"), P(None, "y")))
