"""The one file that reaches into `jax._src`, for what JAX has no public name for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from jax import lax
from jax._src import source_info_util
from jax._src.core import trace_state_clean
from jax._src.shard_map import shard_map_p
from jax.extend import core as jex_core

try:
    from jax._src.random import prng
except ImportError:  # before JAX 0.10.2
    from jax._src import prng  # type: ignore[no-redef, attr-defined]

__all__ = [
    "as_written",
    "not_the_users",
    "optional_primitives",
    "random_unwrap_p",
    "random_wrap_p",
    "scan_counts",
    "shard_map_p",
    "source_line",
    "trace_state_clean",
]

random_wrap_p, random_unwrap_p = prng.random_wrap_p, prng.random_unwrap_p


def as_written(source_info: Any) -> AbstractContextManager[Any]:
    """Within it, what is traced counts as written where `source_info` says, in the same named scopes."""
    stack = source_info_util.current_name_stack() + source_info.name_stack
    return source_info_util.user_context(source_info.traceback, name_stack=stack)


def source_line(source_info: Any) -> str:
    """`train.py:41`, the user's line that made an equation; empty where JAX recorded none."""
    frame = source_info_util.user_frame(source_info.traceback)
    if frame is None:
        return ""
    return f"{os.path.basename(frame.file_name)}:{frame.start_line}"


def not_the_users(file_name: str) -> None:
    """Lines of this file never count as the user's."""
    source_info_util.register_exclusion(file_name)


def optional_primitives(*names: str) -> tuple[jex_core.Primitive, ...]:
    """Those of these primitives of `jax.lax` that this version of JAX has."""
    return tuple(getattr(lax, name) for name in names if hasattr(lax, name))


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are the same in all rounds, and how many go round; those that it slices follow."""
    if "ft_in" in params:  # since JAX 0.11
        invariant, carry, _ = params["ft_in"].unpack()
        return len(invariant), len(carry)
    return params["num_consts"], params["num_carry"]
