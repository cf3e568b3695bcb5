"""Seconds per collective, by the α-β model, over the levels of links that a group spans.

`nbytes` is, everywhere, the size per device of the LARGER side of the collective: of an all-gather its
result, of a reduce-scatter its input, of the others their buffer. It may be an array; the answer then is one
too.

With V = nbytes, and levels i = 1 (innermost) to k of n_i devices with bandwidth W_i and latency α_i per hop:

- all-gather, reduce-scatter: in rings. NCCL runs one ring through all n = n_1 ⋯ n_k devices, on as many
  channels as there are links in parallel: level i carries the share s_i = 1 / (n_1 ⋯ n_{i-1}) of
  V (n - 1)/n, and makes (n_i - 1) n_{i+1} ⋯ n_k hops. On a torus, and over a *staged* link, the levels inside
  finish first, and level i moves V s_i (n_i - 1)/n_i in n_i - 1 hops. Either way chunks are on all levels at
  once, hence the slowest level counts, not the sum. Besides, each device copies its own V/n to its place.
- all-reduce: one of each; or, where that is faster, a double binary tree, 2 V s_i / W_i (half of it over two)
  in about log2 n_i hops each way; or the switch itself adds, at a rate of its own (NVLink SHARP), two hops.
- all-to-all: each level exchanges the whole buffer, again all at once; messages go out one by one.
- broadcast: the buffer once through every level, split over the links in parallel.
- collective-permute: the buffer once over the slowest level.

Sources: Thakur, Rabenseifner, Gropp (2005) for rings; Sanders, Speck, Träff (2009) for the two trees; the
scaling book, "Sharded matrices", for tori; NCCL src/graph/tuning.cc for latencies, steps and what its rings
carry; docs/costs.md has how well all this fits what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from costmodel.levels import Level

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
"""What compilers put into a partitioned program."""

BROADCAST = "broadcast"
"""What runtimes do besides: one device's buffer to all."""


def collective_seconds(kind: str, levels: Sequence[Level], nbytes: ArrayLike) -> np.ndarray:
    """Seconds of one collective over a group that spans the levels.

    >>> line = Level(4, 1e9, 1e9, 0.75e-9, 1e-6, 3, 2, 0.0)
    >>> float(collective_seconds("all-gather", [line], 1e9)).__round__(6)
    0.750003

    Raises:
        ValueError: the kind is none of `KINDS`, nor `BROADCAST`.
    """
    check_kind(kind)
    volume = np.asarray(nbytes, dtype=float)
    if not levels:
        return np.zeros_like(volume)
    start = max(level.start_seconds for level in levels)
    match kind:
        case "all-reduce":
            return start + _reduce_seconds(levels, volume)
        case "all-to-all":
            return start + _exchange_seconds(levels, volume) + _copy_seconds(levels, volume)
        case "collective-permute":
            return start + _permute_seconds(levels, volume)
        case "broadcast":
            return start + _broadcast_seconds(levels, volume)
        case _:
            return start + _ring_seconds(levels, volume) + _copy_seconds(levels, volume)


def check_kind(kind: str) -> None:
    """Raises: ValueError: there is no such collective."""
    if kind not in (*KINDS, BROADCAST):
        raise ValueError(f"unknown collective {kind!r}; known are {', '.join((*KINDS, BROADCAST))}")


def _ring_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    """An all-gather or a reduce-scatter, each device hearing from the next in a ring; stage by stage."""
    hop_seconds, seconds_per_byte, inside = 0.0, 0.0, 1
    for stage in _stages(levels):
        size = math.prod(level.size for level in stage)
        for place, level in enumerate(stage):
            rounds = math.prod(outer.size for outer in stage[place + 1 :])
            hop_seconds += rounds * level.pass_hops * level.hop_seconds
            moved = (size - 1) / size / inside / level.gather_bytes_per_second
            seconds_per_byte = max(seconds_per_byte, moved)
            inside *= level.size
    return hop_seconds + volume * seconds_per_byte


def _stages(levels: Sequence[Level]) -> list[list[Level]]:
    """The levels, those together that one ring runs through."""
    stages: list[list[Level]] = []
    for level in levels:
        if level.staged or not stages:
            stages.append([])
        stages[-1].append(level)
    return stages


def _reduce_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    """An all-reduce by the fastest of the algorithms that its links offer."""
    ways = [2 * _ring_seconds(levels, volume) + _copy_seconds(levels, volume), _tree_seconds(levels, volume)]
    if levels[0].reduce_bytes_per_second is not None:
        ways.append(_switch_seconds(levels, volume))
    return np.minimum.reduce(ways)


def _tree_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    """A double binary tree: to the roots, and back."""
    seconds_per_byte = max(map(_tree_seconds_per_byte, levels, _shares(levels)))
    return 2 * _tree_hop_seconds(levels) + volume * seconds_per_byte


def _tree_seconds_per_byte(level: Level, share: float) -> float:
    """Of two, each is the root of one tree and a leaf of the other, and halves cross both ways at once."""
    return (1 if level.size == 2 else 2) * share / level.gather_bytes_per_second


def _switch_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    """The switch inside adds; what is left goes through trees outside, unless those switches add too."""
    seconds_per_byte = max(
        _tree_seconds_per_byte(level, share)
        if level.reduce_bytes_per_second is None
        else share / level.reduce_bytes_per_second
        for level, share in zip(levels, _shares(levels), strict=True)
    )
    hops = sum(
        level.hop_seconds * (level.tree_hops if level.reduce_bytes_per_second is None else 1) for level in levels
    )
    return 2 * hops + volume * seconds_per_byte


def _exchange_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    hop_seconds = sum(level.pass_hops * level.hop_seconds for level in levels)
    return hop_seconds + volume * max(level.exchange_seconds_per_byte for level in levels)


def _broadcast_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    """In a pipeline of small chunks, so that the hops add to the time of the slowest level, and not to each chunk's."""
    seconds_per_byte = max(
        share / level.gather_bytes_per_second for level, share in zip(levels, _shares(levels), strict=True)
    )
    return _tree_hop_seconds(levels) + volume * seconds_per_byte


def _permute_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    hop_seconds = max(level.hop_seconds for level in levels)
    return hop_seconds + volume / min(level.permute_bytes_per_second for level in levels)


def _copy_seconds(levels: Sequence[Level], volume: np.ndarray) -> np.ndarray:
    """A device's own share, from where it is to where it belongs."""
    size = math.prod(level.size for level in levels)
    return volume / size * levels[0].copy_seconds_per_byte


def _tree_hop_seconds(levels: Sequence[Level]) -> float:
    return sum(level.tree_hops * level.hop_seconds for level in levels)


def _shares(levels: Sequence[Level]) -> list[float]:
    """For each level the part of the whole that the levels inside it leave to it."""
    return [1 / math.prod(inner.size for inner in levels[:place]) for place in range(len(levels))]
