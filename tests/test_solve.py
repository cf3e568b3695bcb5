"""The solver against brute force, in every mode; its promises on starts, bounds and time."""

from __future__ import annotations

import gc
import itertools
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from planner.problem import Edge, Problem, ProblemError, tie
from planner.solve import Progress, presolve, smallest_limit, solve
from planner.solve.bound import Dual
from planner.solve.clock import Clock
from planner.solve.eliminate import eliminate, fold_chains
from planner.solve.flat import Flat
from planner.solve.model import Load, Model
from planner.solve.presolve import shrink
from planner.solve.rows import Impossible
from planner.solve.search import Search
from tests.problems import brute_force, problems, random_problem

PUBLIC = Path(__file__).parents[2] / "shared" / "data" / "iopddl"

NO_LIMIT = Clock.of(math.inf)


def agrees_with_brute_force(problem: Problem) -> None:
    best = brute_force(problem)
    found = solve(problem, time_limit=20)
    if math.isinf(best.cost):
        assert found.status == "infeasible"
        assert found.picks is None
        assert found.lower_bound == math.inf
        return
    assert found.status == "optimal"
    assert found.picks is not None
    assert problem.evaluate(found.picks).feasible
    assert found.cost == problem.evaluate(found.picks).cost
    assert found.cost == pytest.approx(best.cost, rel=1e-6, abs=1e-9)
    assert found.lower_bound <= found.cost


@pytest.fixture
def no_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is folded or dominated, so that the dual bound has to do the work."""
    monkeypatch.setattr("planner.solve.eliminate.TABLE_ENTRIES", 1)
    monkeypatch.setattr("planner.solve.eliminate.CHAIN_ENTRIES", 0)
    monkeypatch.setattr("planner.solve.presolve.DOMINANCE_ENTRIES", 0)


@pytest.fixture
def only_narrow(monkeypatch: pytest.MonkeyPatch, no_elimination: None) -> None:
    """The dual gives up after one pass, so that elimination below the best known has to do the work."""
    monkeypatch.setattr("planner.solve.squeeze.ROUND_SHRINKS", -1.0)
    monkeypatch.setattr("planner.solve.bound.STALL_PASSES", 1)
    monkeypatch.setattr("planner.solve.bound.STALL", 1e300)


@pytest.fixture
def only_the_program(monkeypatch: pytest.MonkeyPatch, only_narrow: None) -> None:
    """As that, but CP-SAT has to."""
    monkeypatch.setattr("planner.solve.narrow.TABLE_CHOICES", -1)


@settings(deadline=None)
@given(problems())
def test_brute_force(problem: Problem) -> None:
    agrees_with_brute_force(problem)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(problems())
@example(random_problem(97005962, 2, 4, whole=True))  # whole costs, 17 at best, and a bound of 16.2: that proves it
def test_brute_force_by_the_dual(no_elimination: None, problem: Problem) -> None:
    agrees_with_brute_force(problem)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(problems())
def test_brute_force_by_cp_sat(only_the_program: None, problem: Problem) -> None:
    agrees_with_brute_force(problem)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(problems())
def test_brute_force_by_elimination_below_the_best_known(only_narrow: None, problem: Problem) -> None:
    agrees_with_brute_force(problem)


@settings(deadline=None)
@given(problems())
def test_smallest_limit_is_that_of_brute_force(problem: Problem) -> None:
    least = brute_force(problem).peak
    if math.isinf(least):
        with pytest.raises(ProblemError, match="no assignment has finite cost"):
            smallest_limit(problem)
        return
    limit, picks = smallest_limit(problem)
    found = problem.evaluate(picks)
    assert limit == least == found.peak_usage
    assert math.isfinite(found.cost)
    assert solve(replace(problem, usage_limit=limit)).status == "optimal"
    if limit >= 1:
        assert solve(replace(problem, usage_limit=limit - 1)).status == "infeasible"


def test_of_those_that_keep_the_smallest_limit_one_needs_little_elsewhere() -> None:
    usages = (np.array([5.0]), np.array([3.0, 1.0, 2.0]))
    problem = Problem((np.zeros(1), np.zeros(3)), usages, ((0, 2), (4, 6)), ())
    limit, picks = smallest_limit(problem)
    assert limit == 5.0
    assert picks.tolist() == [0, 1]


@settings(deadline=None)
@given(problems())
def test_a_reduction_keeps_the_optimum_and_the_cost_of_what_it_lifts(problem: Problem) -> None:
    model = Model.from_problem(problem)
    try:
        reduction = shrink(model, NO_LIMIT)
    except Impossible:
        assert math.isinf(brute_force(problem).cost)
        return
    folded = fold_chains(reduction.model)
    picks = np.array([int(costs.argmin()) for costs in folded.model.costs], dtype=np.int64)
    lifted = reduction.lift(folded.lift(picks))
    assert problem.evaluate(lifted).cost == pytest.approx(model.cost(lifted))
    if math.isinf(folded.model.cost(picks)):  # as impossible as it was, or two that never fit together
        assert math.isinf(model.cost(lifted)) or model.excess(lifted) > 0
        return
    assert model.cost(lifted) == pytest.approx(folded.model.cost(picks))
    if problem.usage_limit is not None:
        assert (problem.evaluate(lifted).peak_usage <= problem.usage_limit) == (folded.model.excess(picks) <= 0)


def test_merged_nodes_that_need_no_memory_are_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two times that overlap and hold nothing, nothing is left."""
    monkeypatch.setattr(presolve, "DOMINANCE_ENTRIES", 0)  # as if the node had too many strategies for that
    costs = (np.array([1.0, 2.0, 3.0]), np.array([4.0, 2.0, 5.0]))
    twice = Load(np.array([[0, 2], [1, 3]]), np.zeros((2, 3)))
    once = Load(np.array([[0, 3]]), np.array([[4.0, 9.0, 0.0]]))
    clash = {(0, 1): np.array([[0.0, 9.0, 9.0], [9.0, 0.0, 9.0], [9.0, 9.0, 0.0]])}
    model = Model(costs, clash, (twice, once), np.zeros(3), np.zeros(3), limit=5.0)
    reduction = shrink(model, NO_LIMIT)
    assert reduction.model.offset + sum(cost.min() for cost in reduction.model.costs) <= 5.0
    assert 1 not in reduction.lift(np.zeros(len(reduction.model.costs), dtype=np.int64))[1:], "it does not fit"


@settings(deadline=None)
@given(problems())
def test_the_dual_bounds_every_assignment_that_fits(problem: Problem) -> None:
    best = brute_force(problem).cost
    try:
        model = shrink(Model.from_problem(problem), NO_LIMIT).model
    except Impossible:
        return
    if not model.costs or math.isinf(best):
        return
    dual = Dual(model, Flat.from_model(model))
    dual.ascend(10, cutoff=best + 1e-9, clock=NO_LIMIT)
    assert dual.lower_bound <= best + 1e-9
    kept = shrink(dual.reparametrised(best + 1e-9), NO_LIMIT, dual.possible)
    whole = eliminate(kept.model)
    if whole is not None and not model.rows:
        assert whole.model.offset == pytest.approx(best)


def test_the_dual_of_a_chain_is_exact_after_one_pass() -> None:
    random = np.random.default_rng(3)
    costs = tuple(random.random(30) for _ in range(40))
    pairs = {(node, node + 1): random.random((30, 30)) for node in range(39)}
    problem = Problem(costs, costs, ((0, 1),) * 40, tuple(Edge(i, j, cost) for (i, j), cost in pairs.items()))
    model = Model.from_problem(problem)
    dual = Dual(model, Flat.from_model(model))
    dual.ascend(1, cutoff=math.inf, clock=NO_LIMIT)
    assert dual.picks is not None
    whole = eliminate(model)
    assert whole is not None
    assert dual.lower_bound == pytest.approx(whole.model.offset)
    assert model.cost(dual.picks) == pytest.approx(whole.model.offset)


@settings(deadline=None)
@given(problems())
def test_what_a_search_keeps_fits_and_costs_what_it_says(problem: Problem) -> None:
    try:
        reduction = shrink(Model.from_problem(problem), NO_LIMIT)
    except Impossible:
        return
    model = reduction.model
    if not model.costs:
        return
    search = Search(Flat.from_model(model), model.limit, np.zeros(len(model.costs), dtype=np.int64), model.prices, 0)
    search.run(1e5)
    if search.best is None:
        return
    found = problem.evaluate(reduction.lift(search.best))
    assert found.feasible
    assert found.cost == pytest.approx(model.offset + search.best_cost)
    assert found.cost >= brute_force(problem).cost - 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_the_result_is_never_worse_than_the_best_start(seed: int) -> None:
    problem = random_problem(seed, nodes=30, strategies=6)
    random = np.random.default_rng(seed)
    starts = [[int(random.integers(costs.size)) for costs in problem.costs] for _ in range(3)]
    start_costs = [one.cost for one in map(problem.evaluate, starts) if one.feasible]
    for time_limit in (0.0, 0.01, 5.0):
        found = solve(problem, starts=starts, time_limit=time_limit)
        assert found.cost <= min(start_costs, default=math.inf)
        assert found.lower_bound <= found.cost


def mesh_problem(side: int, strategies: int, seed: int = 0) -> Problem:
    """A grid, far from a tree, with costs that no strategy dominates and memory that binds."""
    random = np.random.default_rng(seed)
    at = np.arange(side * side).reshape(side, side)
    rows = zip(at[:, :-1].ravel(), at[:, 1:].ravel(), strict=True)
    columns = zip(at[:-1].ravel(), at[1:].ravel(), strict=True)
    usages = tuple(random.integers(1, 100, strategies).astype(float) for _ in range(at.size))
    costs = tuple(random.random(strategies) + 20.0 / usage for usage in usages)
    edges = tuple(Edge(int(i), int(j), random.random((strategies, strategies))) for i, j in (*rows, *columns))
    limit = sum(float(0.8 * usage.min() + 0.2 * usage.mean()) for usage in usages)
    return Problem(costs, usages, ((0, 1),) * at.size, edges, limit)


def test_without_time_the_best_start_comes_back_flagged() -> None:
    problem = mesh_problem(4, 5)
    lean = [int(usage.argmin()) for usage in problem.usages]
    heavy = [int(usage.argmax()) for usage in problem.usages]
    found = solve(problem, starts=[heavy, lean], time_limit=0)
    assert found.status == "start"
    assert found.picks is not None
    assert found.picks.tolist() == lean
    assert 0 < found.lower_bound < found.cost
    assert 0 < found.gap < 1
    nothing = solve(problem, starts=[heavy], time_limit=0)
    assert (nothing.status, nothing.picks, nothing.cost, nothing.gap) == ("unknown", None, math.inf, math.inf)


@pytest.mark.parametrize("time_limit", [0.2, 1.0])
def test_time_limits_are_kept(time_limit: float) -> None:
    problem = mesh_problem(20, 12)
    begun = time.process_time()
    found = solve(problem, time_limit=time_limit)
    assert time.process_time() - begun <= 2 * (1.05 * time_limit + 0.1)  # two workers; other processes do not count
    assert found.lower_bound <= found.cost


def test_progress_tells_of_ever_better_costs_and_bounds() -> None:
    told: list[Progress] = []
    found = solve(mesh_problem(5, 5), time_limit=10, progress=told.append)
    assert told
    for before, after in itertools.pairwise(told):
        assert after.cost <= before.cost
        assert after.lower_bound >= before.lower_bound
        assert after.seconds >= before.seconds
    assert told[-1].cost == found.cost


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What runs in a shell's background ignores interrupts from its start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.alone
@pytest.mark.usefixtures("interruptible")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # dropped by Python: see the next test
def test_an_interrupt_returns_the_best_so_far() -> None:
    problem = mesh_problem(20, 12)
    main = threading.main_thread().ident
    assert main is not None
    alarm = threading.Timer(0.7, signal.pthread_kill, [main, signal.SIGINT])
    alarm.start()
    begun = time.perf_counter()
    found = solve(problem, time_limit=60)
    alarm.cancel()
    assert time.perf_counter() - begun < 20
    assert found.status in {"feasible", "unknown"}
    assert found.lower_bound > 0


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_python_drops_stops_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: dropped.append(unraisable.exc_type))

    def interrupt(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            signal.raise_signal(signal.SIGINT)

    clock = Clock.of(60)
    with clock.stopped_by_interrupt():
        gc.callbacks.append(interrupt)
        gc.collect()
        gc.callbacks.remove(interrupt)
    assert dropped == [KeyboardInterrupt]
    assert clock.expired
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_search_only_improves() -> None:
    model = Model.from_problem(mesh_problem(6, 6))
    start = np.array([int(load.usage.argmin()) for load in model.loads])
    search = Search(Flat.from_model(model), model.limit, start, model.prices, seed=0)
    costs = []
    for _ in range(10):
        search.run(1e5)
        if search.best is not None:
            assert model.excess(search.best) <= 0
            costs.append(search.best_cost)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < model.cost(start)


def test_the_answer_is_the_same_for_the_same_work() -> None:
    problem = mesh_problem(12, 8)
    found = [solve(problem, time_limit=60, work_limit=0.3, seed=3) for _ in range(2)]
    assert found[0].seconds < 60
    assert found[0].picks is not None
    assert found[1].picks is not None
    assert found[0].picks.tolist() == found[1].picks.tolist()
    assert found[0].lower_bound == found[1].lower_bound


def test_ties_solve_as_brute_force_does() -> None:
    problem = random_problem(7, nodes=6, strategies=1)
    problem = replace(problem, usage_limit=None)
    assert solve(tie(problem, [0] * 6)).status == solve(problem).status
    for seed in range(20):
        twins = random_problem(seed, nodes=3, strategies=3)
        doubled = Problem(
            (*twins.costs, *twins.costs),
            (*twins.usages, *twins.usages),
            (*twins.intervals, *((start + 4, end + 5) for start, end in twins.intervals)),
            (*twins.edges, *(Edge(edge.tail + 3, edge.head + 3, edge.cost) for edge in twins.edges)),
            twins.usage_limit,
        )
        agrees_with_brute_force(tie(doubled, [0, 1, 2, 0, 1, 2]))


def test_a_large_tied_problem_is_proven_fast() -> None:
    """Forty layers of a chain with skips, 60 strategies over 25 layouts: what a written-out network looks like."""
    random = np.random.default_rng(0)
    layers, strategies = 40, 60
    layouts = [random.integers(0, 5, (2, strategies)) for _ in range(5)]
    costs = [random.random(strategies) for _ in range(5)]
    usages = [random.integers(1, 50, strategies).astype(float) for _ in range(5)]
    edges = []
    for node in range(1, 5 * layers):
        for back in (1, 5) if node >= 5 else (1,):
            made, wanted = layouts[(node - back) % 5], layouts[node % 5]
            reshard = 0.1 * np.abs(made[:, :, None] - wanted[:, None, :]).sum(axis=0)
            edges.append(Edge(node - back, node, reshard))
    problem = Problem(
        tuple(costs * layers),
        tuple(usages * layers),
        tuple((node, node + 6) for node in range(5 * layers)),
        tuple(edges),
    )
    tied = tie(problem, [node % 5 for node in range(5 * layers)])
    free = solve(problem, time_limit=30)
    assert free.status == "optimal"
    bound = solve(tied, time_limit=30)
    assert bound.status == "optimal"
    assert bound.cost >= free.cost - 1e-9
    assert bound.picks is not None
    limited = solve(replace(tied, usage_limit=0.8 * tied.evaluate(bound.picks).peak_usage), time_limit=30)
    assert limited.status == "optimal"
    assert limited.cost >= bound.cost


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the contest's instances are not here")
@pytest.mark.parametrize(("name", "optimum"), [("B", 532843), ("G", 217039)])
def test_public_instances_to_their_proven_optimum(name: str, optimum: int) -> None:
    found = solve(Problem.read(PUBLIC / f"{name}.json.gz"), time_limit=60)
    assert found.status == "optimal"
    assert found.cost == optimum
