"""Closes in on a model's optimum from both sides until they meet.

Each round: presolve; eliminate exactly if the tables are small enough; else raise the dual bound and look for better
assignments around what it decodes; then remove every strategy and every pair of strategies that can only be in
assignments worse than the best one known. The costs that go into the next round are the reparametrised ones, so nothing
that was learned is lost. What rounds cannot close goes to CP-SAT, and what is too large for that to local search over
neighbourhoods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import networkx as nx
import numpy as np

from planner.problem import IntArray
from planner.solve import ilp
from planner.solve.bound import Dual
from planner.solve.clock import Clock
from planner.solve.eliminate import eliminate, fold_chains
from planner.solve.model import Model, Offer, Reduction
from planner.solve.neighbourhoods import search_neighbourhoods
from planner.solve.presolve import Impossible, shrink
from planner.solve.search import Search

TOLERANCE = 1e-9
"""Relative: a bound this near to the cost proves it. Sums of some thousand floats differ by less in another order."""

METHODS = ("presolve", "elimination", "dual", "cp-sat", "neighbourhoods")
"""What can close a gap or come last, in the order in which they are tried."""

PASSES = 8
"""Passes of the dual between two looks for better assignments."""

ROUND_SHRINKS = 0.85
"""A new round starts when at most this part of the strategies is left."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What is known of a model.

    Attributes:
        picks: the best assignment that was found or given, or None.
        cost: its cost, or `inf`.
        lower_bound: on the cost of every assignment that fits.
        method: what closed the gap, or came last.
    """

    picks: IntArray | None
    cost: float
    lower_bound: float
    method: str


def is_closed(cost: float, lower_bound: float) -> bool:
    return math.isfinite(cost) and cost - lower_bound <= TOLERANCE * max(abs(cost), abs(lower_bound))


def close_gap(model: Model, start: IntArray | None, cutoff: float, offer: Offer, clock: Clock, seed: int) -> Outcome:
    """The best assignment of a presolved model that fits, and a bound on all of them.

    Args:
        start: an assignment to begin with, or None; it need not fit.
        cutoff: only assignments below this cost are looked for; `inf` for any.
        offer: is handed each better assignment when it is found.
    """
    state = _State(model, cutoff, offer)
    if start is not None:
        state.take(start)
    try:
        method = state.run(clock, seed)
    except Impossible:
        state.lower_bound, method = math.inf, "presolve"
    # What was pruned costs at least the cutoff: a bound on the rest is only good up to there.
    return Outcome(state.picks, state.cost, min(state.lower_bound, state.cutoff), method)


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
        return Outcome(picks, model.cost(picks), trivial_bound(model), "presolve")
    lower_bound = reduction.model.offset
    methods = {"presolve"}
    try:
        for nodes, part in _parts(reduction.model):
            outcome = close_gap(part, picks[nodes], math.inf, lambda found: None, clock, seed)
            lower_bound += outcome.lower_bound
            picks[nodes] = picks[nodes] if outcome.picks is None else outcome.picks
            methods.add(outcome.method)
    finally:  # Ctrl-C keeps the parts that are done
        picks = reduction.lift(picks)
        offer(picks)
    return Outcome(picks, model.cost(picks), lower_bound, max(methods, key=METHODS.index))


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


class _State:
    """The best of one model so far. The rounds work on smaller models; `reductions` lead back."""

    def __init__(self, model: Model, cutoff: float, offer: Offer):
        self.whole = model
        self.offer = offer
        self.picks: IntArray | None = None
        self.cost = math.inf
        self.cutoff = cutoff
        self.dearest = dearest(model)
        self.lower_bound = trivial_bound(model)
        self.reductions: list[Reduction] = []

    def take(self, picks: IntArray) -> None:
        """Considers an assignment of the whole model."""
        cost = self.whole.cost(picks)
        if cost < self.cost and self.whole.excess(picks) <= 0:
            self.picks, self.cost = picks, cost
            self.cutoff = min(self.cutoff, cost)
            self.offer(picks)

    def take_reduced(self, picks: IntArray) -> None:
        for reduction in reversed(self.reductions):
            picks = reduction.lift(picks)
        self.take(picks)

    def reduce(self, reduction: Reduction) -> Model:
        self.reductions.append(reduction)
        return reduction.model

    @property
    def ceiling(self) -> float:
        """No assignment that is still looked for costs more: the cutoff, or what the dearest choices add up to."""
        return min(self.cutoff, self.dearest)

    @property
    def prune_above(self) -> float:
        """A little more than the ceiling, for rounding."""
        return self.ceiling + TOLERANCE * abs(self.ceiling)

    @property
    def closed(self) -> bool:
        """Whether the bound meets the cutoff, or says that there is nothing below it."""
        return self.lower_bound == math.inf or is_closed(self.cutoff, self.lower_bound)

    def run(self, clock: Clock, seed: int) -> str:
        """Rounds, then CP-SAT on what is left; returns what came last."""
        model = self.whole
        shrinking = True
        while shrinking:
            if clock.expired or self.closed:
                return "presolve"
            model = self.reduce(fold_chains(model))
            if self.eliminated(model):
                return "elimination"
            dual = Dual(model)
            self.ascend(dual, clock)
            if clock.expired or self.closed:
                return "dual"
            pruned = self.reduce(shrink(dual.reparametrised(self.prune_above), clock, dual.possible))
            shrinking = pruned.strategies <= ROUND_SHRINKS * model.strategies
            model = pruned
        if clock.expired:
            return "dual"
        if self.eliminated(model):
            return "elimination"
        self.program(model, clock, seed)
        if clock.expired or self.closed:
            return "cp-sat"
        self.polish(model, clock, seed)
        return "neighbourhoods"

    def eliminated(self, model: Model) -> bool:
        """Solves the model exactly if its tables are small enough."""
        reduction = eliminate(model)
        if reduction is None:
            return False
        self.reduce(reduction)
        self.lower_bound = max(self.lower_bound, reduction.model.offset)
        self.take_reduced(np.zeros(0, dtype=np.int64))
        return True

    def ascend(self, dual: Dual, clock: Clock) -> None:
        """Raises the bound and takes what it decodes, until much can be pruned, the gap is closed or nothing moves."""
        search = Search(dual.model)
        while not self.closed and not dual.stalled(self.ceiling):
            picks = dual.ascend(PASSES, self.prune_above, clock)
            if picks is None:
                return
            self.lower_bound = max(self.lower_bound, dual.lower_bound)
            if self.lower_bound > self.prune_above:
                raise Impossible
            found = search.improve(picks, clock)
            if found is not None:
                self.take_reduced(found)
            if sum(int(possible.sum()) for possible in dual.possible) <= ROUND_SHRINKS * dual.model.strategies:
                return

    def program(self, model: Model, clock: Clock, seed: int) -> None:
        outcome = ilp.cheapest(
            model, self.near(model, clock), self.prune_above, self.lower_bound, self.take_reduced, clock, seed
        )
        self.lower_bound = max(self.lower_bound, outcome.lower_bound)
        if outcome.picks is not None:
            self.take_reduced(outcome.picks)

    def polish(self, model: Model, clock: Clock, seed: int) -> None:
        start = self.near(model, clock)
        if start is not None:
            search_neighbourhoods(model, start, self.take_reduced, clock, seed)

    def near(self, model: Model, clock: Clock) -> IntArray | None:
        """The best assignment as one of a reduced model, or one near it that fits."""
        if self.picks is None:
            return None
        picks = self.picks
        for reduction in self.reductions:
            picks = reduction.project(picks)
        return Search(model).improve(picks, clock)


def trivial_bound(model: Model) -> float:
    """Each part's own least."""
    nodes = sum(float(costs.min()) for costs in model.costs)
    return model.offset + nodes + sum(float(cost.min()) for cost in model.pairs.values())


def dearest(model: Model) -> float:
    """More than any possible assignment costs."""
    total = model.offset
    for part in (*model.costs, *model.pairs.values()):
        total += float(part[np.isfinite(part)].max(initial=0.0))
    return total
