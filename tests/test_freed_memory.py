"""Whether programs find the memory again that they have freed: in fresh processes, for malloc remembers."""

from __future__ import annotations

import resource
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from executor import keep_freed_memory
from experiments.arguments import device_mesh
from experiments.child import call_in_child

PAGES = 8 * 4096
"""Of 16 MiB on each of eight devices."""
CALLS = 40
"""Of which the second half counts: where other work delays who frees memory, what is kept grows for some 20 calls."""


def faults(kept: bool) -> float:
    """Pages that the system hands to a call of a program that was called often, and whose results were dropped."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    if kept:
        keep_freed_memory()
    split = NamedSharding(device_mesh((8,)), PartitionSpec("x"))
    add = jax.jit(lambda x: x + 1, out_shardings=split)
    array = jax.device_put(jnp.zeros((8, 2**22)), split)
    counted = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
    for _ in range(CALLS):
        jax.block_until_ready(add(array))
        counted.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return float(np.median(np.diff(counted)[CALLS // 2 :]))


@pytest.mark.skipif(sys.platform != "linux", reason="page faults of glibc's malloc")
def test_a_program_finds_the_memory_again_that_it_freed() -> None:
    kept, given_back = (call_in_child(faults, keep, timeout_seconds=120) for keep in (True, False))
    assert kept < PAGES / 100
    assert 10 * kept < given_back  # of huge pages, where the system has them, there are few in any case
