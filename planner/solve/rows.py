"""Memory in rows: which of them can bind, and what can never fit.

What all strategies of a node need goes into the base, so that what is left of the limit is the room for choices.

- A row that stays within the limit even if every node takes its largest strategy goes.
- A row goes when another one has at least as much alive, whatever is picked: when it has so much more in base that no
  choice of the nodes that differ between the two makes up for it.
- A strategy is impossible that needs more than the room in some row, and so are two of different nodes that do so
  together. Where memory binds, that is what makes the relaxation of the bound tight.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.problem import FloatArray, IntArray
from planner.solve.model import Load, Model

NOISE = 1e-12
"""Relative to the limit: differences below are rounding, where bytes are no whole numbers."""


class Impossible(Exception):
    """No assignment has finite cost, or none keeps within the limit."""


def disjoint(load: Load) -> Load:
    """The same load on spans in ascending order that do not overlap."""
    spans, usage = load.spans, load.usage
    if (spans[1:, 0] >= spans[:-1, 1]).all():
        return load
    cuts = np.unique(spans)
    change = np.zeros((cuts.size, usage.shape[1]))
    np.add.at(change, np.searchsorted(cuts, spans[:, 0]), usage)
    np.add.at(change, np.searchsorted(cuts, spans[:, 1]), -usage)
    merged = np.cumsum(change, axis=0)[:-1]
    used = merged.any(axis=1)
    return Load(np.stack([cuts[:-1], cuts[1:]], axis=1)[used], merged[used])


def least_base(base: FloatArray, loads: list[Load]) -> FloatArray:
    """Bytes alive in each row if every node needs as little there as any of its strategies."""
    change = np.zeros(base.size + 1)
    for load in loads:
        least = load.usage.min(axis=1)
        np.add.at(change, load.spans[:, 0], least)
        np.add.at(change, load.spans[:, 1], -least)
    return base + np.cumsum(change)[:-1]


class Room:
    """What the limit leaves for choices, in every row.

    Raises:
        Impossible: a row is above the limit with the least that each node needs.
    """

    def __init__(self, base: FloatArray, loads: list[Load], limit: float):
        room = (1 + NOISE) * limit - least_base(base, loads)
        if room.size and room.min() < 0:
            raise Impossible
        # least[k][r] is the least room in the rows from r to before r + 2 ** k
        self._least = [room]
        while 2 ** len(self._least) <= room.size:
            half = 2 ** (len(self._least) - 1)
            self._least.append(np.minimum(self._least[-1][:-half], self._least[-1][half:]))

    def least(self, first: int, last: int) -> float:
        """The least in the rows from first to before last."""
        power = (last - first).bit_length() - 1
        return float(min(self._least[power][first], self._least[power][last - 2**power]))

    def around(self, load: Load) -> float:
        """The least in any row of a load."""
        return min((self.least(int(first), int(last)) for first, last in load.spans), default=math.inf)

    def fits(self, load: Load) -> NDArray[np.bool_]:
        """Which strategies fit where all other nodes take their least."""
        fits = np.ones(load.usage.shape[1], dtype=bool)
        for (first, last), usage in zip(load.spans, load.usage, strict=True):
            fits &= usage - usage.min() <= self.least(int(first), int(last))
        return fits

    def fit_together(self, one: Load, other: Load) -> NDArray[np.bool_]:
        """Which strategies of two nodes do, as a matrix."""
        fits = np.ones((one.usage.shape[1], other.usage.shape[1]), dtype=bool)
        for (first, last), usage in zip(one.spans, one.usage - one.usage.min(axis=1)[:, None], strict=True):
            overlap = (other.spans[:, 0] < last) & (other.spans[:, 1] > first)
            for (start, end), more in zip(other.spans[overlap], other.usage[overlap], strict=True):
                room = self.least(int(max(first, start)), int(min(last, end)))
                more = more - more.min()
                if usage.max() + more.max() > room:
                    fits &= usage[:, None] + more <= room
        return fits


def with_binding_rows(model: Model) -> Model:
    """The model with only those rows where some assignment is above the limit, and what all strategies need as base.

    Raises:
        Impossible: a row is above the limit with the least that each node needs.
    """
    if not model.rows:
        return model
    loads = list(map(disjoint, model.loads))
    base = least_base(model.base, loads)
    if base.max() > (1 + NOISE) * model.limit:
        raise Impossible
    loads = list(map(_above_least, loads))
    change = np.zeros(base.size + 1)
    for load in loads:
        np.add.at(change, load.spans[:, 0], load.usage.max(axis=1))
        np.add.at(change, load.spans[:, 1], -load.usage.max(axis=1))
    most = base + np.cumsum(change)[:-1]
    # Without a limit the peak counts, and it is nowhere below the largest base.
    binds = most > (1 - NOISE) * model.limit if math.isfinite(model.limit) else most >= base.max()
    rows = np.flatnonzero(binds)
    loads = [_on_rows(load, rows) for load in loads]
    kept = _undominated(base[rows], loads)
    loads = [_on_rows(load, kept) for load in loads]
    return replace(model, loads=tuple(loads), base=base[rows][kept], prices=model.prices[rows][kept])


def _above_least(load: Load) -> Load:
    usage = load.usage - load.usage.min(axis=1)[:, None]
    varies = usage.any(axis=1)
    return Load(load.spans[varies], usage[varies])


def _on_rows(load: Load, rows: IntArray) -> Load:
    spans = np.searchsorted(rows, load.spans)
    there = spans[:, 0] < spans[:, 1]
    return Load(spans[there], load.usage[there])


def _undominated(base: FloatArray, loads: list[Load]) -> IntArray:
    """The rows that none of their neighbours among the rows kept makes superfluous.

    By how much one row can be above another is at most the sum of that over the rows between them.
    """
    if not base.size:
        return np.zeros(0, dtype=np.int64)
    above_next, above_last = _steps(base, loads)
    kept = [0]
    links: list[tuple[float, float]] = []  # between rows kept: by how much the one can be above the other, and back
    over, under = 0.0, 0.0  # of the row kept last over the present one, and back
    for row in range(1, base.size):
        over, under = over + above_next[row - 1], under + above_last[row - 1]
        while under > 0 and over <= 0 and links:
            kept.pop()
            before = links.pop()
            over, under = over + before[0], under + before[1]
        if under <= 0:
            continue
        if over <= 0:
            kept[-1] = row
        else:
            kept.append(row)
            links.append((over, under))
        over, under = 0.0, 0.0
    return np.array(kept, dtype=np.int64)


def _steps(base: FloatArray, loads: list[Load]) -> tuple[FloatArray, FloatArray]:
    """For each row but the last, by how much it can be above the next, and the next above it, at most."""
    falls, rises = np.zeros(base.size + 1), np.zeros(base.size + 1)
    for load in loads:
        spans, usage = load.spans, load.usage
        if not spans.size:
            continue
        follows = np.concatenate([[False], spans[1:, 0] == spans[:-1, 1]])
        before = np.where(follows[:, None], np.roll(usage, 1, axis=0), 0.0)
        np.add.at(falls, spans[:, 0], (before - usage).max(axis=1))
        np.add.at(rises, spans[:, 0], (usage - before).max(axis=1))
        ends = ~np.roll(follows, -1)
        np.add.at(falls, spans[ends, 1], usage[ends].max(axis=1))
        np.add.at(rises, spans[ends, 1], -usage[ends].min(axis=1))
    step = np.diff(base)
    return falls[1:-1] - step, rises[1:-1] + step
