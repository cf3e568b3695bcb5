"""What people type on the command line, read: a function to plan, a mesh, a number of bytes."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import typer
from jax.sharding import Mesh

from executor import keep_freed_memory
from experiments import workloads
from experiments.workloads import Size, Workload
from planner import InvalidSpec, NoDevices
from planner.mesh import AXIS_NAMES

DEVICES = 8
"""How many CPU devices there are, unless the mesh asks for more."""

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True)
class Target:
    """A function to plan, the shapes to plan it for, and how to make arguments to run it on."""

    fn: Callable[..., Any]
    example_args: tuple[Any, ...]
    make_args: Callable[[jax.Array], tuple[Any, ...]]
    donate_argnums: tuple[int, ...] = ()
    description: str = ""


def target(name: str, size: Size) -> Target:
    """A workload by its name, or what `module:function` returns: `(fn, example_args)`.

    Raises:
        typer.BadParameter: there is no such workload, module or function, or it returns something else.
    """
    if ":" in name:
        return _users_target(name)
    work = workload(name, size)
    return Target(work.fn, work.example_args, work.make_args, work.donate_argnums, work.description)


def workload(name: str, size: Size = "test") -> Workload:
    """The workload of that name.

    Raises:
        typer.BadParameter: there is none.
    """
    try:
        return workloads.workload(name, size)
    except ValueError as error:
        raise typer.BadParameter(f"{error}. A function of your own is planned as module:function") from error


def _users_target(name: str) -> Target:
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, os.getcwd())  # an installed command does not look here by itself
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        inspect.signature(function).bind()
    except (ImportError, AttributeError, TypeError) as error:
        raise typer.BadParameter(f"{name} cannot be called without arguments: {error}") from error
    match found := function():
        case (fn, tuple(example_args)) if callable(fn):
            return Target(fn, example_args, partial(filled, example_args), description=inspect.getdoc(fn) or "")
    raise typer.BadParameter(f"{name}() returned {found!r}; it should return (fn, (example argument, ...))")


def normal(leaf: jax.ShapeDtypeStruct, key: jax.Array) -> jax.Array:
    """Numbers of such an array; zeros where those are no floats."""
    is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.random.normal(key, leaf.shape, leaf.dtype) if is_float else jnp.zeros(leaf.shape, leaf.dtype)


def filled(
    example_args: tuple[Any, ...],
    key: jax.Array,
    drawn: Callable[[jax.ShapeDtypeStruct, jax.Array], jax.Array] = normal,
) -> tuple[Any, ...]:
    """The arguments themselves where they are arrays; for shapes such arrays, drawn by a key of their own."""
    leaves, tree = jax.tree.flatten(example_args)
    keys = jax.random.split(key, len(leaves))
    made = [
        drawn(leaf, each) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        for leaf, each in zip(leaves, keys, strict=True)
    ]
    return tuple(jax.tree.unflatten(tree, made))


def mesh(text: str) -> Mesh | str | int:
    """What `plan` takes: `2x4` is a mesh of devices at hand, `8` a number of them, all else a preset's name.

    Raises:
        NoDevices: fewer are at hand.
        InvalidSpec: the mesh has more axes than there are names.
    """
    sizes = shape(text)
    if not sizes:
        return text
    return sizes[0] if len(sizes) == 1 else device_mesh(sizes)


def shape(text: str) -> tuple[int, ...]:
    """`(2, 4)` of `2x4`; empty if the text is no shape."""
    return tuple(map(int, text.split("x"))) if re.fullmatch(r"\d+(x\d+)*", text) else ()


def device_mesh(sizes: tuple[int, ...]) -> Mesh:
    """The first devices at hand as a mesh of this shape, with axes x, y and z.

    Raises:
        NoDevices: fewer are at hand.
        InvalidSpec: the mesh has no axes, or more than there are names.
    """
    if not 1 <= len(sizes) <= len(AXIS_NAMES):
        raise InvalidSpec(
            f"a mesh of devices has one to {len(AXIS_NAMES)} axes, not {len(sizes)}; write for example 2x4"
        )
    devices, count = jax.devices(), math.prod(sizes)
    if not 0 < count <= len(devices):
        raise NoDevices(
            f"a mesh of shape {sizes} takes {count} devices, at hand are {len(devices)} of kind "
            f"{devices[0].device_kind}; with JAX_PLATFORMS=cpu there are as many CPU devices as the mesh takes"
        )
    return jax.make_mesh(sizes, AXIS_NAMES[: len(sizes)], devices=devices[:count])


def nbytes(text: str) -> float:
    """Bytes from a number with a unit: `16GiB`.

    Raises:
        typer.BadParameter: it is none.
    """
    found = re.fullmatch(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})?\s*", text)
    if not found:
        raise typer.BadParameter(f"{text!r} is no number of bytes; write for example 16GiB")
    return float(found[1]) * _UNITS[found[2] or "B"]


def offer_cpu_devices(mesh_text: str = "") -> None:
    """Makes JAX start with CPU devices enough for the mesh, where it starts on CPU and the user named no number.

    To be called before anything touches a device. Memory that they free stays here, so that each call is as long.
    """
    keep_freed_memory()
    named_to_xla = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if jax.config.values["jax_num_cpu_devices"] <= 0 and not named_to_xla:
        jax.config.update("jax_num_cpu_devices", max(DEVICES, math.prod(shape(mesh_text))))
