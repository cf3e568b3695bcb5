"""How long devices that share cores wait for each other.

Devices that have a core each come to a collective together. Eight on two cores do not: the system hands the cores out
unevenly, one is done while the other has some left, and all wait for those. The more devices there are, the later comes
the last of them. But while the devices of one group wait, those of the others have the cores, unless they are held up
too, for they have waited for some of the group: only the share in all devices of those that are held up is lost. And
they are held up by what made the group late before they waited; what it has computed since makes late the group alone.

What a group waits at least is measured apart: once its devices have computed for a while, their threads sleep until the
last has come, and have to wake, where after nothing computed they still look out for it. At the first collective of a
call, or at the end of one without, it is all that is waited, however long was computed: the devices were started one
after the other, and the system lets those that run go on until they are done. Who was late by chance is late only
between two collectives, after which all are let go at once.

Collectives over fewer than all devices let go of one group sooner than of another, too. The groups may be apart for
long, since each goes on alone; they wait, some microseconds, when devices of several meet in the next collective. That
is measured (`costmodel.curves.CollectiveCurve.parting_seconds`), and adds by its variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True)
class Waits:
    """How unevenly devices that share cores come to a collective, by what each has computed.

    Attributes:
        computed_seconds: ascending.
        late_seconds: after so much computing, the standard deviation of when a device comes; no smaller after more.
        least_seconds: by group size, what a group waits at least after as much as the first of `computed_seconds`.
    """

    computed_seconds: tuple[float, ...]
    late_seconds: tuple[float, ...]
    least_seconds: Mapping[int, float] = field(default_factory=dict, hash=False)

    def least(self, group_size: int, computed: float) -> float:
        """Seconds that a group waits at least after so many of computing.

        Linear in log2 of the size between those that were measured, and down to a device that is alone.
        """
        sizes, seconds = zip(*sorted({1: 0.0, **self.least_seconds}.items()), strict=True)
        long = min(1.0, computed / self.computed_seconds[0])
        return long * float(np.interp(np.log2(group_size), np.log2(sizes), seconds))

    def seconds(
        self, group_size: int, held_up: Sequence[tuple[float, int]], device_count: int, begun: float = 0.0
    ) -> float:
        """Seconds that a group waits for its last device.

            max(least, lateness(group_size) · √Σ (held_up / device_count)² · (late_seconds(s)² - late_seconds(next s)²))

        Between what was measured, and down to none, late_seconds lie along straight lines; beyond, they go with the
        root of what was computed, as in a random walk: variances add, each with its share.

        Args:
            held_up: seconds s that were computed since the group last waited, and how many devices wait for it, those
                of the group among them; then the same of each time since at which some of those met others last, from
                when on fewer wait.
            device_count: of all groups together.
            begun: seconds of computing before, from the call until some first waited, which make nobody late.

        >>> round(Waits((1e-3, 4e-3), (1e-4, 2e-4)).seconds(8, [(16e-3, 8)], 8) * 1e3, 2)
        0.57
        """
        variances = [self._late_seconds(since) ** 2 for since, _ in held_up] + [0.0]
        shares = [count / device_count for _, count in held_up]
        lost = sum(share**2 * (early - late) for share, (early, late) in zip(shares, pairwise(variances), strict=True))
        return max(self.least(group_size, held_up[0][0] + begun), lateness(group_size) * math.sqrt(lost))

    def _late_seconds(self, computed: float) -> float:
        long = max(1.0, computed / self.computed_seconds[-1])
        return math.sqrt(long) * float(np.interp(computed, (0.0, *self.computed_seconds), (0.0, *self.late_seconds)))

    def computed(self, device_count: int, taken: float) -> float:
        """Seconds of computing, with which a call takes so many, in which nobody waits but for the last at its end.

        >>> waits = Waits((1e-3,), (1e-4,), {8: 0.2e-3})
        >>> [round(waits.computed(8, c + waits.least(8, c)) * 1e3, 6) for c in (0.5e-3, 1e-3, 9e-3)]
        [0.5, 1.0, 9.0]
        """
        longest = self.least(device_count, self.computed_seconds[0])
        return max(taken - longest, taken / (1.0 + longest / self.computed_seconds[0]))


def lateness(group_size: int) -> float:
    """By how many standard deviations the last of a group is expected later than the mean.

    Blom's approximation of the expected largest of so many normal numbers (Statistical Estimates and Transformed
    Beta-Variables, 1958), 4 % too large for two, 1 % for eight.
    """
    return NormalDist().inv_cdf((group_size - 0.375) / (group_size + 0.25))


def measured_waits(computed: Sequence[float], waited: Sequence[float], least: Mapping[int, float]) -> Waits:
    """From what all devices waited after so much computing, and groups of each size, up to all, after the first of it.

    Noise may have it that less is waited than nothing, or less after more computing; neither counts.
    """
    late = np.maximum.accumulate(np.maximum(0.0, waited)) / lateness(max(least))
    return Waits(
        tuple(map(float, computed)), tuple(map(float, late)), {size: max(0.0, each) for size, each in least.items()}
    )
