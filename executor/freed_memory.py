"""What the C library does with memory that a call of a program has freed."""

from __future__ import annotations

import ctypes
import sys

from costmodel.calls import CallCost

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""Of mallopt(3), from malloc.h: how much may lie free at the end of a heap, how much is wanted there, lest an empty one
be given back, and how many allocations get memory of the system's own."""
_HEAP_BYTES = 2**26
"""The size of a thread's heap, HEAP_MAX_SIZE in glibc's malloc.c: what is larger is the system's always."""

_kept = False


def keep_freed_memory() -> bool:
    """Lets this process keep what it frees, in pieces of less than 64 MiB, for what it allocates next.

    XLA's CPU backend allocates temporaries and results anew at each call. Of what is freed in between glibc gives back
    to the system, by default, pieces of 32 MiB or more, and of smaller ones what it happens to. All that comes again
    page by page, and one program takes up to four times as long as where it is kept. To be called before the first
    computation; the process will look larger to the system.

    Returns:
        Whether the C library can do so: glibc's can.
    """
    global _kept
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    wanted = ((_TRIM_THRESHOLD, -1), (_TOP_PAD, _HEAP_BYTES), (_MMAP_MAX, 0))
    _kept = mallopt is not None and all(mallopt(parameter, value) for parameter, value in wanted)
    return _kept


def fetched_from_bytes() -> float:
    """From which size on an allocation's memory is the system's at each call; see `costmodel.calls.CallCost`."""
    return float(_HEAP_BYTES) if _kept else CallCost.fetch_from_bytes
