"""Inner loops: compiled where numba is installed, else the plain Python that they are written in.

A kernel sees only numbers, arrays and named tuples of arrays. It calls kernels of its own file alone, for numba
keeps compiled code between runs and looks only at the file itself to see whether that is still what stands there.

Compiling takes some twenty seconds once, of the first solve's time unless `python -m planner.solve.warm` ran before.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def _as_it_is(function: Function) -> Function:
    return function


def _compiled(function: Function) -> Function:
    import numba

    compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return cast(Function, compiled)


kernel = _compiled if find_spec("numba") else _as_it_is
"""Compiles a function at its first call, to run beside other threads; without numba, leaves it as it is."""
