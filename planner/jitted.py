"""A planned function as users call it: like what `jax.jit` returns, laid out as planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.tree_util import PyTreeDef

from planner.errors import PlanMismatch
from planner.trace import Traced, abstract


class PlannedFunction:
    """A compiled-on-first-call function of pytrees; `plan.jit()` makes it.

    Arrays may come laid out in any way, or from the host: those that lie otherwise than planned are moved first. Inside
    another transformation (`jax.jit`, `jax.grad`, `jax.vmap`) it is a function like any other.
    """

    def __init__(
        self,
        flat: Callable[..., list[Any]],
        traced: Traced,
        mesh: Mesh,
        in_shardings: Sequence[NamedSharding],
        out_shardings: Sequence[NamedSharding],
        donate_argnums: Sequence[int],
    ):
        self.__name__ = traced.name
        self._traced = traced
        self._in_shardings = tuple(in_shardings)
        out_tree = traced.out_tree

        def call(*args: Any) -> Any:
            return jax.tree.unflatten(out_tree, flat(*jax.tree.leaves(args)))

        call.__name__ = traced.name
        self._jitted = jax.jit(
            call,
            in_shardings=jax.tree.unflatten(traced.in_tree, in_shardings),
            out_shardings=jax.tree.unflatten(out_tree, out_shardings),
            donate_argnums=tuple(donate_argnums),
        )

    def __call__(self, *args: Any) -> Any:
        """Runs the step.

        Raises:
            PlanMismatch: the arguments' structure, shapes or dtypes are not those of the example.
        """
        return self._jitted(*self._placed(args))

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """Lowers for arguments that may be `jax.ShapeDtypeStruct`, as `jax.jit(f).lower` does."""
        leaves = check_arguments(self._traced, args)
        structs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type) for leaf in leaves]
        return self._jitted.lower(*jax.tree.unflatten(self._traced.in_tree, structs))

    def _placed(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        check_arguments(self._traced, args)
        leaves = jax.tree.leaves(args)
        moved = [place(leaf, sharding) for leaf, sharding in zip(leaves, self._in_shardings, strict=True)]
        return tuple(jax.tree.unflatten(self._traced.in_tree, moved))


def place(leaf: Any, sharding: NamedSharding) -> Any:
    """The array in this layout; itself if it is a tracer or lies so already."""
    if isinstance(leaf, jax.core.Tracer):
        return leaf
    if isinstance(leaf, jax.Array) and leaf.committed and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    return jax.device_put(leaf, sharding)


def check_arguments(traced: Traced, args: tuple[Any, ...]) -> list[jax.ShapeDtypeStruct]:
    """The arguments' shapes, which must be the example's.

    Raises:
        PlanMismatch: names the first argument that differs.
    """
    leaves, tree = jax.tree.flatten(tuple(args))
    if tree != traced.in_tree:
        raise PlanMismatch(_structure_message(traced, tree))
    found = [abstract(leaf, path) for leaf, path in zip(leaves, traced.in_paths, strict=True)]
    for path, have, want in zip(traced.in_paths, found, traced.in_avals, strict=True):
        if have.shape != want.shape or have.dtype != want.dtype:
            raise PlanMismatch(
                f"argument {path} of {traced.name} is {have.dtype}{list(have.shape)}, the plan was made for "
                f"{want.dtype}{list(want.shape)}; plan again for the new shapes, or use autoshard, which does"
            )
    return found


def _structure_message(traced: Traced, tree: PyTreeDef) -> str:
    return (
        f"{traced.name} was planned for arguments of the structure\n  {traced.in_tree}\nbut is called with\n  {tree}\n"
        f"plan again with example arguments of that structure"
    )
