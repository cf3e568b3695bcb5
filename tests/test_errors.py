"""Bad input gets one clear error: what, where, what was found, and what to do."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from costmodel_cases import SOLVERS_PRICES
from forced import device_mesh
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from planner import (
    Infeasible,
    InvalidSpec,
    MeshwrightError,
    NoDevices,
    PlanMismatch,
    ReplicatedPrimitiveWarning,
    TraceError,
    UnknownPreset,
    UnknownPrimitive,
    autoshard,
    plan,
)

P = PartitionSpec
MESH = device_mesh(x=2, y=4)


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ w)


ARGS = (jax.ShapeDtypeStruct((16, 12), jnp.float32), jax.ShapeDtypeStruct((12, 8), jnp.float32))


# PartitionSpecs


@pytest.mark.parametrize(
    ("in_specs", "message"),
    [
        ((P("x", "x"), None), r"x: .*names the mesh axis 'x' twice"),
        ((P(("y", "y")), None), r"x: .*names the mesh axis 'y' twice"),
        ((None, P("model")), r"w: .*names the mesh axis 'model', the mesh has x, y"),
        ((None, P("x", None, None)), r"w: .*has 3 entries for an array of shape \(12, 8\)"),
        ((P(None, ("x", "y")), None), r"x: .*dimension 1 of size 12 into 8 shards \(x x y\).*choose another"),
        ((None, "x"), r"in_specs holds 'x'; give a jax.sharding.PartitionSpec"),
        ((None, None, None), r"in_specs is no pytree prefix of what it describes"),
        ({"x": P()}, r"in_specs is no pytree prefix of what it describes"),
        ((None, {"w": P()}), r"in_specs is no pytree prefix of what it describes"),
    ],
)
def test_in_specs_that_cannot_be(in_specs: Any, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        plan(layer, ARGS, MESH, in_specs=in_specs)


@pytest.mark.parametrize(
    ("out_specs", "message"),
    [
        (P("y", "y"), "names the mesh axis 'y' twice"),
        (P("z"), "names the mesh axis 'z', the mesh has x, y"),
        (P("x", "y", None), "has 3 entries for an array of shape"),
        ([P(), P()], "out_specs is no pytree prefix"),
    ],
)
def test_out_specs_that_cannot_be(out_specs: Any, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        plan(layer, ARGS, MESH, out_specs=out_specs)


def test_out_spec_that_does_not_divide() -> None:
    with pytest.raises(InvalidSpec, match="dimension 0 of size 12 into 8 shards"):
        plan(lambda x: x.T, ARGS[:1], MESH, out_specs=P(("x", "y")))


def test_named_sharding_in_place_of_a_spec_says_what_to_give() -> None:
    with pytest.raises(InvalidSpec, match=r"give a jax\.sharding\.PartitionSpec"):
        plan(layer, ARGS, MESH, in_specs=(NamedSharding(MESH, P("x")), None))


def test_constraint_for_another_mesh() -> None:
    other = device_mesh(data=8)

    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(other, P("data"))) + 1

    with pytest.raises(
        InvalidSpec, match=r"with_sharding_constraint at test_errors\.py:\d+.*'data', the mesh has x, y"
    ):
        plan(fn, ARGS[:1], MESH)


@pytest.mark.parametrize("argnums", [2, (0, 5), -3])
def test_donated_argument_that_is_not_there(argnums: Any) -> None:
    with pytest.raises(InvalidSpec, match=r"donate_argnums names argument (2|5|-3), layer takes 2"):
        plan(layer, ARGS, MESH, donate_argnums=argnums)


# Functions and arguments


def test_a_function_that_does_not_trace() -> None:
    def branches(x: jax.Array) -> jax.Array:
        return x if x.sum() > 0 else -x

    with pytest.raises(TraceError, match=r"branches does not trace.*TracerBoolConversionError") as caught:
        plan(branches, ARGS[:1], MESH)
    assert "jax.make_jaxpr(branches)" in str(caught.value)
    assert isinstance(caught.value.__cause__, jax.errors.TracerBoolConversionError)


def test_shapes_that_do_not_fit_each_other() -> None:
    with pytest.raises(TraceError, match=r"layer does not trace.*dot_general"):
        plan(layer, ARGS[::-1], MESH)


def test_too_few_arguments() -> None:
    with pytest.raises(TraceError, match=r"layer does not trace.*missing 1 required positional argument: 'w'"):
        plan(layer, ARGS[:1], MESH)


@pytest.mark.parametrize("leaf", ["text", object(), lambda x: x])
def test_an_argument_that_is_no_array(leaf: Any) -> None:
    with pytest.raises(TraceError, match=r"argument w/scale is .*bind static arguments with functools\.partial"):
        plan(layer, (ARGS[0], {"scale": leaf}), MESH)


def test_a_function_that_is_none() -> None:
    with pytest.raises(TraceError, match=r"None is not callable; give the function first"):
        plan(None, ARGS, MESH)  # type: ignore[arg-type]


def ones(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((ones(16, 12, dtype=np.float64), ones(12, 8)), r"argument x of layer is float64\[16, 12\].*made for float32"),
        ((ones(16, 12), ones(12, 16)), r"argument w of layer is float32\[12, 16\].*plan again"),
        ((ones(16, 12, dtype=np.int32), ones(12, 8)), r"argument x of layer is int32"),
        ((ones(16, 12),), r"another structure than it was planned for: it misses w; plan again"),
        ((ones(16, 12), ones(12, 8), 3), r"it is given args\[2\] beside; plan again"),
        (({"x": ones(16, 12)}, ones(12, 8)), r"it misses x and is given args\[0\]\['x'\] beside"),
        (([1.0] * 9, ones(12, 8)), r"args\[0\]\[0\], args\[0\]\[1\], args\[0\]\[2\] and 6 more beside"),
        ((ones(16, 12), "w"), r"argument w is 'w'"),
    ],
)
def test_arguments_other_than_the_example(args: tuple[Any, ...], message: str) -> None:
    planned = plan(layer, ARGS, MESH)
    with jax.enable_x64(True):
        for call in (planned.jit(), planned.place, planned.jit().lower):
            with pytest.raises(MeshwrightError, match=message) as caught:
                call(*args)
            assert isinstance(caught.value, PlanMismatch | TraceError)


def test_the_same_arguments_in_other_containers() -> None:
    """However many they are, the message stays short."""
    many = [ones(1)] * 1000
    planned = plan(lambda arrays: arrays[0] + arrays[-1], (many,), MESH)
    with pytest.raises(PlanMismatch, match=r"is given PyTreeDef.*leaves\) for PyTreeDef.*1000 leaves\)") as caught:
        planned.jit()(tuple(many))
    assert len(str(caught.value)) < 1000


# Meshes


@pytest.mark.parametrize("count", [0, -8])
def test_no_devices_to_count(count: int) -> None:
    with pytest.raises(NoDevices, match=f"cannot plan for {count} devices; give a positive count"):
        plan(layer, ARGS, count)


@pytest.mark.parametrize(
    "mesh", [Mesh(np.empty((0,), object), ("x",)), AbstractMesh((), ()), AbstractMesh((0,), ("x",))]
)
def test_empty_mesh(mesh: Mesh | AbstractMesh) -> None:
    with pytest.raises(NoDevices, match="the mesh has no devices"):
        plan(layer, ARGS, mesh)


@pytest.mark.parametrize("name", ["h100-dgx:zero", "h100-dqx:1", "", "v5e:0x4", "v5e:2x4x2x2"])
def test_unknown_preset(name: str) -> None:
    with pytest.raises(UnknownPreset, match=re.escape(repr(name))):
        plan(layer, ARGS, name)


@pytest.mark.parametrize("mesh", [None, 8.0, True, ("x", "y"), {"x": 8}])
def test_what_is_no_mesh(mesh: Any) -> None:
    with pytest.raises(InvalidSpec, match=r"mesh is .*give a jax\.sharding\.Mesh"):
        plan(layer, ARGS, mesh)


def test_running_without_devices() -> None:
    planned = plan(layer, ARGS, AbstractMesh((2, 4), ("x", "y")))
    with pytest.raises(NoDevices, match=r"cannot run: the plan is for .*which has no devices here"):
        planned.jit()
    with pytest.raises(NoDevices, match="cannot place arrays"):
        planned.place(*ARGS)


def test_autoshard_says_the_same() -> None:
    with pytest.raises(UnknownPreset, match="'abacus:8'"):
        autoshard(layer, "abacus:8")(np.ones((16, 12), np.float32), np.ones((12, 8), np.float32))


# Limits


def train_step(weights: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    def loss(weights: dict[str, jax.Array]) -> jax.Array:
        hidden = jnp.tanh(x @ weights["a"])
        return jnp.sum((hidden @ weights["b"]) ** 2)

    return jax.tree.map(lambda w, g: w - np.float32(0.1) * g, weights, jax.grad(loss)(weights))


WEIGHT = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
TRAIN_ARGS = ({"a": WEIGHT, "b": WEIGHT}, jax.ShapeDtypeStruct((4096, 1024), jnp.float32))
train_plan = functools.partial(plan, train_step, TRAIN_ARGS, MESH, donate_argnums=0, cost_model=SOLVERS_PRICES)
MIB = 2.0**20


def test_a_limit_that_nothing_fits() -> None:
    expected = r"no plan fits 512\.0 KiB per device; the smallest needs .*MiB at test_errors\.py:\d+"
    with pytest.raises(Infeasible, match=expected) as caught:
        train_plan(memory_limit=MIB / 2, time_limit=30)
    message, smallest = str(caught.value), caught.value.smallest_limit_bytes
    assert re.search(r"Largest there: .*(x|weights/[ab]) \d", message), "arguments go by their names"
    assert re.search(r"Largest there: .*[KM]iB \(test_errors\.py:\d+\)", message), "temporaries by their lines"
    arguments = sum(math.prod(leaf.shape) * 4 for leaf in jax.tree.leaves(TRAIN_ARGS))
    assert smallest >= arguments / 8, "all of the arguments are alive at once"
    assert train_plan(memory_limit=smallest, time_limit=30).prediction.peak_bytes <= smallest
    with pytest.raises(Infeasible):
        train_plan(memory_limit=smallest * 0.95, time_limit=30)


@functools.cache
def limit_between() -> float:
    """Half way from what the plan needs that is best without a limit to the least that any needs."""
    with pytest.raises(Infeasible) as caught:
        train_plan(memory_limit=1, time_limit=4)
    return (caught.value.smallest_limit_bytes + train_plan().prediction.peak_bytes) / 2


def test_a_limit_is_held() -> None:
    free, limit = train_plan(), limit_between()
    assert limit < free.prediction.peak_bytes
    held = train_plan(memory_limit=limit, time_limit=4)
    assert held.prediction.peak_bytes <= limit
    assert held.objective_seconds >= free.objective_seconds * (1 - 1e-9)
    assert held.status in ("optimal", "feasible"), "there was time to search"
    assert train_plan(memory_limit=free.prediction.peak_bytes).in_specs == free.in_specs


@pytest.mark.parametrize("limit", [math.nan, -1.0])
@pytest.mark.parametrize("what", ["memory_limit", "time_limit"])
def test_a_limit_that_is_none(what: str, limit: float) -> None:
    with pytest.raises((MeshwrightError, ValueError), match=rf"{what} is {limit}"):
        train_plan(**{what: limit})


def test_no_time_gives_the_best_baseline() -> None:
    planned = train_plan(time_limit=0)
    assert planned.status == "baseline"
    best = min(planned.alternatives.values(), key=lambda other: other.objective_seconds)
    assert planned.objective_seconds == pytest.approx(best.objective_seconds)
    assert planned.in_specs == best.in_specs
    assert "baseline" in planned.explain()
    assert planned.lower_bound_seconds <= planned.objective_seconds
    assert 0 <= planned.gap <= 1


def test_no_time_names_the_baseline() -> None:
    """`strategy` is "planned", or the name of the hand-written layout that this is."""
    planned = train_plan(time_limit=0)
    assert planned.alternatives[planned.strategy].in_specs == planned.in_specs


def test_no_time_holds_a_memory_limit_too() -> None:
    limit = limit_between()
    assert train_plan(time_limit=0, memory_limit=limit).prediction.peak_bytes <= limit


# Ops that nobody knows

riddle_p = Primitive("riddle")
riddle_p.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
mlir.register_lowering(riddle_p, mlir.lower_fun(lambda x: jax.pure_callback(np.sort, x, x), multiple_results=False))


def test_an_op_without_a_rule_is_replicated_with_a_warning() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return riddle_p.bind(x * 2) + 1

    with pytest.warns(
        ReplicatedPrimitiveWarning, match=r"no sharding rule for riddle at test_errors\.py:\d+.*register_rule"
    ) as warned:
        planned = plan(fn, ARGS[:1], MESH)
    assert [warning.filename for warning in warned] == [__file__], "the warning points at the caller of plan"
    x = np.arange(192, dtype=np.float32)[::-1].reshape(16, 12)
    np.testing.assert_array_equal(planned.jit()(x), np.sort(x * 2) + 1)
    with pytest.raises(UnknownPrimitive, match=r"no sharding rule for riddle at test_errors\.py:\d+"):
        plan(fn, ARGS[:1], MESH, unknown="error")


def test_unknown_is_one_of_two() -> None:
    with pytest.raises((MeshwrightError, ValueError), match=r"unknown is 'ignore'"):
        plan(layer, ARGS, MESH, unknown="ignore")  # type: ignore[arg-type]
