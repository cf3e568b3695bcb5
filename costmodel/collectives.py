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
    volume = np.asarray(nbytes, dtype=float)
    if not levels:
        return np.zeros_like(volume)
    start = max(level.start_seconds for level in levels)
    match kind:
        case "all-reduce":
            return start + 2 * np.minimum(_ring_seconds(levels, volume), _tree_seconds(levels, volume))
        case "all-to-all":
            return start + _exchange_seconds(levels, volume)
        case "collective-permute":
            return start + _permute_seconds(levels, volume)
        case _:
            return start + _ring_seconds(levels, volume)


def _ring_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    """An all-gather or a reduce-scatter, each device hearing from the next in a ring through all levels."""
    rounds = (math.prod(outer.size for outer in levels[place + 1 :]) for place in range(len(levels)))
    hops = (level.pass_hops * level.hop_seconds for level in levels)
    seconds_per_byte = max(
        share * (level.size - 1) / level.size / level.gather_bytes_per_second
        for level, share in zip(levels, _shares(levels), strict=True)
    )
    return sum(map(math.prod, zip(rounds, hops, strict=True))) + volume * seconds_per_byte


def _tree_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    """One way through a double binary tree: to the roots, or back."""
    seconds_per_byte = max(
        share / level.gather_bytes_per_second for level, share in zip(levels, _shares(levels), strict=True)
    )
    return _tree_hop_seconds(levels) + volume * seconds_per_byte


def _exchange_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    return _tree_hop_seconds(levels) + volume * max(level.exchange_seconds_per_byte for level in levels)


def _permute_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    hop_seconds = max(level.hop_seconds for level in levels)
    return hop_seconds + volume / min(level.permute_bytes_per_second for level in levels)


def _tree_hop_seconds(levels: Sequence[Level]) -> float:
    return sum(level.tree_hops * level.hop_seconds for level in levels)


def _shares(levels: Sequence[Level]) -> list[float]:
    """For each level the part of the whole that the levels inside it leave to it."""
    return [1 / math.prod(inner.size for inner in levels[:place]) for place in range(len(levels))]
