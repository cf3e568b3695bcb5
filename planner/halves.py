"""Numbers of sixteen bits where the backend has no arithmetic for them.

XLA's CPU compiler computes in float32 what is bfloat16 (openxla/xla: xla/service/float_normalization.cc), products of
float16 too (xla/service/cpu/cpu_compiler.cc, `ChangeOpDataType`). Loops convert what they read and write as they go.
Calls of libraries and collectives read arrays that are converted before, and what they make is converted back.
"""

from __future__ import annotations

from typing import Any

from planner.graph import Op, aval_of
from planner.traits import Traits

WIDENED = Traits(loops=True, takes=True, costly=False)
"""A conversion to float32."""


def rounded(dtype: Any) -> Traits:
    """A conversion to sixteen bits, which takes several instructions to bfloat16, and one to float16."""
    return WIDENED._replace(costly=str(dtype) == "bfloat16")


PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})


def is_half(dtype: Any) -> bool:
    return str(dtype) in ("bfloat16", "float16")


def computed_wide(op: Op) -> bool:
    """Whether a library that computes an op does so in float32, though the result is narrower."""
    dtype = str(op.results[0].dtype) if op.results else ""
    return dtype == "bfloat16" or (dtype == "float16" and op.name in PRODUCTS)


def sent_wide(dtype: Any) -> bool:
    """Whether devices send each other float32 for it."""
    return str(dtype) == "bfloat16"


def half_operands(op: Op) -> frozenset[int]:
    """Of the positions of an op's operands those of sixteen bits."""
    return frozenset(place for place, atom in enumerate(op.operands) if is_half(aval_of(atom).dtype))
