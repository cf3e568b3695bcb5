"""What calling a compiled program takes, whatever it computes: handing over arrays, and fresh memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class CallCost:
    """Seconds of a call beside those of the program.

    Attributes:
        call_seconds: of any call, arrays not counted.
        argument_seconds, result_seconds: of each array that goes in or comes out.
        fetch_seconds_per_byte: of an allocation that the system hands out page by page at each call, all devices at it.
        fetch_from_bytes: allocations from this size on are: the C library gives them back after use, 32 MiB and more by
            default (DEFAULT_MMAP_THRESHOLD_MAX in glibc's malloc.c), 64 MiB and more where
            `executor.keep_freed_memory` was called; none where it is infinite.
    """

    call_seconds: float = 0.0
    argument_seconds: float = 0.0
    result_seconds: float = 0.0
    fetch_seconds_per_byte: float = 0.0
    fetch_from_bytes: float = 2.0**25

    def scaled(self, wait: float) -> CallCost:
        """The same where all of it takes `wait` times as long."""
        seconds = {name: wait * getattr(self, name) for name in self.__dataclass_fields__ if "seconds" in name}
        return replace(self, **seconds)

    def seconds(self, arguments: int, results: int, allocations: Iterable[float]) -> float:
        """Of one call.

        Args:
            arguments, results: how many arrays.
            allocations: bytes per device of each piece of memory that the call asks for.

        >>> CallCost(1e-4, 1e-6, 1e-5, 1e-9).seconds(10, 2, [2**20, 2**26]).__round__(4)
        0.0672
        """
        fetched = sum(nbytes for nbytes in allocations if nbytes >= self.fetch_from_bytes)
        arrays = arguments * self.argument_seconds + results * self.result_seconds
        return self.call_seconds + arrays + fetched * self.fetch_seconds_per_byte
