"""What a workload is: a function, and how to make arguments for it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp

Size = Literal["test", "full"]
"""`test`: a replicated step takes under 2 s on eight CPU devices over two cores. `full`: to plan by shape."""


@dataclass(frozen=True)
class Workload:
    """A function worth sharding.

    `fn(*make_args(key))` runs it. Nothing is allocated before `make_args` is called, so a workload of any
    size can be planned on any machine.
    """

    name: str
    family: str
    description: str
    fn: Callable[..., Any]
    make_args: Callable[[jax.Array], tuple[Any, ...]]
    donate_argnums: tuple[int, ...] = ()

    @cached_property
    def example_args(self) -> tuple[Any, ...]:
        """The arguments as pytrees of `jax.ShapeDtypeStruct`."""
        return jax.eval_shape(lambda: self.make_args(jax.random.key(0)))


def gradient_of(workload: Workload) -> Workload:
    """The gradient of half the squared norm of the workload's result, for every argument."""

    def half_squared_norm(*args: jax.Array) -> jax.Array:
        return 0.5 * jnp.sum(workload.fn(*args) ** 2)

    return Workload(
        name=f"{workload.name}-grad",
        family=workload.family,
        description=f"the gradient of: {workload.description}",
        fn=jax.grad(half_squared_norm, argnums=tuple(range(len(workload.example_args)))),
        make_args=workload.make_args,
    )
