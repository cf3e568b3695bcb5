"""`autoshard`: the drop-in for `jax.jit` that plans."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax

from planner.jitted import PlannedFunction
from planner.mesh import AnyMesh
from planner.plan import plan
from planner.planned import Plan
from planner.trace import abstract


class Autosharded:
    """A function that is planned at the first call for each structure, shape and dtype of its arguments."""

    def __init__(self, fn: Callable[..., Any], mesh: AnyMesh, options: dict[str, Any]):
        functools.update_wrapper(self, fn)
        self._fn, self._mesh, self._options = fn, mesh, options
        self._planned: dict[Hashable, tuple[Plan, PlannedFunction]] = {}

    def __call__(self, *args: Any) -> Any:
        return self._for(args)[1](*args)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """Lowers for these arguments, as `jax.jit(f).lower` does."""
        return self._for(args)[1].lower(*args)

    def plan_for(self, *args: Any) -> Plan:
        """The plan that these arguments run by."""
        return self._for(args)[0]

    def _for(self, args: tuple[Any, ...]) -> tuple[Plan, PlannedFunction]:
        leaves, tree = jax.tree.flatten(args)
        avals = tuple(abstract(leaf, "of " + getattr(self._fn, "__name__", "the function")) for leaf in leaves)
        key = (tree, tuple((aval.shape, str(aval.dtype), aval.weak_type) for aval in avals))
        if key not in self._planned:
            found = plan(self._fn, jax.tree.unflatten(tree, avals), self._mesh, **self._options)
            self._planned[key] = (found, found.jit())
        return self._planned[key]


def autoshard(fn: Callable[..., Any], mesh: AnyMesh, **options: Any) -> Autosharded:
    """A function that runs laid out over a mesh as `plan` would have it.

    Args:
        fn, mesh, options: as for `plan`. Planning happens at the first call for each shape of the arguments; arrays may
            come laid out in any way.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> layer = autoshard(lambda x, w: jax.nn.relu(x @ w), jax.make_mesh((1,), ("x",)))
        >>> layer(jnp.ones((8, 4)), jnp.ones((4, 2))).shape
        (8, 2)
    """
    return Autosharded(fn, mesh, options)
