"""Seconds per collective, by the α-β model, over the levels of links that a group spans.

`nbytes` is, everywhere, the size per device of the LARGER side of the collective: of an all-gather its
result, of a reduce-scatter its input, of the others their buffer. It may be an array; the answer then is one
too.

With V = nbytes, and levels i = 1 (innermost) to k of n_i devices with bandwidth W_i and latency α_i per hop:

- all-gather, reduce-scatter: in rings. Level i moves only the share of V that the levels inside it have not
  taken, s_i = 1 / (n_1 ⋯ n_{i-1}), so it needs V s_i (n_i - 1)/n_i / W_i. Runtimes send chunks through all
  levels at once, hence the slowest level counts, not the sum. (NCCL's all-reduce over 4 hosts of 8 H200
  reaches 365 GB/s of bus bandwidth; by this formula it is 400, by the sum of the levels 221.)
- all-reduce: one of each, or (where that starts up faster) a double binary tree, 2 V s_i / W_i in about log2
  n_i hops.
- all-to-all: each level exchanges the whole buffer, again all at once.
- collective-permute: the buffer once over the slowest level.

A ring through all levels makes (n_i - 1) n_{i+1} ⋯ n_k hops on level i. Sources: Thakur, Rabenseifner, Gropp
(2005) for rings; the scaling book, "Sharded matrices", for tori; NCCL src/graph/tuning.cc for latencies of
rings and trees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from costmodel.levels import Level

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def collective_seconds(kind: str, levels: Sequence[Level], nbytes: ArrayLike) -> np.ndarray:
    """Seconds of one collective over a group that spans the levels.

    >>> line = Level(4, 1e9, 1e9, 0.75e-9, 1e-6, 3, 2, 0.0)
    >>> float(collective_seconds("all-gather", [line], 1e9)).__round__(6)
    0.750003

    Raises:
        ValueError: the kind is none of `KINDS`.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown collective {kind!r}; known are {', '.join(KINDS)}")
    if not levels:
        return np.zeros_like(np.asarray(nbytes, dtype=float))
    volume = np.asarray(nbytes, dtype=float)
    start = max(level.start_seconds for level in levels)
    if kind == "all-reduce":
        ring = 2 * (_ring_hop_seconds(levels) + volume * _ring_seconds_per_byte(levels))
        tree = 2 * (_tree_hop_seconds(levels) + volume * _tree_seconds_per_byte(levels))
        return start + np.minimum(ring, tree)
    if kind == "all-to-all":
        return (
            start
            + _tree_hop_seconds(levels)
            + volume * max(level.exchange_seconds_per_byte for level in levels)
        )
    if kind == "collective-permute":
        hop = max(level.hop_seconds for level in levels)
        return start + hop + volume / min(level.permute_bytes_per_second for level in levels)
    return start + _ring_hop_seconds(levels) + volume * _ring_seconds_per_byte(levels)


def _share(levels: Sequence[Level], place: int) -> float:
    """The part of the whole that the levels inside leave to the level at `place`."""
    return 1 / math.prod(level.size for level in levels[:place])


def _ring_seconds_per_byte(levels: Sequence[Level]) -> float:
    return max(
        _share(levels, place) * (level.size - 1) / level.size / level.gather_bytes_per_second
        for place, level in enumerate(levels)
    )


def _tree_seconds_per_byte(levels: Sequence[Level]) -> float:
    return max(_share(levels, place) / level.gather_bytes_per_second for place, level in enumerate(levels))


def _ring_hop_seconds(levels: Sequence[Level]) -> float:
    rounds = (math.prod(outer.size for outer in levels[place + 1 :]) for place in range(len(levels)))
    return sum(
        count * level.pass_hops * level.hop_seconds for count, level in zip(rounds, levels, strict=True)
    )


def _tree_hop_seconds(levels: Sequence[Level]) -> float:
    return sum(level.tree_hops * level.hop_seconds for level in levels)
