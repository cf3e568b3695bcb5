"""How much time, or counted work, a solve has left."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

WORK_PER_SECOND = 1e9
"""Numbers that one core looks at in a second, roughly: what a second is worth where work is counted."""


@dataclass
class Meter:
    """What has passed since its making: real seconds, or what the work done is worth.

    Attributes:
        counts_work: whether it is work.
        stopped: whether nothing more is to be begun, whatever time is left.
    """

    counts_work: bool
    started: float = field(default_factory=time.perf_counter)
    worked: float = 0.0
    stopped: bool = False

    @property
    def elapsed(self) -> float:
        """Real seconds."""
        return time.perf_counter() - self.started

    @property
    def seconds(self) -> float:
        return self.worked if self.counts_work else self.elapsed


@dataclass(frozen=True)
class Clock:
    """Runs from its making.

    Whoever asks it alone how far things are comes to the same answer in every run with the same limit of work.

    Attributes:
        limit_seconds: how long there is, on the meter.
        deadline: real seconds on the meter after which it is over in any case.
        start: what the meter showed at its making.
    """

    limit_seconds: float
    deadline: float
    meter: Meter
    start: float = 0.0

    @staticmethod
    def of(time_limit: float, work_limit: float | None = None) -> Clock:
        """For so many seconds, or for so much work if that is done earlier."""
        if work_limit is None:
            return Clock(time_limit, math.inf, Meter(counts_work=False))
        return Clock(work_limit, time_limit, Meter(counts_work=True))

    @property
    def counts_work(self) -> bool:
        return self.meter.counts_work

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self.meter.seconds - self.start

    @property
    def elapsed(self) -> float:
        """Real seconds since the meter's making."""
        return self.meter.elapsed

    @property
    def left_seconds(self) -> float:
        """Until the limit, not below zero."""
        over = self.meter.stopped or self.meter.elapsed >= self.deadline
        return 0.0 if over else max(0.0, self.limit_seconds - self.seconds)

    @property
    def expired(self) -> bool:
        return self.left_seconds <= 0

    def work(self, numbers: float) -> None:
        """Takes note of so many numbers looked at."""
        self.meter.worked += numbers / WORK_PER_SECOND

    def part(self, fraction: float) -> Clock:
        """A clock that starts now and has a part of what is left."""
        return Clock(fraction * self.left_seconds, self.deadline, self.meter, self.meter.seconds)

    @contextmanager
    def stopped_by_interrupt(self) -> Iterator[None]:
        """Ctrl-C stops the clock too, besides raising what it raises.

        An exception raised in a callback of the garbage collector is dropped by Python, and JAX has such a callback.
        """
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield  # nobody else may set handlers, or the interrupt is none
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.meter.stopped = True
            before(number, frame)

        signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
