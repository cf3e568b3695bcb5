"""Local search over neighbourhoods: all nodes but some stay as they are, and those are chosen anew, exactly.

For models that are too large to be solved in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner.problem import IntArray
from planner.solve import ilp
from planner.solve.clock import Clock
from planner.solve.eliminate import eliminate, fold_chains
from planner.solve.model import Model, Offer
from planner.solve.presolve import Impossible, shrink

FIRST_SIZE = 8
"""Nodes that are free in the first neighbourhoods."""

GROWTH = 1.05
"""What the size is multiplied by after a neighbourhood held nothing better."""

TIME = 0.1
"""The part of the time left that one neighbourhood may take."""


def search_neighbourhoods(model: Model, start: IntArray, offer: Offer, clock: Clock, seed: int) -> None:
    """Improves an assignment that fits, until the time is up or all nodes at once hold nothing better.

    Args:
        offer: is handed each better assignment when it is found.
    """
    random = np.random.default_rng(seed)
    near: list[list[int]] = [[] for _ in model.costs]
    for i, j in model.pairs:
        near[i].append(j)
        near[j].append(i)
    picks, cost, size = start, model.cost(start), float(FIRST_SIZE)
    while not clock.expired and size < len(picks):
        found = _best_around(model, picks, _some(near, int(size), random), clock.part(TIME))
        if found is not None and model.cost(found) < cost and model.excess(found) <= 0:
            picks, cost = found, model.cost(found)
            offer(picks)
        else:
            size *= GROWTH


def _some(near: Sequence[Sequence[int]], size: int, random: np.random.Generator) -> set[int]:
    """Connected nodes around a random one; from elsewhere too when its part is too small."""
    chosen: set[int] = set()
    border: list[int] = []
    while len(chosen) < size:
        node = border.pop(int(random.integers(len(border)))) if border else int(random.integers(len(near)))
        if node not in chosen:
            chosen.add(node)
            border.extend(near[node])
    return chosen


def _best_around(model: Model, picks: IntArray, free: set[int], clock: Clock) -> IntArray | None:
    """The best assignment that differs only in the free nodes, as far as the time allows."""
    possible = [np.full(costs.size, node in free) for node, costs in enumerate(model.costs)]
    for node, pick in enumerate(picks):
        possible[node][pick] = True
    try:
        presolved = shrink(model, clock, possible)
    except Impossible:
        return None
    if clock.expired:
        return None
    folded = fold_chains(presolved.model)
    whole = eliminate(folded.model)
    if whole is not None:
        left = whole.lift(np.zeros(0, dtype=np.int64))
    else:
        hint = folded.project(presolved.project(picks))
        outcome = ilp.cheapest(folded.model, hint, model.cost(picks), -math.inf, lambda found: None, clock, seed=0)
        if outcome.picks is None:
            return None
        left = outcome.picks
    return presolved.lift(folded.lift(left))
