"""What is known of one model while it is being solved."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.problem import IntArray
from planner.solve.model import Model, Offer, Reduction, Report

TOLERANCE = 1e-9
"""Relative: a bound this near to the cost proves it. Sums of some thousand floats differ by less in another order."""

ROUNDING = 1e-12
"""Relative: what the sums of a reparametrisation may be wrong by."""

GRAINS = 0.99
"""A little less than one, for rounding: a bound less than so many grains below the cost proves it."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What is known in the end.

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


class Known:
    """The best of a model so far, from both sides, and the way back to it from smaller models.

    Attributes:
        cutoff: only assignments below this cost are looked for.
        reductions: each made a smaller model of the last one.
    """

    def __init__(self, model: Model, cutoff: float, offer: Offer, report: Report):
        self.model = model
        self.offer = offer
        self.report = report
        self.picks: IntArray | None = None
        self.cost = math.inf
        self.cutoff = cutoff
        self.lower_bound = model.trivial_bound()
        self.dearest = model.dearest()
        self.reductions: list[Reduction] = []

    def reduce(self, reduction: Reduction) -> Model:
        self.reductions.append(reduction)
        return reduction.model

    def take(self, picks: IntArray, level: int | None = None) -> None:
        """Considers an assignment of the model after so many reductions, or after all."""
        for reduction in reversed(self.reductions[:level]):
            picks = reduction.lift(picks)
        cost = self.model.cost(picks)
        if cost < self.cost and self.model.excess(picks) <= 0:
            self.picks, self.cost = picks, cost
            self.cutoff = min(self.cutoff, cost)
            self.offer(picks)

    def raise_bound(self, lower_bound: float) -> None:
        if lower_bound > self.lower_bound:
            self.lower_bound = lower_bound
            self.report(self.proven)

    def near(self, level: int | None = None) -> IntArray | None:
        """The best assignment, or one near it, of the model after so many reductions, or after all."""
        picks = self.picks
        if picks is not None:
            for reduction in self.reductions[:level]:
                picks = reduction.project(picks)
        return picks

    @property
    def ceiling(self) -> float:
        """No assignment that is still looked for costs more: the cutoff, or what the dearest choices add up to."""
        return min(self.cutoff, self.dearest)

    @property
    def prune_above(self) -> float:
        """What costs more need not be looked at: a grain less than the cutoff, with a little more for rounding."""
        if self.cutoff > self.dearest or not self.model.grain:
            return self.ceiling + TOLERANCE * abs(self.ceiling)
        return self.cutoff - GRAINS * self.model.grain + ROUNDING * abs(self.cutoff)

    @property
    def closed(self) -> bool:
        """Whether the bound meets the cutoff, or says that there is nothing below it."""
        return self.lower_bound == math.inf or is_closed(self.cutoff, self.lower_bound, self.model.grain)

    @property
    def proven(self) -> float:
        """A bound on everything: what was pruned costs at least the cutoff, so one on the rest is good up to there.

        Where the two are less than a grain apart it is the cutoff.
        """
        return self.cutoff if self.closed else self.lower_bound

    def outcome(self, method: str) -> Outcome:
        return Outcome(self.picks, self.cost, self.proven, method)


def is_closed(cost: float, lower_bound: float, grain: float) -> bool:
    """Whether nothing can cost less, given that costs differ by multiples of the grain."""
    if not math.isfinite(cost):
        return False
    return cost - lower_bound <= (GRAINS * grain or TOLERANCE * max(abs(cost), abs(lower_bound)))
