"""The links that one group of devices communicates over, boiled down to the numbers that collectives need.

A mesh axis may run inside a host and across hosts, or along two dimensions of a torus. Each kind of link on
the way is a `Level`, innermost first. All groups of a mesh run the same collective at the same time, so what
they share is divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.placement import Segment
from costmodel.topology import Dim, Link, Topology


@dataclass(frozen=True)
class Level:
    """A stage of a group's links, over which `size` devices (or blocks of devices of the levels inside) are
    joined.

    Attributes:
        size: how many stand on this level.
        gather_bytes_per_second: what a device can take in at once, from both neighbours of a ring and on all
            dimensions of a torus.
        permute_bytes_per_second: what a device can send to one other.
        exchange_seconds_per_byte: an all-to-all of one byte per device.
        hop_seconds: one message to the next device of the group.
        pass_hops: messages in a row until all have heard from all, neighbour to neighbour.
        tree_hops: the same where pairs at any distance may talk.
        start_seconds: paid once.
        copy_seconds_per_byte: a device's own share, to its place in the result.
        reduce_bytes_per_second: an all-reduce done by the switch; None where it does none.
        staged: whether the levels inside do their part first, and this one only what they leave.
    """

    size: int
    gather_bytes_per_second: float
    permute_bytes_per_second: float
    exchange_seconds_per_byte: float
    hop_seconds: float
    pass_hops: int
    tree_hops: int
    start_seconds: float
    copy_seconds_per_byte: float = 0.0
    reduce_bytes_per_second: float | None = None
    staged: bool = False


Levels = tuple[Level, ...]


def protocols(topology: Topology, segments: Sequence[Segment], kind: str) -> tuple[Levels, ...]:
    """The levels of a group for one kind of collective, for each protocol that the runtime may choose.

    Every link as it is; and where there are links with a protocol for small messages, those by it.
    """
    links = [dim.measured.get(kind, dim.link) for dim in topology.dims]
    ways = [links]
    if any(link.eager for link in links):
        ways.append([link.small() for link in links])
    return tuple(
        group_levels([replace(d, link=link) for d, link in zip(topology.dims, way, strict=True)], segments)
        for way in ways
    )


def group_levels(dims: Sequence[Dim], segments: Sequence[Segment]) -> Levels:
    """The levels of a group that spans the segments, innermost first; none for a group of one device."""
    rows: dict[object, list[Level]] = {}
    for index in reversed(range(len(dims))):
        parts = _merged([segment for segment in segments if segment.dim == index])
        dim = dims[index]
        for part in parts:
            key = dim.link.kind if dim.link.kind in ("torus", "mesh") else index
            rows.setdefault(key, []).append(_level(dim, part))
    return tuple(_together(levels) for levels in rows.values())


def _merged(parts: Sequence[Segment]) -> list[Segment]:
    """Parts of one dimension, innermost first; those that touch are joined (2, stride 1, and 2, stride 2)."""
    merged: list[Segment] = []
    for part in sorted(parts, key=lambda part: part.stride):
        if merged and merged[-1].stride * merged[-1].size == part.stride:
            inner = merged.pop()
            part = Segment(part.dim, inner.size * part.size, inner.stride)
        merged.append(part)
    return merged


def _level(dim: Dim, part: Segment) -> Level:
    match dim.link.kind:
        case "torus":
            return _ring(dim, part)
        case "mesh":  # a wire to each other device of the dimension
            wire = dim.link.wire_bytes_per_second or dim.link.bytes_per_second / (dim.size - 1)
            whole = part.size == dim.size
            level = _switched(dim.link, part.size, dim.link.bytes_per_second if whole else wire * (part.size - 1))
            return replace(level, permute_bytes_per_second=wire, exchange_seconds_per_byte=1 / part.size / wire)
        case "bus":
            return _switched(dim.link, part.size, dim.link.bytes_per_second / dim.size)
        case _:
            return _switched(dim.link, part.size, dim.link.bytes_per_second)


def _switched(link: Link, size: int, rate: float) -> Level:
    return Level(
        size=size,
        gather_bytes_per_second=rate,
        permute_bytes_per_second=rate,
        exchange_seconds_per_byte=(size - 1) / size / rate,
        hop_seconds=link.latency_seconds,
        pass_hops=size - 1,
        tree_hops=math.ceil(math.log2(size)),
        start_seconds=link.start_seconds,
        copy_seconds_per_byte=1 / link.copy_bytes_per_second if link.copy_bytes_per_second else 0.0,
        reduce_bytes_per_second=link.reduce_bytes_per_second,
        staged=link.staged,
    )


def _ring(dim: Dim, part: Segment) -> Level:
    """Part of a torus dimension: a ring if it goes all the way round, else a line.

    With stride s, s groups lie interleaved on the same links and every message passes s of them. A ring takes
    in from both sides; the end of a line from one only (scaling book, "Sharded matrices", AllGather). In an
    all-to-all each device sends 1/n of its bytes to each other; over a ring of n they travel floor(n²/4) hops
    in sum, spread on two links per device; over a line the link in the middle carries floor(n²/4)/n of a
    device's bytes each way.
    """
    size, rate = part.size, dim.link.bytes_per_second / part.stride
    closed = dim.link.wrap and part.stride * size == dim.size
    hops = size // 2 if closed else size - 1
    return Level(
        size=size,
        gather_bytes_per_second=rate * (2 if closed else 1),
        permute_bytes_per_second=rate,
        exchange_seconds_per_byte=(size * size // 4) / size / (2 if closed else 1) / rate,
        hop_seconds=dim.link.latency_seconds * part.stride,
        pass_hops=hops,
        tree_hops=hops,
        start_seconds=dim.link.start_seconds,
        staged=dim.link.staged,
    )


def _together(levels: Sequence[Level]) -> Level:
    """The dimensions of a torus or mesh that a group spans, used at once: their bandwidths add, their hops too.

    (Scaling book, "Sharded matrices": an AllGather over several axes has the bandwidth of all of them.)
    """
    if len(levels) == 1:
        return levels[0]
    slowest = max(levels, key=lambda level: level.hop_seconds)
    return replace(
        slowest,
        size=math.prod(level.size for level in levels),
        gather_bytes_per_second=sum(level.gather_bytes_per_second for level in levels),
        permute_bytes_per_second=min(level.permute_bytes_per_second for level in levels),
        exchange_seconds_per_byte=max(level.exchange_seconds_per_byte for level in levels),
        pass_hops=sum(level.pass_hops for level in levels),
        tree_hops=sum(level.tree_hops for level in levels),
    )
