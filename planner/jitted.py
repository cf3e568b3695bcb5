"""A planned function as users call it: like what `jax.jit` returns, laid out as planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from planner._jax_compat import trace_state_clean
from planner.errors import PlanMismatch
from planner.mesh import auto_mesh
from planner.trace import Traced, abstract

FIRST = 3
"""How many arguments an error names that are missing, or too many."""
LONGEST = 200
"""Characters of a structure in an error."""


class PlannedFunction:
    """A compiled-on-first-call function of pytrees; `plan.jit()` makes it.

    Arrays may come laid out in any way, or from the host: those that lie otherwise than planned are moved first. Inside
    another transformation (`jax.jit`, `jax.grad`, `jax.vmap`) it is a function like any other. On a mesh with Explicit
    axes arguments and results have their shardings in their types; inside, the axes are Auto.
    """

    def __init__(
        self,
        flat: Callable[..., list[Any]],
        traced: Traced,
        mesh: Mesh,
        in_specs: Sequence[PartitionSpec],
        out_specs: Sequence[PartitionSpec],
        donate_argnums: Sequence[int],
    ):
        self.__name__ = traced.name
        self._traced = traced
        self._mesh, self._auto = mesh, auto_mesh(mesh)
        self._in_shardings = [NamedSharding(self._auto, spec) for spec in in_specs]
        self._out_shardings = [NamedSharding(mesh, spec) for spec in out_specs]
        out_tree = traced.out_tree

        def call(*args: Any) -> Any:
            return jax.tree.unflatten(out_tree, flat(*jax.tree.leaves(args)))

        call.__name__ = traced.name
        self._jitted = jax.jit(
            call,
            in_shardings=jax.tree.unflatten(traced.in_tree, self._in_shardings),
            out_shardings=jax.tree.unflatten(out_tree, [NamedSharding(self._auto, spec) for spec in out_specs]),
            donate_argnums=tuple(donate_argnums),
        )

    def __call__(self, *args: Any) -> Any:
        """Runs the step.

        Raises:
            PlanMismatch: the arguments' structure, shapes or dtypes are not those of the example.
        """
        leaves, tree = jax.tree.flatten(args)
        if not _as_planned(self._traced, leaves, tree):
            check_arguments(self._traced, args)
        if not trace_state_clean() or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._call_traced(args)
        if not _has_explicit(self._mesh, jax.sharding.get_abstract_mesh()):
            return self._jitted(*self._placed(args))
        with jax.set_mesh(self._auto):
            results = self._jitted(*self._placed(args))
        # The same shards under the user's mesh: nothing moves.
        shards = jax.device_put(jax.tree.leaves(results), self._out_shardings)
        return jax.tree.unflatten(self._traced.out_tree, shards)

    def _call_traced(self, args: tuple[Any, ...]) -> Any:
        """The call inside another transformation; where the arrays behind a tracer lie, it does not tell."""
        if _has_explicit(jax.sharding.get_abstract_mesh()):
            return self._auto_inside(*args)
        if not _has_explicit(*(jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(args))):
            try:
                return self._jitted(*args)
            except ValueError:
                pass  # differentiated eagerly, and committed to another layout: moved like any others
        shardings = jax.tree.unflatten(self._traced.in_tree, self._in_shardings)
        return self._jitted(*jax.tree.map(jax.device_put, args, shardings))

    def _auto_inside(self, *args: Any) -> Any:
        """The call while arrays with shardings in their types are traced."""
        in_shardings = [NamedSharding(self._mesh, sharding.spec) for sharding in self._in_shardings]
        placed = jax.sharding.reshard(args, jax.tree.unflatten(self._traced.in_tree, in_shardings))
        out_shardings = jax.tree.unflatten(self._traced.out_tree, self._out_shardings)
        return jax.sharding.auto_axes(self._jitted, out_sharding=out_shardings)(*placed)

    def _placed(self, args: tuple[Any, ...]) -> Any:
        leaves = zip(jax.tree.leaves(args), self._in_shardings, strict=True)
        return jax.tree.unflatten(self._traced.in_tree, [place(leaf, sharding) for leaf, sharding in leaves])

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """Lowers for arguments that may be `jax.ShapeDtypeStruct`, as `jax.jit(f).lower` does."""
        leaves = check_arguments(self._traced, args)
        return self._jitted.lower(*jax.tree.unflatten(self._traced.in_tree, leaves))


def _has_explicit(*meshes: Mesh | AbstractMesh) -> bool:
    return any(AxisType.Explicit in mesh.axis_types for mesh in meshes)


def place(leaf: Any, sharding: NamedSharding) -> Any:
    """The array in this layout; itself if it lies so already."""
    if isinstance(leaf, jax.Array) and leaf.committed and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    return jax.device_put(leaf, sharding)


def _as_planned(traced: Traced, leaves: Sequence[Any], tree: PyTreeDef) -> bool:
    """Whether all are JAX arrays of the example's shapes and dtypes: a fraction of what saying what differs takes."""
    return tree == traced.in_tree and all(
        isinstance(have, jax.Array) and have.shape == want.shape and have.dtype == want.dtype
        for have, want in zip(leaves, traced.in_avals, strict=True)
    )


def check_arguments(traced: Traced, args: tuple[Any, ...]) -> list[jax.ShapeDtypeStruct]:
    """The arguments' shapes, which must be the example's.

    Raises:
        PlanMismatch: names the first argument that differs.
    """
    leaves, tree = jax.tree.flatten(tuple(args))
    if tree != traced.in_tree:
        raise PlanMismatch(_structure_message(traced, args))
    found = [abstract(leaf, path) for leaf, path in zip(leaves, traced.in_paths, strict=True)]
    for path, have, want in zip(traced.in_paths, found, traced.in_avals, strict=True):
        if have.shape != want.shape or have.dtype != want.dtype:
            raise PlanMismatch(
                f"argument {path} of {traced.name} is {have.dtype}{list(have.shape)}, the plan was made for "
                f"{want.dtype}{list(want.shape)}; plan again for the new shapes, or use autoshard, which does"
            )
    return found


def _structure_message(traced: Traced, args: tuple[Any, ...]) -> str:
    """The first arguments that only the one structure has; where both have the same, their containers differ."""
    wanted = jax.tree.leaves_with_path(jax.tree.unflatten(traced.in_tree, traced.in_paths))
    names = {jax.tree_util.keystr(path): name for path, name in wanted}
    given = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(args)]
    missing = [name for path, name in names.items() if path not in set(given)]
    beyond = [f"args{path}" for path in given if path not in names]
    told = [f"misses {_some(missing)}"] if missing else []
    told += [f"is given {_some(beyond)} beside"] if beyond else []
    if not told:
        told = [f"is given {_shortened(jax.tree.structure(args))} for {_shortened(traced.in_tree)}"]
    return (
        f"{traced.name} is called with arguments of another structure than it was planned for: it "
        f"{' and '.join(told)}; plan again with example arguments of that structure"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - FIRST} more" if len(names) > FIRST else ""
    return ", ".join(names[:FIRST]) + more


def _shortened(tree: PyTreeDef) -> str:
    text = str(tree)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({tree.num_leaves} leaves)"
