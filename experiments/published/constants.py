"""One constant for each chip and framework, and what communication hides behind computation.

A data sheet and measured curves say how fast kernels run one by one; a framework keeps a chip less busy than that. What
share it achieves is one number for a chip and a framework, the median over its runs in the tables; no run has one of
its own. `make bench-published` prints what the tables at hand would give beside what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from costmodel import KINDS, Topology
from costmodel.topology import Link

# What a collective costs while it is hidden: kernels beside it slow down by 12.56 % of its time (measured on GPUs:
# PKU-DAIR/Hetu-Galvatron, overlap_coefficient.json). Nobody has published the like for TPUs.
OVERLAP = 1 - 0.1256
WAITING = ("Megatron-LM", "DeepSpeed", "Alpa")
"""Frameworks of 2020 to 2022 that wait for their collectives."""


@dataclass(frozen=True)
class Constant:
    """What a framework achieves on a chip: of its rates, and of its links' where those are what holds it up."""

    compute: float = 1.0
    links: float = 1.0

    def applied(self, topology: Topology) -> Topology:
        """The machine as the framework uses it."""
        dims = tuple(
            replace(
                dim,
                link=self._link(dim.link),
                measured={kind: self._link(link) for kind, link in dim.measured.items()},
            )
            for dim in topology.dims
        )
        return replace(topology, device=topology.device.scaled(self.compute, 1 / self.compute), dims=dims)

    def _link(self, link: Link) -> Link:
        share = self.links
        eager = link.eager and replace(
            link.eager,
            start_seconds=link.eager.start_seconds / share,
            latency_seconds=link.eager.latency_seconds / share,
            bytes_per_second=link.eager.bytes_per_second * share,
        )
        return replace(
            link,
            start_seconds=link.start_seconds / share,
            latency_seconds=link.latency_seconds / share,
            bytes_per_second=link.bytes_per_second * share,
            copy_bytes_per_second=link.copy_bytes_per_second and link.copy_bytes_per_second * share,
            reduce_bytes_per_second=link.reduce_bytes_per_second and link.reduce_bytes_per_second * share,
            wire_bytes_per_second=link.wire_bytes_per_second and link.wire_bytes_per_second * share,
            eager=eager,
        )


_FAMILIES = {
    "a100-40gb-dgx": "a100-dgx",
    "v100-dgx2": "v100",
    "v100-p3": "v100",
    "h200-dgx": "h100-dgx",
    "gb300-nvl72": "gb200-nvl72",
    "b200-dgx": "gb200-nvl72",
    "b300-dgx": "gb200-nvl72",
}
"""Presets that are the same chip, or its near kin, in another machine."""

CONSTANTS: Mapping[tuple[str, str], Constant] = {
    ("a100-dgx", "Megatron-LM"): Constant(0.74),
    ("v100", "Megatron-LM"): Constant(0.80),
    # Megatron's kernels, so its share; what holds ZeRO-3 of 2021 up is that it gathers parameter by parameter.
    ("a100-dgx", "DeepSpeed"): Constant(0.74, links=0.27),
    ("v100", "Alpa"): Constant(0.81),
    ("v4", "MaxText"): Constant(0.85),
    ("v5e", "MaxText"): Constant(0.87),
    ("h100-dgx", "MaxText (JAX)"): Constant(0.86),
    ("h100-dgx", "PaxML"): Constant(0.60),
    ("h100-dgx", "NeMo"): Constant(0.83),
    ("gb200-nvl72", "NeMo"): Constant(0.77),
}


def constant(chip: str, framework: str) -> Constant:
    """The constant of a chip and a framework; where it is not known, the framework's median on other chips."""
    if found := CONSTANTS.get((_FAMILIES.get(chip, chip), framework)):
        return found
    others = [each.compute for (_, name), each in CONSTANTS.items() if name == framework]
    return Constant(median(others or [each.compute for each in CONSTANTS.values()]))


def overlap(framework: str) -> Mapping[str, float]:
    """By kind of collective, the share of its time that hides behind computation."""
    return {} if framework in WAITING else dict.fromkeys(KINDS, OVERLAP)
