"""Eight CPU devices and strict dtype promotion for every test; set before anything touches a device."""

import os
from collections.abc import Iterator

# Before JAX loads it: eight devices call OpenBLAS at once, and its threads wait for each other, now and then for ever.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import jax
import pytest
from jax.extend.core import Primitive

from executor import keep_freed_memory
from planner.rules import registered

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
keep_freed_memory()

# Read before any test module is imported: what those register are not the planner's own rules.
_BUILT_IN = registered()


@pytest.fixture(scope="session")
def built_in() -> frozenset[Primitive]:
    """The primitives that the planner itself has a rule for."""
    return _BUILT_IN


@pytest.fixture(autouse=True)
def _strict_promotion() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"):
        yield
