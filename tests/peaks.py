"""Peak memory of a function, as predicted and as compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from planner import plan

S = jax.ShapeDtypeStruct
ONE = AbstractMesh((1,), ("x",))


def peak_of(fn: Callable[..., Any], *shapes: tuple[int, ...], mesh: AbstractMesh = ONE, **options: Any) -> float:
    args = tuple(S(shape, jnp.float32) for shape in shapes)
    return plan(fn, args, mesh, **options).prediction.peak_bytes


def compiled_peak_of(fn: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> float:
    args = [S(shape, jnp.float32) for shape in shapes]
    found = jax.jit(fn, **options).lower(*args).compile().memory_analysis()
    sizes = found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes
    return float(sum(sizes) - found.alias_size_in_bytes)
