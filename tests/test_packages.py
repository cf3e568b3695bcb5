"""Steps of third-party libraries plan, run on eight devices and give the same numbers as unsharded."""

from __future__ import annotations

import jax
import pytest
from packages import PACKAGES
from planned import Job, outcomes

MESHES = ({"x": 8}, {"x": 2, "y": 4})
REPLICATED: dict[str, str] = {}
"""Cases with an op that runs whole on every device, and why; they are listed in docs/rules.md."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PACKAGES)
def test_packages_compute_the_same(name: str) -> None:
    with jax.numpy_dtype_promotion("standard"):
        (found,) = outcomes([Job(PACKAGES[name](), MESHES, drawn=1)])
    assert found.status == "passed", found
    assert found.shards == 8
    assert (found.origin == "replicated") == (name in REPLICATED)
