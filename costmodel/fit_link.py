"""Timed collectives to the links of a topology, so that group sizes and message sizes never timed follow by formula.

For each kind of collective one dimension's link is fitted: two protocols of three parameters each (start, latency per
hop, bandwidth), the rate of copying one's own share and, where the switch adds, that of its all-reduce. The formulas
are those of `costmodel.collectives`; nothing is kept per group size. (On shared memory, where no such formula holds,
`costmodel.curves` does otherwise.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.collectives import collective_seconds
from costmodel.least_squares import fit_positive
from costmodel.levels import protocols
from costmodel.placement import Segment
from costmodel.topology import Dim, Eager, Link, Topology

DOUBT = 10.0
"""How freely the data may move what it says little of; see `fit_positive`."""
BULK_START = 2.5
"""Where the search for the start of large messages begins, as a multiple of the fastest collective seen."""
EAGER_RATE = 0.3
"""Where the search for the small protocol's bandwidth begins, as a share of the link's: NCCL sends a flag with each
word under LL, half of what moves, and seldom fills the link."""
COPY_BYTES_PER_SECOND = 1e12
"""Where the search for the rate of copying begins: half of a current GPU's memory bandwidth, as it reads and writes."""


@dataclass(frozen=True)
class TimedCollective:
    """One timed collective.

    Attributes:
        kind: as in `costmodel.KINDS`, or "broadcast".
        sizes: how far its groups extend along each dimension of the topology.
        nbytes: per device, of the larger side.
        seconds: while all groups of the machine ran it at once.
    """

    kind: str
    sizes: tuple[int, ...]
    nbytes: float
    seconds: float


def fit_dim(topology: Topology, index: int, samples: Iterable[TimedCollective]) -> Topology:
    """The topology with one dimension's links measured, for each kind that there are samples of.

    Args:
        index: the dimension; the links of the others stay as they are.
        samples: of groups that extend along that dimension.
    """
    by_kind: dict[str, list[TimedCollective]] = {}
    for sample in samples:
        by_kind.setdefault(sample.kind, []).append(sample)
    links = {kind: _fit(topology, index, kind, members) for kind, members in by_kind.items()}
    return _with(topology, index, {**topology.dims[index].measured, **links})


def timed_seconds(topology: Topology, samples: Sequence[TimedCollective]) -> np.ndarray:
    """`[N]` seconds that the topology predicts for these collectives."""
    predicted = np.zeros(len(samples))
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for row, sample in enumerate(samples):
        groups.setdefault((sample.kind, sample.sizes), []).append(row)
    for (kind, sizes), rows in groups.items():
        segments = [Segment(dim, size, 1) for dim, size in enumerate(sizes) if size > 1]
        nbytes = np.array([samples[row].nbytes for row in rows])
        ways = [collective_seconds(kind, levels, nbytes) for levels in protocols(topology, segments, kind)]
        predicted[rows] = np.minimum.reduce(ways)
    return predicted


def _fit(topology: Topology, index: int, kind: str, samples: Sequence[TimedCollective]) -> Link:
    link = topology.dims[index].measured.get(kind, topology.dims[index].link)
    fastest = min(sample.seconds for sample in samples)
    eager = link.eager or Eager(fastest, link.latency_seconds, EAGER_RATE * link.bytes_per_second)
    copies = kind not in ("collective-permute", "broadcast")
    reduces = kind == "all-reduce" and link.reduce_bytes_per_second is not None
    start = [BULK_START * fastest, link.latency_seconds, link.bytes_per_second]
    start += [fastest, eager.latency_seconds, eager.bytes_per_second]
    doubt = [np.inf, DOUBT, np.inf, np.inf, DOUBT, DOUBT]
    if copies:
        start.append(link.copy_bytes_per_second or COPY_BYTES_PER_SECOND)
    if reduces:
        start.append(link.reduce_bytes_per_second or 0.0)

    def fitted(parameters: np.ndarray) -> Link:
        values = parameters.tolist()
        return replace(
            link,
            start_seconds=values[0],
            latency_seconds=values[1],
            bytes_per_second=values[2],
            eager=Eager(*values[3:6]),
            copy_bytes_per_second=values[6] if copies else None,
            reduce_bytes_per_second=values[-1] if reduces else None,
        )

    def predict(parameters: np.ndarray) -> np.ndarray:
        return timed_seconds(_with(topology, index, {kind: fitted(parameters)}), samples)

    measured = np.array([sample.seconds for sample in samples])
    more = [DOUBT] * (len(start) - len(doubt))
    return fitted(fit_positive(predict, measured, np.array(start), np.array([*doubt, *more])))


def _with(topology: Topology, index: int, measured: dict[str, Link]) -> Topology:
    dims: list[Dim] = list(topology.dims)
    dims[index] = replace(dims[index], measured=measured)
    return replace(topology, dims=tuple(dims))
