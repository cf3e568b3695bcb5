"""How much time a solve has left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Clock:
    """Runs from its making.

    Attributes:
        limit_seconds: how long there is.
    """

    limit_seconds: float
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    @property
    def left_seconds(self) -> float:
        """Until the limit, not below zero."""
        return max(0.0, self.limit_seconds - self.seconds)

    @property
    def expired(self) -> bool:
        return self.seconds >= self.limit_seconds

    def part(self, fraction: float) -> Clock:
        """A clock that starts now and has a part of what is left."""
        return Clock(fraction * self.left_seconds)
