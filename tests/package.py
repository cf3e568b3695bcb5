"""Steps that people write with other libraries, and what their problems are made of.

Each function with `package` imports its library, builds a small problem of it and returns a case; sizes are such that
something can be split over eight devices. No bias stands before a normalisation: its gradient is nothing but rounding,
and many optimizers would make a step of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from cases import Case

PACKAGES: dict[str, Callable[[], Case]] = {}
"""By the package's name, what makes its case."""


def package(make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]) -> Callable[[], Case]:
    name = make.__name__

    def case() -> Case:
        return Case(name, *make())

    PACKAGES[name] = case
    return case


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def labels(count: int, classes: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, classes, count).astype(np.int32)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
