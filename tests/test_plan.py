"""`plan(...).jit()` is the function it was planned from, wherever and however it is called."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import KEY, Case, floats, ints
from costmodel_cases import SOLVERS_PRICES
from forced import device_mesh, differences
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from layer import BIG, EXPLICIT, MESH, assert_same, layer, layer_plan
from programs import PROGRAMS, W, X, custom_gradients, mlp_loss, scan_remat_loss

from planner import Plan, TraceError, plan

P = PartitionSpec


@pytest.mark.filterwarnings("ignore::planner.ReplicatedPrimitiveWarning")
@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case.name)
def test_planned_programs_compute_the_same(case: Case) -> None:
    planned = plan(case.fn, case.args, MESH, cost_model=SOLVERS_PRICES)
    assert_same(planned.jit()(*case.args), jax.jit(case.fn)(*case.args))
    assert planned.status == "optimal"


class Pair(NamedTuple):
    left: Any
    right: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    array: Any
    maybe: Any


def test_garbage_is_collected_again_whether_there_is_a_plan_or_not() -> None:
    mesh, x = AbstractMesh((8,), ("x",)), jax.ShapeDtypeStruct((64,), jnp.float32)
    plan(jnp.tanh, (x,), mesh)
    assert gc.isenabled()
    with pytest.raises(TraceError):
        plan(jnp.dot, (x, "no array"), mesh)
    assert gc.isenabled()


def test_pytrees_are_kept() -> None:
    def fn(pair: Pair, record: Record, *rest: Any) -> dict[str, Any]:
        total = pair.left @ pair.right["w"]
        return {"record": Record(total, None), "pair": Pair((), [total, rest[0]["n"]]), "maybe": record.maybe}

    args = (Pair(X, {"w": W}), Record(X, None), {"n": 3})
    assert_same(plan(fn, args, MESH).jit()(*args), jax.jit(fn)(*args))


def test_a_function_without_arguments() -> None:
    def fn() -> jax.Array:
        return jax.random.normal(jax.random.key(0), (64, 8)) @ jnp.ones((8, 8))

    assert_same(plan(fn, (), MESH).jit()(), jax.jit(fn)())


def test_a_function_without_results() -> None:
    assert plan(lambda x: None, (X,), MESH).jit()(X) is None


def test_scalars_and_weak_types() -> None:
    def fn(x: jax.Array, scale: float) -> tuple[jax.Array, jax.Array]:
        return x * scale, scale + 1

    args = (X.astype(jnp.bfloat16), 2.0)
    found, wanted = plan(fn, args, MESH).jit()(*args), jax.jit(fn)(*args)
    assert_same(found, wanted)
    assert found[0].dtype == jnp.bfloat16, "a Python number does not widen"


def test_keys_as_arguments() -> None:
    def fn(keys: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise = jax.vmap(lambda key: jax.random.normal(key, (32,)))(keys)
        return x + noise, jax.random.split(keys[0], 16)

    keys = jax.random.split(jax.random.key(0), 16)
    found, wanted = plan(fn, (keys, X), MESH).jit()(keys, X), jax.jit(fn)(keys, X)
    assert_same(found[0], wanted[0])
    assert_same(jax.random.key_data(found[1]), jax.random.key_data(wanted[1]))


def test_old_style_keys_as_arguments() -> None:
    def fn(key: jax.Array) -> jax.Array:
        return jax.random.uniform(key, (64, 8))

    assert_same(plan(fn, (KEY,), MESH).jit()(KEY), jax.jit(fn)(KEY))


@pytest.mark.parametrize("dtype", ["int32", "int8", "bool", "uint8", "complex64", "float16"])
def test_dtypes(dtype: str) -> None:
    x = (ints(16, 32) - 4).astype(dtype)

    def fn(x: jax.Array) -> tuple[jax.Array, ...]:
        return x.T, x.sum(axis=0), x[3:5], x == x[0]

    assert_same(plan(fn, (x,), MESH).jit()(x), jax.jit(fn)(x))


# How arrays come


def as_given(x: np.ndarray) -> Any:
    return x


def on_last_device(x: np.ndarray) -> jax.Array:
    return jax.device_put(x, SingleDeviceSharding(jax.devices()[-1]))


def uncommitted(x: np.ndarray) -> jax.Array:
    return jnp.asarray(x)


def replicated_elsewhere(x: np.ndarray) -> jax.Array:
    return jax.device_put(x, NamedSharding(jax.make_mesh((8,), ("other",)), P()))


def sharded_elsewhere(x: np.ndarray) -> jax.Array:
    return jax.device_put(x, NamedSharding(device_mesh(b=4, a=2), P(("a", "b"))))


def sharded_otherwise(x: np.ndarray) -> jax.Array:
    return jax.device_put(x, NamedSharding(MESH, P(None, ("y", "x"))))


def explicitly_sharded(x: np.ndarray) -> jax.Array:
    return jax.device_put(x, NamedSharding(EXPLICIT, P(None, "x")))


LYING = (
    as_given,
    on_last_device,
    uncommitted,
    replicated_elsewhere,
    sharded_elsewhere,
    sharded_otherwise,
    explicitly_sharded,
)


@pytest.mark.parametrize("lying", LYING)
@pytest.mark.parametrize("mesh", [MESH, EXPLICIT], ids=["auto", "explicit"])
def test_arrays_may_lie_anywhere(lying: Callable[[np.ndarray], Any], mesh: Mesh) -> None:
    args = tuple(map(lying, (BIG, floats(256, 256))))
    planned = layer_plan(mesh)
    result = planned.jit()(*args)
    assert_same(result, layer(*map(np.asarray, args)))
    assert result.sharding.is_equivalent_to(planned.out_shardings, 2)
    assert not any(isinstance(arg, jax.Array) and arg.is_deleted() for arg in args), "nothing was donated"


@pytest.mark.parametrize("lying", LYING)
def test_gradients_wherever_arrays_lie(lying: Callable[[np.ndarray], Any]) -> None:
    args = tuple(map(lying, (BIG, floats(256, 256))))
    step = layer_plan().jit()
    found = jax.grad(lambda *args: step(*args).sum(), argnums=(0, 1))(*args)
    assert_same(found, jax.grad(lambda *args: layer(*args).sum(), argnums=(0, 1))(*map(np.asarray, args)))


def test_place_lays_out_as_planned_and_moves_nothing_twice() -> None:
    planned = layer_plan()
    placed = planned.place(BIG, floats(256, 256))
    assert jax.tree.map(lambda array: array.sharding, placed) == planned.in_shardings
    again = planned.place(*placed)
    assert all(before is after for before, after in zip(placed, again, strict=True))


# Inside other transformations

LOSS_ARGS = (W, X, floats(32))


@functools.cache
def loss_plan(mesh: Mesh = MESH) -> Plan:
    return plan(mlp_loss, LOSS_ARGS, mesh, in_specs=(P("y"), P("x"), None))


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "jit": jax.jit,
    "grad": lambda fn: jax.grad(fn, argnums=(0, 2)),
    "value_and_grad": jax.value_and_grad,
    "jit of grad": lambda fn: jax.jit(jax.grad(fn)),
    "vmap": lambda fn: jax.vmap(fn, in_axes=(0, None, None)),
    "jit of vmap of grad": lambda fn: jax.jit(jax.vmap(jax.grad(fn), in_axes=(0, None, None))),
    "jvp": lambda fn: lambda *args: jax.jvp(fn, args, args),
    "hessian-vector product": lambda fn: lambda w, *rest: jax.jvp(lambda w: jax.grad(fn)(w, *rest), (w,), (w,)),
    "checkpoint": lambda fn: jax.grad(jax.checkpoint(fn)),
    "scan": lambda fn: (
        lambda w, *rest: jax.lax.scan(lambda total, _: (total + fn(w, *rest), None), jnp.float32(0), None, length=2)[0]
    ),
    "linearize": lambda fn: lambda *args: jax.linearize(fn, *args)[1](*args),
}


@pytest.mark.parametrize("mesh", [MESH, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_under_transformations(name: str, mesh: Mesh) -> None:
    transform = TRANSFORMS[name]
    args = (np.stack([W, W + 1]), *LOSS_ARGS[1:]) if "vmap" in name else LOSS_ARGS
    args = jax.tree.map(jnp.asarray, args)
    assert_same(transform(loss_plan(mesh).jit())(*args), transform(mlp_loss)(*args))


@pytest.mark.parametrize("mesh", [MESH, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", ["jit", "grad", "jit of grad"])
def test_under_transformations_of_placed_arrays(name: str, mesh: Mesh) -> None:
    """Arrays that carry an Explicit mesh in their types are traced with it."""
    planned = loss_plan(mesh)
    args = planned.place(*LOSS_ARGS)
    assert_same(TRANSFORMS[name](planned.jit())(*args), TRANSFORMS[name](mlp_loss)(*LOSS_ARGS))


@pytest.mark.parametrize("mesh", [MESH, EXPLICIT], ids=["auto", "explicit"])
def test_under_set_mesh(mesh: Mesh) -> None:
    planned = loss_plan(mesh)
    wanted = mlp_loss(*LOSS_ARGS), jax.grad(mlp_loss)(*LOSS_ARGS)
    with jax.set_mesh(mesh):
        step = planned.jit()
        for args in (planned.place(*LOSS_ARGS), LOSS_ARGS):
            assert_same(step(*args), wanted[0])
            assert_same(jax.jit(step)(*args), wanted[0])
            assert_same(jax.grad(step)(*args), wanted[1])


def test_where_another_mesh_is_set() -> None:
    for mesh, other in ((MESH, EXPLICIT), (EXPLICIT, MESH), (MESH, jax.make_mesh((8,), ("other",)))):
        with jax.set_mesh(other):
            assert_same(loss_plan(mesh).jit()(*LOSS_ARGS), mlp_loss(*LOSS_ARGS))


@pytest.mark.parametrize("mesh", [MESH, EXPLICIT], ids=["auto", "explicit"])
def test_planning_under_set_mesh(mesh: Mesh) -> None:
    """`plan` may be called where the mesh is set, as train scripts do."""
    with jax.set_mesh(mesh):
        planned = plan(mlp_loss, LOSS_ARGS, mesh)
        result = planned.jit()(*LOSS_ARGS)
    assert_same(result, mlp_loss(*LOSS_ARGS))


def test_custom_rules_are_used() -> None:
    """Their derivatives are not those of what they compute."""
    step = plan(custom_gradients, (X, W), MESH).jit()
    found, wanted = (jax.grad(fn, argnums=(0, 1))(X, W) for fn in (step, custom_gradients))
    assert_same(found, wanted)
    plain = jax.grad(lambda x, w: jnp.sum((x @ w) ** 2 + jnp.sin(x @ w)))(X, W)
    assert differences([wanted[0]], [plain]), "or this test would say nothing"


def primitives_of(jaxpr: Any) -> list[str]:
    """Names of all equations' primitives, however deep."""
    names = []
    for eqn in jaxpr.eqns:
        names.append(str(eqn.primitive))
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(inner, "eqns"):
                names += primitives_of(inner)
    return names


def test_remat_survives() -> None:
    stack = floats(4, 32, 32)
    for fn in (scan_remat_loss, jax.grad(scan_remat_loss)):
        emitted = primitives_of(jax.make_jaxpr(plan(fn, (stack, X), MESH).jit())(stack, X).jaxpr)
        original = primitives_of(jax.make_jaxpr(fn)(stack, X).jaxpr)
        assert emitted.count("remat2") == original.count("remat2") == 1
        assert emitted.count("scan") == original.count("scan")


def test_remat_still_saves_memory() -> None:
    def loss(w: jax.Array, x: jax.Array, *, remat: bool) -> jax.Array:
        def layer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sin(jnp.cos(jnp.tanh(x @ w) @ w.T) @ w), None

        return jnp.sum(jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, None, length=6)[0])

    args = (floats(64, 64), floats(4096, 64))
    temporary = []
    for remat in (False, True):
        planned = plan(jax.grad(functools.partial(loss, remat=remat)), args, MESH)
        temporary.append(planned.jit().lower(*args).compile().memory_analysis().temp_size_in_bytes)
    assert temporary[1] < 0.5 * temporary[0], "unsharded it is 0.3"
