"""Where to move the memory prices next: subgradient steps towards a target level.

The bound as a function of the prices is concave, and what the decoded assignment uses above the limit is nearly a
subgradient of it. Each step is Polyak's towards a level a little above the best bound so far; the level rises while
that works and comes down, and the prices return to the best ones, when it does not (variable target value method:
Sherali, Choi and Tuncbilek, 2000). The direction is averaged over steps, which stops it from going to and fro between
the few rows that bind (volume algorithm: Barahona and Anbil, 2000).
"""

from __future__ import annotations

import numpy as np

from planner.problem import FloatArray

FIRST_LEVEL = 0.05
"""Of the first bound: how far above it the first target is, unless half the gap is less."""

FRESH = 0.3
"""The part of the newest subgradient in the direction."""

GOOD_RISE = 0.2
"""A rise by this part of the way to the target counts as success."""

PATIENCE = 12
"""Steps without success before the target comes down."""

UP, DOWN = 1.2, 0.5
"""What the way to the target is multiplied by after success, and without."""


class PriceSteps:
    """Proposes prices; told the bound that each came to."""

    def __init__(self, prices: FloatArray):
        self.prices = prices
        self.best_prices = prices
        self.best = -np.inf
        self.reach = np.inf  # how far above the best bound the target is
        self.direction: FloatArray | None = None
        self.failures = 0

    def heard(self, bound: float, gap: float) -> bool:
        """Takes note of the bound at the last proposed prices; whether it is the best so far."""
        if not np.isfinite(self.best):
            self.reach = min(FIRST_LEVEL * abs(bound) or gap, gap / 2)
        if bound > self.best + GOOD_RISE * self.reach:
            self.failures = 0
            self.reach *= UP
        else:
            self.failures += 1
        improved = bound > self.best
        if improved:
            self.best, self.best_prices = bound, self.prices
        return improved

    def give_up(self) -> bool:
        """Whether to return to the best prices, with a lower target."""
        if self.failures < PATIENCE:
            return False
        self.failures = 0
        self.reach *= DOWN
        self.direction = None
        self.prices = self.best_prices
        return True

    def propose(self, over: FloatArray, bound: float) -> FloatArray:
        """The next prices, given the bytes above the limit in each row at the last."""
        mixed = over if self.direction is None else FRESH * over + (1 - FRESH) * self.direction
        self.direction = mixed
        uphill = np.where((mixed < 0) & (self.prices <= 0), 0.0, mixed)
        length = float(uphill @ uphill)
        if length:
            step = (self.best + self.reach - bound) / length
            self.prices = np.maximum(0.0, self.prices + step * uphill)
        return self.prices
