"""The choice on one mesh: decisions, prices, the integer program, and the memory limit."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.assignment import Assignment
from planner.candidates import candidates
from planner.decisions import Decisions
from planner.errors import Infeasible, InvalidSpec, ReplicatedPrimitiveWarning, UnknownPrimitive
from planner.graph import Graph
from planner.limit import fit_memory
from planner.mesh import MeshChoice
from planner.predict import Prediction, predict
from planner.price import Priced, price
from planner.problem import Problem, tie
from planner.progress import Stages
from planner.solve import Progress, Solution, solve
from planner.specs import Request, constraints, mapped, pins
from planner.twins import merge, twins
from planner.uses import decide

CANDIDATE_SECONDS = 2.0
"""What each of the hand-written layouts may take to complete, time limit or not: there must be something to return."""

SIMPLER_MESH = 0.005
"""How much better, relatively, a mesh of more axes must be: differences below are within the model's own error."""

SIMPLER_LAYOUT = 0.05
"""How much better a layout must be than those that people write by hand, where devices share cores. Predictions are
less sure there, and of many layouts the one that is predicted best is the one whose prediction flatters it most: see
docs/costs.md."""

COSTS_PER_STEP = 1.25
"""What the ops and changes of layout cost at most, of the step predicted: where devices share cores, collectives are
timed into cold memory, and what they bring may lie in caches. Up to 1.21 of it in 125 programs on eight CPU devices."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The best assignment found on one mesh.

    Attributes:
        request: what was asked, of the arguments and results that the graph has.
        problem: what was solved, twin layers tied, without the memory limit.
        solution: its cost is what the problem says.
        candidates: the hand-written layouts' picks, by name.
        timings: seconds in "build" and "solve".
        progress: how the search went, without the memory limit.
    """

    mesh: MeshChoice
    request: Request
    problem: Problem
    assignment: Assignment
    solution: Solution
    status: str
    prediction: Prediction
    candidates: Mapping[str, tuple[int, ...]]
    timings: Mapping[str, float]
    progress: tuple[Progress, ...] = ()

    @property
    def strategy(self) -> str:
        """ "planned", or the name of the hand-written layout that this is for want of time to search."""
        names = (name for name, picks in self.candidates.items() if picks == self.assignment.picks)
        return next(names, "planned") if self.status == "baseline" else "planned"

    @property
    def priced(self) -> Priced:
        return self.assignment.priced

    def instead(self, picks: Sequence[int]) -> Choice:
        """The same with other picks."""
        assignment = Assignment(self.priced, tuple(picks))
        cost = self.problem.evaluate(picks).cost
        solution = replace(self.solution, picks=np.array(picks), cost=cost)
        prediction = predict(assignment, self.request.donors)
        return replace(self, assignment=assignment, solution=solution, status="given", prediction=prediction)


@dataclass(frozen=True)
class Limits:
    """What a search may use.

    Attributes:
        memory_bytes: per device; None for the device's own memory.
        seconds: for the search; with 0 the best of the hand-written layouts is taken.
        unknown: what to do about ops without a rule, "replicate" or "error".

    Raises:
        ValueError: one of them is nothing of the kind.
    """

    memory_bytes: float | None
    seconds: float
    unknown: str

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and not self.memory_bytes > 0:
            raise ValueError(f"memory_limit is {self.memory_bytes}; give bytes per device, or None")
        if not self.seconds >= 0:
            raise ValueError(f"time_limit is {self.seconds}; give seconds, or 0 for the best hand-written layout")
        if self.unknown not in ("replicate", "error"):
            raise ValueError(f"unknown is {self.unknown!r}; it is 'replicate' or 'error'")


def best_choice(graph: Graph, request: Request, meshes: Iterable[MeshChoice], limits: Limits, stages: Stages) -> Choice:
    """The best assignment on the best mesh.

    Raises:
        Infeasible: nothing fits the memory limit on any mesh.
        InvalidSpec: what the user asked for goes on none of them.
    """
    deadline = time.perf_counter() + limits.seconds
    best: Choice | None = None
    misfits: list[Infeasible | InvalidSpec] = []
    floors = []  # for each mesh, what no plan on it costs less than, as far as that is proven
    for mesh in meshes:
        stages.enter(f"mesh {dict(mesh.cost.axis_sizes)}")
        left = max(0.0, deadline - time.perf_counter())
        if best is not None and not left:
            floors.append(0.0)
            break
        to_beat = math.inf if best is None else (1 - SIMPLER_MESH) * best.solution.cost
        try:
            choice = choose(graph, request, mesh, replace(limits, seconds=left), to_beat)
        except (Infeasible, InvalidSpec) as error:
            misfits.append(error)
            floors.append(0.0 if isinstance(error, Infeasible) else math.inf)
            continue
        if choice is None:
            continue
        floors.append(choice.solution.lower_bound)
        if choice.solution.cost < to_beat:
            best = choice
    if best is None:
        raise _least_misfit(misfits)
    proven = min(floors) >= (1 - SIMPLER_MESH) * best.solution.cost
    return best if proven or best.status != "optimal" else replace(best, status="feasible")


def _least_misfit(misfits: Sequence[Infeasible | InvalidSpec]) -> Infeasible | InvalidSpec:
    """Why no mesh would do: the smallest limit that would, or what the user asked for that goes on no mesh."""
    infeasible = [error for error in misfits if isinstance(error, Infeasible)]
    return min(infeasible, key=lambda error: error.smallest_limit_bytes) if infeasible else misfits[-1]


def choose(
    graph: Graph, request: Request, mesh: MeshChoice, limits: Limits, to_beat: float = math.inf
) -> Choice | None:
    """The best assignment on one mesh; None if its ops alone take no less than the seconds to beat.

    Raises:
        InvalidSpec: what the user asked for does not go on this mesh.
        Infeasible: nothing fits the memory limit.
        UnknownPrimitive: an op has no rule, and that is to be an error.
    """
    begun = time.perf_counter()
    priced = build(graph, request, mesh)
    report_unruled(priced.decisions, limits.unknown)
    classes = (*twins(priced.decisions), -1)
    problem, merged = tie(priced.problem, classes), merge(priced.problem, classes)
    if sum(float(seconds.min()) for seconds in problem.costs) >= to_beat:
        return None
    built = time.perf_counter()
    starts = candidates(priced, merged, request.ties, CANDIDATE_SECONDS)
    memory = limits.memory_bytes or default_memory_limit(mesh)
    steps: list[Progress] = []
    solution = solve(
        merged.problem,
        starts=[*map(merged.project, starts.values())],
        time_limit=limits.seconds,
        progress=steps.append,
    )
    assert solution.picks is not None, "without a memory limit there is always an assignment"
    assignment = Assignment(priced, tuple(merged.lift(solution.picks).tolist()))
    cost = problem.evaluate(assignment.picks).cost
    lower_bound = min(cost, solution.lower_bound)
    solution = replace(solution, picks=np.array(assignment.picks), cost=cost, lower_bound=lower_bound)
    prediction = predict(assignment, request.donors)
    if prediction.peak_bytes > memory:
        left = limits.seconds - (time.perf_counter() - built)
        assignment, solution, prediction = fit_memory(
            assignment, solution, problem, starts, request.donors, memory, left
        )
    timings = {"build": built - begun, "solve": time.perf_counter() - built}
    status = _status(solution)
    choice = Choice(mesh, request, problem, assignment, solution, status, prediction, starts, timings, tuple(steps))
    return _no_worse_than_candidates(choice, memory)


def _no_worse_than_candidates(choice: Choice, limit: float) -> Choice:
    """The choice, or the best hand-written layout, if that is about as good: by prediction, which has copies that ops
    share, waiting, and memory that is far.

    A prediction takes long; layouts that cannot be good enough are not looked at.
    """
    best, priced = choice, choice.priced
    overhead = priced.cost.device.call.seconds(len(priced.graph.whole.body.inputs), 0, ())
    found_by_search = choice.assignment.picks not in choice.candidates.values()
    margin = SIMPLER_LAYOUT if found_by_search and priced.cost.waits else 0.0
    to_beat = (1 + margin) * choice.prediction.step_seconds
    for picks in choice.candidates.values():
        if picks == choice.assignment.picks:
            continue
        shared = Assignment(priced, picks).shared_seconds()
        costs = choice.problem.evaluate(picks).cost - shared + overhead
        if costs >= COSTS_PER_STEP * to_beat:
            continue
        other = choice.instead(picks)
        if other.prediction.peak_bytes <= limit and other.prediction.step_seconds < to_beat:
            to_beat = other.prediction.step_seconds
            as_good = other.solution.cost <= (1 + 1e-9) * choice.solution.cost
            best = replace(other, status=choice.status if as_good or choice.status == "baseline" else "feasible")
    return best


def default_memory_limit(mesh: MeshChoice) -> float:
    """The device's memory; CPU devices have none of their own, they share the host's with whatever else runs there."""
    return math.inf if mesh.cost.backend == "cpu" else mesh.cost.device.memory_bytes


def given(
    priced: Priced, picks: Sequence[int], request: Request, status: str, lower_bound: float, mesh: MeshChoice
) -> Choice:
    """A choice made earlier."""
    classes = (*twins(priced.decisions), -1)
    problem = tie(priced.problem, classes)
    assignment = Assignment(priced, tuple(picks))
    cost = problem.evaluate(picks).cost
    solution = Solution(np.array(picks), cost, lower_bound, "feasible", 0.0, "given")
    prediction = predict(assignment, request.donors)
    starts = candidates(priced, merge(priced.problem, classes), request.ties, CANDIDATE_SECONDS)
    timings = {"build": 0.0, "solve": 0.0}
    return Choice(mesh, request, problem, assignment, solution, status, prediction, starts, timings)


def report_unruled(decisions: Decisions, unknown: str) -> None:
    """Warns of the ops that run whole on every device for want of a rule, or refuses them.

    Raises:
        UnknownPrimitive: there is one, and `unknown` is "error".
    """
    for name, source in sorted({(op.name, op.source) for op in decisions.unruled}):
        message = (
            f"no sharding rule for {name} at {source or 'an unknown line'}: it runs whole on every device; teach one "
            f"with planner.register_rule"
        )
        if unknown == "error":
            raise UnknownPrimitive(message)
        warnings.warn(message, ReplicatedPrimitiveWarning, stacklevel=5)


def _status(solution: Solution) -> str:
    return "baseline" if solution.status == "start" else solution.status


def build(graph: Graph, request: Request, mesh: MeshChoice) -> Priced:
    """Decisions and their prices on one mesh."""
    sizes = mesh.cost.axis_sizes
    decisions = decide(
        graph,
        request.ties,
        pins(request.in_specs, graph.body.inputs, [value.name for value in graph.body.inputs], sizes),
        pins(request.out_specs, graph.body.outputs, request.out_paths, sizes),
        constraints(graph, sizes),
        mapped(graph, sizes),
    )
    return price(graph, decisions, mesh.cost, request.donors)
