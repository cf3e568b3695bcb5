"""Steps of third-party libraries plan, run on eight devices and give the same numbers as unsharded."""

from __future__ import annotations

import jax
import pytest
from forced import device_mesh, priced_on
from packages import PACKAGES
from planned import Job, outcomes

MESHES = ({"x": 8}, {"x": 2, "y": 4})
SMALL = ("optax_lbfgs", "jraph", "penzai")
"""What is quick enough for every run of the tests; `make test-packages` takes all, on more meshes."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL)
def test_packages_compute_the_same(name: str) -> None:
    with jax.numpy_dtype_promotion("standard"):
        (found,) = outcomes([Job(PACKAGES[name](), MESHES[1:], drawn=0)])
    assert found.status == "passed", found
    assert (found.shards, found.origin == "replicated") == (8, False)


REPLICATED = {"diffrax": {"pure_callback"}, "diffrax_implicit": {"pure_callback", "linear_solve"}}
"""Ops that run whole on every device; docs/rules.md lists them with their reasons."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["blackjax", "diffrax", "diffrax_implicit", "flax_nnx"])
def test_what_is_replicated_is_known(name: str) -> None:
    with jax.numpy_dtype_promotion("standard"):
        decisions = priced_on(PACKAGES[name](), device_mesh(**MESHES[1])).decisions
    assert {op.name for op in decisions.unruled} == REPLICATED.get(name, set())
