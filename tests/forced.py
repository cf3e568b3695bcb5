"""Running a function as assignments say that no solver would choose, to test what must hold for every one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from cases import Case
from jax.sharding import AxisType, Mesh, NamedSharding

from costmodel import CostModel
from executor.check import TOLERANCE, compare
from executor.compiled import CompiledCollective, collectives
from planner import Collective
from planner.assignment import Assignment
from planner.choose import build
from planner.emit import emit
from planner.jaxpr import build_graph
from planner.layout import to_spec
from planner.mesh import mesh_choices
from planner.price import Priced
from planner.specs import read_request
from planner.trace import trace


def device_mesh(**axes: int) -> Mesh:
    """The eight CPU devices, with Auto axes."""
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def priced_on(case: Case, mesh: Mesh, cost_model: CostModel | None = None) -> Priced:
    traced = trace(case.fn, case.args)
    request = read_request(traced, None, None, ())
    return build(build_graph(traced), request, next(mesh_choices(mesh, cost_model)))


def random_assignments(priced: Priced, most: int, seed: str) -> list[Assignment]:
    """As many as it takes to see every strategy of every node, `most` at most; strategies of nodes meet at random."""
    generator = random.Random(seed)
    orders = [generator.sample(range(len(s)), len(s)) for s in priced.strategies]
    rounds = min(most, max(map(len, orders), default=1))
    last = (0,)  # the node of the ops that are not sharded has one strategy
    return [Assignment(priced, tuple(order[turn % len(order)] for order in orders) + last) for turn in range(rounds)]


@dataclass(frozen=True)
class Run:
    """What came of several assignments, compiled as one program with arguments for each.

    Attributes:
        results: flat, for each assignment.
        communicated: bytes per device by kind and mesh axes, of all of them together, as compiled.
    """

    results: list[list[Any]]
    communicated: Mapping[tuple[str, frozenset[str]], float]


def run_as_assigned(assignments: Sequence[Assignment], mesh: Mesh, args: Sequence[Any]) -> Run:
    functions = [emit(assignment, mesh) for assignment in assignments]
    shardings = [
        [NamedSharding(mesh, to_spec(assignment.home(value))) for value in assignment.priced.graph.body.inputs]
        for assignment in assignments
    ]
    together = jax.jit(
        lambda each: [run(*flat) for run, flat in zip(functions, each, strict=True)],
        in_shardings=(shardings,),
        keep_unused=True,
    )
    arguments = [[np.asarray(leaf) for leaf in jax.tree.leaves(args)] for _ in assignments]
    compiled = together.lower(arguments).compile()
    found = collectives(compiled.as_text(), dict(mesh.shape))
    return Run(compiled(jax.device_put(arguments, shardings)), bytes_by_kind(found))


def bytes_by_kind(
    found: Iterable[Collective | CompiledCollective],
) -> Mapping[tuple[str, frozenset[str]], float]:
    total: Counter[tuple[str, frozenset[str]]] = Counter()
    for one in found:
        total[one.kind, frozenset(one.axes)] += one.bytes * one.count
    return total


def differences(found: Sequence[Any], wanted: Sequence[Any], rounding: Sequence[float] | None = None) -> list[str]:
    """What differs in shape, dtype, or value by more than the tolerance of the dtype; empty where all is well.

    Args:
        rounding: for each result, how far it may be off beside, for that is what rounding makes of it.
    """
    wrong = []
    allowed = rounding or [0.0] * len(wanted)
    for position, (have, want) in enumerate(zip(found, wanted, strict=True)):
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            wrong.append(f"result {position} is {have.dtype}{have.shape}, not {want.dtype}{want.shape}")
        elif not (error := compare(have, want)) <= max(allowed[position], TOLERANCE.get(str(want.dtype), 0.0)):
            wrong.append(f"result {position} is off by {error:.1e}")
    return wrong


def described(assignment: Assignment) -> str:
    """What each node does, for the message of a failing test."""
    nodes = enumerate(assignment.priced.decisions.nodes)
    return ", ".join(f"{node.name}: {assignment.strategy(index).axes}" for index, node in nodes)
