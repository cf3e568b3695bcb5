"""Bound and search side by side, each on a core of its own.

They work in bursts of counted work, and tell each other what they found in between: so what comes of it does not depend
on which of them is faster.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from planner.problem import FloatArray, IntArray
from planner.solve.bound import Dual
from planner.solve.clock import WORK_PER_SECOND, Clock
from planner.solve.flat import Flat
from planner.solve.known import Known
from planner.solve.model import Model
from planner.solve.rows import Impossible
from planner.solve.search import Search

FIRST_PASSES = 8
"""Passes of the dual in the first burst: soon enough, something is known."""

GROWTH = 1.3
"""What the work of a burst is multiplied by after each: ever less of the time goes into what comes between."""

BURST_SECONDS = 0.25
"""The longest burst: this often do they hear of each other, and the user's Ctrl-C is heard."""

LAST_PART, LEAST_SECONDS = 0.1, 0.005
"""No burst takes more than about this part of the time left, or than this if that is even less."""


class Explorer:
    """Raises bounds and searches.

    The searches stay on the first model that a bound was raised for: later ones are smaller, and have fewer ways
    through them.
    """

    def __init__(self, known: Known, seed: int):
        self.known = known
        self.seed = seed
        self.level = 0
        self.flat: Flat | None = None
        self.searches: list[Search] = []

    def raise_bound(self, model: Model, enough: float, clock: Clock) -> Dual:
        """The dual of a model, raised until that closes the gap or little more comes of it, with a search beside it.

        Args:
            enough: so few strategies left are worth a smaller model.
        """
        flat = Flat.from_model(model)
        dual = Dual(model, flat)
        dual.ascend(1, self.known.prune_above, clock)
        self._hear(dual)
        if dual.picks is not None and self.flat is None:
            self.level, self.flat = len(self.known.reductions), flat
            self._begin(dual.picks, dual.prices)
        work = 2.0 * FIRST_PASSES * flat.work
        while not (clock.expired or self.known.closed or dual.stalled(self.known.ceiling) or dual.left <= enough):
            self._burst(dual, _fitted(work, clock), clock)
            work *= GROWTH
        return dual

    def search_on(self, clock: Clock) -> None:
        """Two searches, until the time is up."""
        self._begin(self.searches[0].picks, self.searches[0].prices)
        while not (clock.expired or self.known.closed):
            work = _fitted(math.inf, clock)
            clock.work(max(at_once(*(functools.partial(search.run, work) for search in self.searches))))
            self._take_found()

    def _begin(self, picks: IntArray, prices: FloatArray) -> None:
        """Another search, from picks or the best assignment, whichever is better at these prices."""
        assert self.flat is not None, "a search goes on the model that a bound was raised for"
        search = Search(self.flat, self.known.model.limit, picks, prices, self.seed + len(self.searches))
        start = self.known.near(self.level)
        if start is not None:
            search.run(0.0, start, prices)
        self.searches.append(search)

    def _burst(self, dual: Dual, work: float, clock: Clock) -> None:
        passes = max(1, round(work / (2.0 * dual.flat.work or 1.0)))
        hint = (dual.picks, dual.prices) if dual.flat is self.flat else ()
        climbed, searched = at_once(
            functools.partial(dual.ascend, passes, self.known.prune_above, clock),
            functools.partial(self.searches[0].run, work, *hint),
        )
        clock.work(max(0.0, searched - climbed))
        self._hear(dual)
        assert dual.picks is not None, "the dual went over the model before"
        self.known.take(dual.picks)
        self._take_found()

    def _hear(self, dual: Dual) -> None:
        self.known.raise_bound(dual.lower_bound)
        if self.known.lower_bound > self.known.prune_above:
            raise Impossible

    def _take_found(self) -> None:
        for search in self.searches:
            if search.best is not None and search.best_cost < self.known.cost:
                self.known.take(search.best, self.level)


def at_once(first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
    """What both return, the second done in a thread of its own; waits for it whatever happens."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        other = thread.submit(second)
        return first(), other.result()


def _fitted(work: float, clock: Clock) -> float:
    """So much work, or less where little time is left, but not ever less."""
    return min(work, WORK_PER_SECOND * max(LEAST_SECONDS, min(BURST_SECONDS, LAST_PART * clock.left_seconds)))
