"""What the C library does with memory that a call of a program has freed."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Of mallopt(3), from malloc.h."""
_FETCHED_FROM = 2**25
"""Bytes of an allocation for which glibc asks the system each time (DEFAULT_MMAP_THRESHOLD_MAX in its malloc.c), as
`costmodel.calls.CallCost` has it."""
_HEAP = 2**26
"""Bytes of a thread's heap (HEAP_MAX_SIZE there): an empty one is given back unless so much spare room is wanted."""


def keep_freed_memory() -> bool:
    """Lets this process keep what it frees, in pieces of up to 32 MiB, for what it allocates next.

    XLA's CPU backend allocates temporaries and results anew at each call. What of it glibc gives back to the system in
    between depends on what the process happened to free before, and that comes back page by page: one program takes
    half as long again in one process as in another.

    Returns:
        Whether the C library can do so: glibc's can.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    wanted = ((_MMAP_THRESHOLD, _FETCHED_FROM), (_TRIM_THRESHOLD, -1), (_TOP_PAD, _HEAP))
    return mallopt is not None and all(mallopt(parameter, value) for parameter, value in wanted)
