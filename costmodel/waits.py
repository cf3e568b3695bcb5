"""How long devices that share cores wait for each other.

Devices that have a core each come to a collective together. Eight on two cores do not: the system hands the cores out
unevenly, one is done while the other has some left, and all wait for those. Unevenness adds up as a random walk does,
with the root of the time; after a millisecond of computing it is about half a millisecond where eight share two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FREE_SECONDS = 1e-4
"""Of computing, after which nobody waits yet: threads look again before they sleep."""


@dataclass(frozen=True)
class Wait:
    """How long a group waits for its last device.

        √(skew_seconds · max(0, computed - FREE_SECONDS))

    Attributes:
        group_size: how many devices wait for each other, the others of the machine doing so in groups like it.
        skew_seconds: how long they wait after computing as long.
    """

    group_size: int
    skew_seconds: float

    def seconds(self, computed: float) -> float:
        """Seconds of waiting after so many of computing.

        >>> Wait(8, 2.5e-4).seconds(1.1e-3)
        0.0005
        """
        return math.sqrt(self.skew_seconds * max(0.0, computed - FREE_SECONDS))

    @staticmethod
    def of(group_size: int, computed: np.ndarray, waited: np.ndarray) -> Wait:
        """By the median of what was timed: `[N]` seconds, each more than `FREE_SECONDS`, and what came to be waited."""
        root = float(np.median(waited / np.sqrt(computed - FREE_SECONDS)))
        return Wait(group_size, max(0.0, root) ** 2)


def waiting_seconds(waits: Sequence[Wait], group_size: int, computed: float) -> float:
    """For any group size, by the waits measured: linear in log2 of the size; nothing where none was measured."""
    if not waits or group_size < 2:
        return 0.0
    ordered = sorted(waits, key=lambda wait: wait.group_size)
    sizes = [math.log2(wait.group_size) for wait in ordered]
    return float(np.interp(math.log2(group_size), sizes, [wait.seconds(computed) for wait in ordered]))
