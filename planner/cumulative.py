"""Cumulative ops on CPUs: XLA makes them in two steps, by way of windows (reduce_window_rewriter.cc in openxla/xla)."""

from __future__ import annotations

from planner.fusion import Traits
from planner.graph import Op

CUMULATIVE = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})

WINDOW = 16
"""How many elements a window has; a row that is no longer is worked through at once."""

OF_WINDOWS = Traits(loops=True, takes=True)
"""The second step, that adds to each window what the windows before it came to."""


def windows(op: Op, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes of the arrays that a device makes on the way to a cumulative op's result.

    A padded copy of the operand, where whole windows do not fit, and the windows together with what they came to.

    Args:
        shape: of the result, on one device.
    """
    if op.name not in CUMULATIVE or shape[axis := op.params["axis"]] <= WINDOW:
        return []
    count = -(-shape[axis] // WINDOW)
    padded, made = ((*shape[:axis], count * size, *shape[axis + 1 :]) for size in (WINDOW, WINDOW + 1))
    return [padded, made] if padded != shape else [made]
