"""Cases planned, run as the cheapest plan and as drawn at random say, and held against the unsharded result."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from cases import Case
from forced import device_mesh, differences, random_assignments
from jax.sharding import Mesh, NamedSharding
from op_by_op import op_by_op

from planner.assignment import Assignment
from planner.choose import Limits, build, choose
from planner.emit import emit
from planner.graph import Graph, Op, aval_of
from planner.jaxpr import build_graph
from planner.layout import to_spec
from planner.mesh import mesh_choices
from planner.predict import predict
from planner.price import Priced
from planner.rules import rule_for
from planner.specs import read_request
from planner.strategies import Strategy
from planner.trace import trace


@dataclass(frozen=True)
class Job:
    """A case, the meshes it is planned for, how many assignments are drawn on each, and whether it is solved too."""

    case: Case
    meshes: Sequence[Mapping[str, int]]
    drawn: int
    solved: bool = True


@dataclass(frozen=True)
class Outcome:
    """What came of one case.

    Attributes:
        status: "passed"; "wrong", other numbers than unsharded; "failed", an exception; "crashed", the process ended;
            "not run", it does not run unsharded on CPU either, or not as it does op by op.
        origin: where the least known of its rules came from: "registry", "shardy" or "replicated".
        shards: into how many parts the most split of its ops was split.
        seconds: tracing, planning, compiling and running, its share of what was done together.
    """

    name: str
    status: str
    origin: str = ""
    shards: int = 0
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class Prepared:
    """A case with its results unsharded, and the assignments that it is to run by.

    Attributes:
        repeatable: whether the unsharded function gives the same numbers again.
    """

    case: Case
    wanted: list[Any]
    repeatable: bool
    assignments: list[tuple[Mesh, Assignment]]
    origin: str

    @property
    def shards(self) -> int:
        return max(split(assignment) for _, assignment in self.assignments)


def split(assignment: Assignment) -> int:
    """Into how many parts the most split of the program's parts is split."""
    sizes = assignment.priced.cost.axis_sizes
    nodes = range(len(assignment.priced.decisions.nodes))
    return max((shards(assignment.strategy(node), sizes) for node in nodes), default=1)


def shards(strategy: Strategy, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[axis] for axes in strategy.axes for axis in axes)


def outcomes(jobs: Sequence[Job]) -> list[Outcome]:
    """Compiles the cases together; one by one if that fails."""
    begun = time.perf_counter()
    try:
        found = _together(jobs)
    except Exception as error:
        if len(jobs) > 1:
            return [outcome for job in jobs for outcome in outcomes([job])]
        found = [Outcome(jobs[0].case.name, "failed", message=_said(error))]
    each = (time.perf_counter() - begun) / len(jobs)
    return [replace(outcome, seconds=round(each, 3)) for outcome in found]


def _together(jobs: Sequence[Job]) -> list[Outcome]:
    """All or nothing, but where a single case cannot run unsharded."""
    try:
        wanted = unsharded([job.case for job in jobs])
    except Exception as error:
        if len(jobs) > 1:
            raise
        return [Outcome(jobs[0].case.name, "not run", message=_said(error))]
    ready = [prepare(job, *results) for job, results in zip(jobs, wanted, strict=True)]
    return [
        Outcome(one.case.name, _status(one, message), one.origin, one.shards, message=message)
        for one, message in zip(ready, run(ready), strict=True)
    ]


def _status(one: Prepared, message: str) -> str:
    """What is wrong does not count where the compiler gets it wrong unsharded."""
    if not message:
        return "passed"
    return "not run" if differences(one.wanted, *op_by_op(one.case.fn, one.case.args)) else "wrong"


def unsharded(cases: Sequence[Case]) -> list[tuple[list[Any], bool]]:
    """On one device: what each case gives, and whether it gives the same again."""
    args = [case.args for case in cases]

    def together(each: list[tuple[Any, ...]]) -> list[Any]:
        return [case.fn(*some) for case, some in zip(cases, each, strict=True)]

    compiled = jax.jit(together, keep_unused=True).lower(args).compile()
    wanted, again = (list(map(jax.tree.leaves, compiled(args))) for _ in range(2))
    return [(first, not differences(second, first)) for first, second in zip(wanted, again, strict=True)]


def prepare(job: Job, wanted: list[Any], repeatable: bool) -> Prepared:
    """The case with its cheapest plan, the plan that splits the most, and some drawn at random, each once."""
    traced = trace(job.case.fn, job.case.args)
    graph = build_graph(traced)
    request = read_request(traced, None, None, ())
    assignments: list[tuple[Mesh, Assignment]] = []
    unruled: list[Op] = []
    for mesh in job.meshes:
        devices = device_mesh(**mesh)
        (choice,) = mesh_choices(devices, None)
        priced = build(graph, request, choice)
        unruled += priced.decisions.unruled
        candidates = [most_split(priced), *random_assignments(priced, job.drawn, job.case.name)]
        if job.solved:
            best = choose(graph, request, choice, Limits(None, 1.0, "replicate"))
            assert best is not None, "there is nothing to beat"
            candidates.insert(0, best.assignment)
        different = {one.picks: one for one in candidates if split(one) > 1 or not assignments}
        for one in different.values():
            assert 0 < predict(one, request.donors).step_seconds < math.inf
            assignments.append((devices, one))
    return Prepared(job.case, wanted, repeatable, assignments, origin_of(graph, unruled))


def origin_of(graph: Graph, unruled: Sequence[Op]) -> str:
    """Where the least known rule of a program comes from."""
    if unruled:
        return "replicated"
    found = {"registry"}
    for op, _ in graph.walk():
        if not op.bodies and op.results:
            avals = [aval_of(atom) for atom in op.operands], [aval_of(atom) for atom in op.results]
            found.add(rule_for(op.primitive, *avals, op.params)[1])
    return "shardy" if "shardy" in found else "registry"


def most_split(priced: Priced) -> Assignment:
    """Every decision split as far as it can be; which way is drawn."""
    drawn = random.Random(0)
    picks = []
    for strategies in priced.strategies:
        counts = [shards(strategy, priced.cost.axis_sizes) for strategy in strategies]
        picks.append(drawn.choice([index for index, count in enumerate(counts) if count == max(counts)]))
    return Assignment(priced, (*picks, 0))


def run(cases: Sequence[Prepared]) -> list[str]:
    """All of them as one program for each mesh; what is wrong with each, empty where nothing is."""
    messages = [""] * len(cases)
    for mesh in dict.fromkeys(mesh for case in cases for mesh, _ in case.assignments):
        jobs = [
            (index, assignment) for index, case in enumerate(cases) for on, assignment in case.assignments if on == mesh
        ]
        functions = [emit(assignment, mesh) for _, assignment in jobs]
        shardings = [
            [NamedSharding(mesh, to_spec(one.home(value))) for value in one.priced.graph.body.inputs] for _, one in jobs
        ]
        together = jax.jit(
            lambda each, functions=functions: [one(*flat) for one, flat in zip(functions, each, strict=True)],
            in_shardings=(shardings,),
            keep_unused=True,
        )
        args = [jax.tree.leaves(cases[index].case.args) for index, _ in jobs]
        compiled = together.lower(args).compile()
        for (index, assignment), found in zip(jobs, compiled(jax.device_put(args, shardings)), strict=True):
            wrong = differences(found, cases[index].wanted)
            if wrong:
                wrong = differences(found, *op_by_op(cases[index].case.fn, cases[index].case.args))
            if wrong and (cases[index].repeatable or "off" not in wrong[0]):
                messages[index] = f"{wrong[0]} on {dict(mesh.shape)} by {_described(assignment)}"
    return messages


def _described(assignment: Assignment) -> str:
    nodes = enumerate(assignment.priced.decisions.nodes)
    return ", ".join(f"{node.name} {assignment.strategy(index).axes}" for index, node in nodes)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
