"""Ops that XLA's CPU compiler makes in several steps, each by kernels of its own."""

from __future__ import annotations

import math

from planner.graph import Op
from planner.traits import Traits

CUMULATIVE = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})

STAGED = CUMULATIVE | {"random_bits"}
"""Ops that may have more steps than one."""

WINDOW = 16
"""How many elements a window of a cumulative op has; a row that is no longer is worked through at once."""

COUNT_BYTES = 4
"""Of each half of the 64-bit number by which threefry makes the bits of an element."""

LAST = Traits(loops=True, takes=True)
"""The last step: each element from those of the step before, in the loop of a reader."""

Shapes = tuple[tuple[int, ...], ...]


def stages(op: Op, shape: tuple[int, ...]) -> list[Shapes]:
    """The arrays that a device makes on the way to an op's result: for each step but the last, their shapes.

    A cumulative op goes by way of windows (reduce_window_rewriter.cc in openxla/xla): where whole ones do not fit there
    is a padded copy of the operand first, then all windows together with what they come to. Random bits are counted and
    then scrambled, both in two halves (threefry of 2 x 32 bits, a loop of which no round is in place).

    Args:
        shape: of the result, on one device; arrays of another type have as many elements as take their bytes.
    """
    if op.name == "random_bits":
        half = (-(-math.prod(shape) * COUNT_BYTES // op.results[0].itemsize),)
        return [(half, half)] * 2
    if op.name not in CUMULATIVE or shape[axis := op.params["axis"]] <= WINDOW:
        return []
    count = -(-shape[axis] // WINDOW)
    padded, made = ((*shape[:axis], count * size, *shape[axis + 1 :]) for size in (WINDOW, WINDOW + 1))
    return [(padded,), (made,)] if padded != shape else [(made,)]


def counted(op: Op, shape: tuple[int, ...]) -> Shapes:
    """What is made for an op of a loop before the loop, as it is the same in all rounds: what random bits count by."""
    return stages(op, shape)[0] if op.name == "random_bits" else ()
