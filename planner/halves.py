"""Numbers of sixteen bits where the backend has no arithmetic for them.

XLA's CPU compiler computes in float32 what is bfloat16 (openxla/xla: xla/service/float_normalization.cc), products of
float16 too (xla/service/cpu/cpu_compiler.cc, `ChangeOpDataType`). Loops convert what they read and write as they go.
Calls of libraries and collectives read arrays that are converted before, and what they make is converted back.
"""

from __future__ import annotations

from typing import Any

from costmodel.topology import Backend
from planner.graph import Op, Value
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
    if op.bodies or op.name == "optimization_barrier" or not op.results:
        return False
    dtype = str(op.results[0].dtype)
    return dtype == "bfloat16" or (dtype == "float16" and op.name in PRODUCTS)


def sent_wide(dtype: Any, backend: Backend) -> bool:
    """Whether devices send each other float32 for it."""
    return backend == "cpu" and str(dtype) == "bfloat16"


def sent_itemsize(value: Value, backend: Backend) -> int:
    """Bytes of an element as devices send it to each other."""
    return 4 if sent_wide(value.dtype, backend) else value.itemsize
