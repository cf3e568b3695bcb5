"""How long devices that share cores wait for each other.

Devices that have a core each come to a collective together. Eight on two cores do not: the system hands the cores out
unevenly, one is done while the other has some left, and all wait for those. Unevenness adds up as a random walk does,
with the root of the time, and the more devices there are, the later comes the last of them. But while the devices of
one group wait, those of the others have the cores, unless they are held up too, for they have waited for some of the
group: only the share in all devices of those that are held up is lost.

Collectives over fewer than all devices let go of one group sooner than of another, too. The groups may be apart for
long, since each goes on alone; they wait, some microseconds, when devices of several meet in the next collective. That
is measured (`costmodel.curves.CollectiveCurve.parting_seconds`), and adds by its variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

FREE_SECONDS = 4e-4
"""Of computing, after which nobody waits yet: from there on the squares of what was waited grow in a line. See
docs/costs.md."""


def waiting_seconds(skew_seconds: float, group_size: int, held_up: int, device_count: int, computed: float) -> float:
    """Seconds that a group waits for its last device after so many of computing.

        held_up / device_count · lateness(group_size) · √(skew_seconds · max(0, computed - FREE_SECONDS))

    Args:
        skew_seconds: the variance of when a device comes, in seconds² for each second of computing; 0 where each has a
            core of its own.
        held_up: how many devices wait, those of the group among them.
        device_count: of all groups together.

    >>> round(waiting_seconds(1e-4, 8, 8, 8, 1.4e-3) * 1e3, 2)
    0.45
    """
    walked = math.sqrt(skew_seconds * max(0.0, computed - FREE_SECONDS))
    return held_up / device_count * lateness(group_size) * walked


def computed_seconds(skew_seconds: float, device_count: int, taken: float) -> float:
    """Seconds of computing, after which the wait for the last of all devices makes it so many that were `taken`.

    >>> waited = waiting_seconds(1e-4, 8, 8, 8, 1.4e-3)
    >>> round(computed_seconds(1e-4, 8, 1.4e-3 + waited) * 1e3, 6)
    1.4
    """
    walk = lateness(device_count) * math.sqrt(skew_seconds)
    beyond = max(0.0, taken - FREE_SECONDS)
    root = (math.sqrt(walk**2 + 4 * beyond) - walk) / 2
    return min(taken, FREE_SECONDS) + root**2


def lateness(group_size: int) -> float:
    """By how many standard deviations the last of a group is expected later than the mean.

    Blom's approximation of the expected largest of so many normal numbers (Statistical Estimates and Transformed
    Beta-Variables, 1958), 4 % too large for two, 1 % for eight.
    """
    return NormalDist().inv_cdf((group_size - 0.375) / (group_size + 0.25))


def fit_skew(timed: Mapping[int, tuple[np.ndarray, np.ndarray]], device_count: int) -> float:
    """The skew that explains the waiting of groups best: by the median of each size, by least squares between sizes.

    Args:
        timed: by group size, `[N]` seconds computed, each more than `FREE_SECONDS`, and what came to be waited.
        device_count: of all groups together.
    """
    medians = {size: float(np.median(waited / np.sqrt(c - FREE_SECONDS))) for size, (c, waited) in timed.items()}
    waits = {size: size / device_count * lateness(size) for size in medians}
    weights = sum(each**2 for each in waits.values())
    root = sum(waits[size] * median for size, median in medians.items()) / weights if medians else 0.0
    return max(0.0, root) ** 2
