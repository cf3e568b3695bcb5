"""Whether a planned function computes what the unsharded one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from planner import Plan

TOLERANCE: Mapping[str, float] = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-3,
    "complex64": 1e-3,
    "float16": 2e-2,
    "bfloat16": 5e-2,
}
"""Largest error, relative to the largest element of its array, that a different order of summation explains in a train
step. Types that are not listed must agree exactly."""


@dataclass(frozen=True)
class Check:
    """How far a planned function is from the unsharded one.

    Attributes:
        error: the largest difference, over all results, relative to the largest element of its array.
        worst: the path of the result that it is in.
        passed: whether every result is within the tolerance of its dtype, with NaN and infinity in the same places.
    """

    error: float
    worst: str
    passed: bool


def check(plan: Plan, args: Sequence[Any], *, program: jax.stages.Compiled | None = None) -> Check:
    """Runs the planned function and the unsharded one on the same arguments, and compares every result.

    Args:
        args: real arrays of the plan's shapes; they are not donated.
        program: takes the planned function's place; it was compiled for arguments laid out as planned.

    Raises:
        PlanMismatch: the arguments are not of the plan's shapes.
        NoDevices: the plan's mesh has no devices here.
    """
    host = jax.tree.map(np.asarray, jax.tree.map(_key_data, tuple(args)))
    fresh = jax.tree.map(_like, host, tuple(args))
    if program is None:
        found = jax.tree.leaves(plan.jit()(*fresh))
    else:
        placed = plan.place(*fresh)
        found = jax.tree.leaves(program(*(placed if len(fresh) != 1 else (placed,))))
    unsharded = jax.jit(jex_core.jaxpr_as_fun(plan.traced.jaxpr))
    wanted = unsharded(*jax.tree.leaves(jax.tree.map(_like, host, tuple(args))))
    errors = [compare(a, b) for a, b in zip(found, wanted, strict=True)]
    passed = all(
        error <= TOLERANCE.get(str(aval.dtype), 0.0) for error, aval in zip(errors, plan.traced.out_avals, strict=True)
    )
    worst = int(np.argmax(errors)) if errors else 0
    return Check(max(errors, default=0.0), plan.traced.out_paths[worst] if errors else "", passed)


def compare(found: Any, wanted: Any) -> float:
    """The largest difference relative to the largest finite element; infinite where NaN or infinity stand elsewhere."""
    a, b = (np.asarray(jax.device_get(_key_data(array))) for array in (found, wanted))
    if not a.size:
        return 0.0
    if a.dtype.kind not in "fcV" and not jnp.issubdtype(a.dtype, np.inexact):
        return 0.0 if np.array_equal(a, b) else float("inf")
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = float(np.abs(b[finite]).max())
    difference = float(np.abs(a[finite] - b[finite]).max())
    return difference / scale if scale else difference


def _key_data(leaf: Any) -> Any:
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _like(host: np.ndarray, original: Any) -> Any:
    """A fresh array with the original's type, so that donation takes nothing from the caller."""
    if isinstance(original, jax.Array) and jnp.issubdtype(original.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(host), impl=jax.random.key_impl(original))
    return original if isinstance(original, int | float | complex) else jnp.array(host)
