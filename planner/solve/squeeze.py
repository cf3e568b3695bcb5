"""Closes in on a model's optimum from both sides until they meet.

Each round: presolve; eliminate exactly if the tables are small enough; else raise the dual bound, with a search for
better assignments beside it, until little more comes of it; then remove every strategy and every pair of strategies
that can only be in assignments worse than the best one known. The costs that go into the next round are the
reparametrised ones, so nothing that was learned is lost. If few assignments lie between the bound and the best one
known, they are gone through by elimination. What rounds cannot close goes to CP-SAT if it is small enough; in what is
too large for that, the search goes on for as long as there is time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import networkx as nx
import numpy as np

from planner.problem import IntArray
from planner.solve import ilp
from planner.solve.clock import Clock
from planner.solve.eliminate import SOON_ENTRIES, eliminate, fold_chains
from planner.solve.explore import Explorer
from planner.solve.known import Known, Outcome
from planner.solve.model import Model, Offer, Reduction, Report
from planner.solve.narrow import eliminate_below
from planner.solve.presolve import shrink
from planner.solve.rows import Impossible

METHODS = ("presolve", "elimination", "dual", "cp-sat", "search")
"""What can close a gap or come last, in the order in which they are tried."""

ROUND_SHRINKS = 0.85
"""A new round starts when at most this part of the strategies is left."""

NEAR = (0.0625, 0.25, 1.0)
"""Cutoffs at which elimination is tried: these parts of the gap above the bound."""

FREE_STRATEGIES = 20_000
"""The largest model whose optimum without its limit is looked for: a second for presolve."""


def close_gap(
    model: Model, start: IntArray | None, cutoff: float, offer: Offer, report: Report, clock: Clock, seed: int
) -> Outcome:
    """The best assignment of a presolved model that fits, and a bound on all of them.

    Args:
        start: an assignment to begin with, or None; it need not fit.
        cutoff: only assignments below this cost are looked for; `inf` for any.
        offer: is handed each better assignment when it is found.
        report: is told each better bound.
    """
    known = Known(model, cutoff, offer, report)
    if start is not None:
        known.take(start)
    try:
        method = _rounds(known, clock, seed)
    except Impossible:
        known.lower_bound, method = math.inf, "presolve"
    return known.outcome(method)


def _rounds(known: Known, clock: Clock, seed: int) -> str:
    """Rounds, then what suits what they leave; returns what came last."""
    explorer = Explorer(known, seed)
    model, shrinking = known.model, True
    while shrinking:
        if clock.expired or known.closed:
            return "presolve"
        model = known.reduce(fold_chains(model))
        if _eliminated(known, eliminate(model, SOON_ENTRIES)):
            return "elimination"
        dual = explorer.raise_bound(model, ROUND_SHRINKS * model.strategies, clock)
        if clock.expired or known.closed:
            return "dual"
        pruned = known.reduce(shrink(dual.reparametrised(known.prune_above), clock, dual.possible))
        if _eliminated_near_the_bound(known, pruned, clock):
            return "elimination"
        shrinking = pruned.strategies <= ROUND_SHRINKS * model.strategies
        model = pruned
    if clock.expired:
        return "dual"
    if _eliminated(known, eliminate(model)):
        return "elimination"
    if ilp.is_small(model):
        _program(known, model, clock, seed)
        return "cp-sat"
    explorer.search_on(clock)
    return "search"


def _eliminated(known: Known, reduction: Reduction | None) -> bool:
    """Takes the optimum, if elimination came down to that."""
    if reduction is None:
        return False
    known.reduce(reduction)
    known.raise_bound(reduction.model.offset)
    known.take(np.zeros(0, dtype=np.int64))
    return True


def _eliminated_near_the_bound(known: Known, model: Model, clock: Clock) -> bool:
    """Takes the optimum if it is so near to the bound that little else is; at least raises the bound.

    The best that is known may be far off, so it is not the first cutoff.
    """
    for part in NEAR:
        cutoff = known.lower_bound + part * (known.prune_above - known.lower_bound)
        if not math.isfinite(cutoff):
            return False
        try:
            reduction = eliminate_below(model, cutoff, clock)
        except Impossible:
            known.raise_bound(cutoff)
            continue
        return _eliminated(known, reduction)
    raise Impossible


def _program(known: Known, model: Model, clock: Clock, seed: int) -> None:
    outcome = ilp.cheapest(model, known.near(), known.prune_above, known.lower_bound, known.take, clock, seed)
    known.raise_bound(outcome.lower_bound)
    if outcome.picks is not None:
        known.take(outcome.picks)


def cheapest_without_limit(model: Model, clock: Clock) -> Outcome | None:
    """The optimum of a presolved model without its limit, where elimination finds it soon.

    Raises:
        Impossible: no assignment has finite cost.
    """
    if model.strategies > FREE_STRATEGIES:
        return None
    reduction = shrink(model.without_limit(), clock)
    folded = fold_chains(reduction.model)
    whole = eliminate(folded.model)
    if whole is None:
        return None
    picks = reduction.lift(folded.lift(whole.lift(np.zeros(0, dtype=np.int64))))
    return Outcome(picks, model.cost(picks), whole.model.offset, "elimination")


def close_gap_apart(model: Model, start: IntArray | None, offer: Offer, clock: Clock, seed: int) -> Outcome:
    """As `close_gap`, for a model without rows, each connected part by itself.

    Raises:
        Impossible: no assignment has finite cost.
    """
    reduction = shrink(model, clock)
    cheapest = np.array([costs.argmin() for costs in reduction.model.costs], dtype=np.int64)
    picks = cheapest if start is None else reduction.project(start)
    if clock.expired:
        picks = reduction.lift(picks)
        return Outcome(picks, model.cost(picks), model.trivial_bound(), "start")
    lower_bound = reduction.model.offset
    methods = {"presolve"}
    try:
        for nodes, part in _parts(reduction.model):
            outcome = close_gap(part, picks[nodes], math.inf, _unheard, _unheard, clock, seed)
            lower_bound += outcome.lower_bound
            picks[nodes] = picks[nodes] if outcome.picks is None else outcome.picks
            methods.add(outcome.method)
    finally:  # Ctrl-C keeps the parts that are done
        picks = reduction.lift(picks)
        offer(picks)
    return Outcome(picks, model.cost(picks), lower_bound, max(methods, key=METHODS.index))


def _unheard(_: object) -> None:
    """Of a part, only what comes in the end counts."""


def _parts(model: Model) -> Iterator[tuple[list[int], Model]]:
    """The nodes of each connected part, and the part as a model of its own."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(model.costs)))
    graph.add_edges_from(model.pairs)
    for members in nx.connected_components(graph):
        nodes = sorted(members)
        index = {node: new for new, node in enumerate(nodes)}
        pairs = {(index[i], index[j]): model.pairs[i, j] for i in nodes for j in sorted(graph[i]) if i < j}
        costs = tuple(model.costs[node] for node in nodes)
        loads = tuple(model.loads[node] for node in nodes)
        yield nodes, replace(model, costs=costs, pairs=pairs, loads=loads, offset=0.0)
