"""Eight CPU devices and strict dtype promotion for every test; set before anything touches a device."""

from collections.abc import Iterator

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(autouse=True)
def _strict_promotion() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"):
        yield
