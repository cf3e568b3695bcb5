"""From a user's function to a jaxpr, allocating nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, KeyPath, PyTreeDef, SequenceKey

from planner.errors import TraceError


@dataclass(frozen=True)
class Traced:
    """A function as a jaxpr, with the pytrees around it.

    Attributes:
        name: the function's own name.
        jaxpr: closed, over the flattened arguments.
        in_tree, out_tree: structure of the argument tuple and of the result.
        in_paths, out_paths: a readable name per leaf, such as `params/layers/0/wq`.
        in_avals, out_avals: shape and dtype per leaf.
    """

    name: str
    jaxpr: jex_core.ClosedJaxpr
    in_tree: PyTreeDef
    out_tree: PyTreeDef
    in_paths: tuple[str, ...]
    out_paths: tuple[str, ...]
    in_avals: tuple[jax.ShapeDtypeStruct, ...]
    out_avals: tuple[jax.ShapeDtypeStruct, ...]


def trace(fn: Callable[..., Any], example_args: tuple[Any, ...]) -> Traced:
    """Traces `fn` with arguments of the shapes and dtypes of `example_args`.

    Args:
        fn: any JAX function of pytrees of arrays.
        example_args: pytrees of arrays, scalars or `jax.ShapeDtypeStruct`.

    Raises:
        TraceError: `fn` raised while it was traced, or an argument is not an array; the cause is chained.
    """
    if not callable(fn):
        raise TraceError(f"{fn!r} is not callable; give the function first, then its example arguments")
    name = getattr(fn, "__name__", type(fn).__name__)
    paths, in_tree = jax.tree_util.tree_flatten_with_path(tuple(example_args))
    in_paths = argument_names(fn, tuple(path for path, _ in paths), len(example_args))
    in_avals = tuple(abstract(leaf, what) for (_, leaf), what in zip(paths, in_paths, strict=True))
    try:
        jaxpr, out_shape = jax.make_jaxpr(fn, return_shape=True)(*jax.tree.unflatten(in_tree, in_avals))
    except Exception as error:
        raise TraceError(
            f"{name} does not trace with the example arguments: {type(error).__name__}: {error}\n"
            f"Meshwright plans what jax.jit can trace: check that jax.make_jaxpr({name})(*example_args) works"
        ) from error
    out_leaves, out_tree = jax.tree_util.tree_flatten_with_path(out_shape)
    out_paths = tuple(path_name(path) or "result" for path, _ in out_leaves)
    out_avals = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in jaxpr.out_avals)
    return Traced(name, jaxpr, in_tree, out_tree, in_paths, out_paths, in_avals, out_avals)


def abstract(leaf: Any, what: str) -> jax.ShapeDtypeStruct:
    """Shape, dtype and weak type of an argument's leaf, with no layout and no data.

    Raises:
        TraceError: the leaf is nothing that JAX takes for an array.
    """
    try:
        aval = jax.typeof(leaf) if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf
    except TypeError as error:
        raise TraceError(
            f"argument {what} is {leaf!r}, not an array or jax.ShapeDtypeStruct; "
            f"bind static arguments with functools.partial"
        ) from error
    dtype = aval.dtype if jnp.issubdtype(aval.dtype, jax.dtypes.extended) else np.dtype(aval.dtype)
    weak_type = bool(getattr(aval, "weak_type", False))
    return jax.ShapeDtypeStruct(aval.shape, dtype, weak_type=weak_type)


def argument_names(fn: Callable[..., Any], paths: tuple[KeyPath[Any], ...], count: int) -> tuple[str, ...]:
    """A readable name per argument leaf: the parameter's own name, then the path inside it."""
    parameters = parameter_names(fn, count)
    return tuple("/".join(filter(None, (parameters[path[0].idx], path_name(path[1:])))) for path in paths)


def parameter_names(fn: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The names of the `count` positional parameters of `fn`; their positions where it has no signature."""
    try:
        bound = inspect.signature(fn).bind(*range(count))
    except (TypeError, ValueError):
        return tuple(str(position) for position in range(count))
    names: dict[int, str] = {}
    for name, value in bound.arguments.items():
        positions = value if isinstance(value, tuple) else (value,)
        for position in positions:
            names[position] = name if not isinstance(value, tuple) else f"{name}[{position}]"
    return tuple(names[position] for position in range(count))


def path_name(path: KeyPath[Any]) -> str:
    """`layers/0/wq` for a pytree key path."""
    return "/".join(_key_name(key) for key in path)


def _key_name(key: Any) -> str:
    match key:
        case DictKey(key=name) | FlattenedIndexKey(key=name):
            return str(name)
        case SequenceKey(idx=index):
            return str(index)
        case GetAttrKey(name=name):
            return str(name)
    return str(key)
