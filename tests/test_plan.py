"""`plan(...).jit()` is the function it was planned from, wherever and however it is called."""

from __future__ import annotations

import dataclasses
import functools
import gc
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import KEY, Case, floats, ints
from forced import device_mesh, differences
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from programs import PROGRAMS, W, X, attention, custom_gradients, mlp_loss, scan_remat_loss
from test_reshard import layouts_of

from planner import Plan, TraceError, plan
from planner.layout import to_spec
from planner.trace import trace

P = PartitionSpec
MESH = device_mesh(x=2, y=4)
EXPLICIT = jax.make_mesh((2, 4), ("x", "y"))
BIG = floats(512, 256)


def assert_same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    assert not differences(jax.tree.leaves(found), jax.tree.leaves(wanted))


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ w)


@functools.cache
def layer_plan(mesh: Mesh = MESH) -> Plan:
    return plan(layer, (BIG, floats(256, 256)), mesh, in_specs=(P("x"), P(None, "y")))


@pytest.mark.filterwarnings("ignore::planner.ReplicatedPrimitiveWarning")
@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case.name)
def test_planned_programs_compute_the_same(case: Case) -> None:
    planned = plan(case.fn, case.args, MESH)
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


# What is asked for is kept


def test_given_specs_are_kept_exactly() -> None:
    def fn(x: jax.Array, pair: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        return x @ pair["a"], {"b": pair["b"] * 2, "c": x.sum(axis=0)}

    args = (floats(64, 32), {"a": floats(32, 16), "b": floats(64, 8)})
    in_specs = (P(("y", "x")), {"a": P(None, "x"), "b": None})
    out_specs = (P("x", "y"), {"b": P(None, "y"), "c": P(("x", "y"))})
    planned = plan(fn, args, MESH, in_specs=in_specs, out_specs=out_specs)
    assert planned.in_specs[0] == in_specs[0]
    assert planned.in_specs[1]["a"] == in_specs[1]["a"]
    assert planned.out_specs == out_specs
    result = planned.jit()(*args)
    assert_same(result, fn(*args))
    for array, sharding in zip(jax.tree.leaves(result), jax.tree.leaves(planned.out_shardings), strict=True):
        assert array.sharding == sharding


def test_a_prefix_covers_what_is_below_it() -> None:
    def fn(state: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        return {name: array + x for name, array in state.items()}

    args = ({"a": floats(16, 8), "b": floats(16, 8)}, floats(16, 8))
    planned = plan(fn, args, MESH, in_specs=(P("x"), None), out_specs=P("y"))
    assert planned.in_specs[0] == {"a": P("x"), "b": P("x")}
    assert planned.out_specs == {"a": P("y"), "b": P("y")}
    assert_same(planned.jit()(*args), fn(*args))


def random_specs(avals: Sequence[jax.ShapeDtypeStruct], mesh: Mesh, generator: random.Random) -> list[Any]:
    """For each array a spec that divides it, or None. Dimensions of no elements are not split, for nothing would be."""
    sizes = dict(mesh.shape)
    options = [sorted(set(layouts_of(aval.shape, sizes))) if 0 not in aval.shape else [] for aval in avals]
    return [to_spec(generator.choice(some)) if some and generator.random() < 0.6 else None for some in options]


@pytest.mark.filterwarnings("ignore::planner.ReplicatedPrimitiveWarning", "ignore:Some donated buffers")
@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_asked_for(seed: int) -> None:
    """Random programs, meshes, specs and donation: the numbers are right, and what was given is kept."""
    generator = random.Random(seed)
    case, mesh = generator.choice(PROGRAMS), generator.choice((MESH, EXPLICIT, device_mesh(a=2, b=2, c=2)))
    traced = trace(case.fn, case.args)
    ins, outs = (random_specs(avals, mesh, generator) for avals in (traced.in_avals, traced.out_avals))
    planned = plan(
        case.fn,
        case.args,
        mesh,
        in_specs=jax.tree.unflatten(traced.in_tree, ins),
        out_specs=jax.tree.unflatten(traced.out_tree, outs),
        donate_argnums=[argnum for argnum in range(len(case.args)) if generator.random() < 0.3],
    )
    result = planned.jit()(*map(jnp.array, case.args))
    assert_same(result, jax.jit(case.fn)(*case.args))
    for given, chosen in ((ins, planned.in_specs), (outs, planned.out_specs)):
        found = jax.tree.leaves(chosen, is_leaf=lambda node: isinstance(node, P))
        assert all(want in (None, have) for want, have in zip(given, found, strict=True))
    for array, sharding in zip(jax.tree.leaves(result), jax.tree.leaves(planned.out_shardings), strict=True):
        assert array.sharding.is_equivalent_to(sharding, array.ndim)


@pytest.mark.parametrize("spec", [P("x", "y"), P(None, ("x", "y")), P("y", P.UNCONSTRAINED), P()])
def test_constraints_inside_are_kept(spec: PartitionSpec) -> None:
    """A result that nobody asked for otherwise lies as it was made: as the constraint has it."""

    def fn(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jax.lax.with_sharding_constraint(x @ w, NamedSharding(MESH, spec))
        return jnp.sin(y) @ w, y

    args = (floats(48, 64), floats(64, 64))
    planned = plan(fn, args, MESH)
    result = planned.jit()(*args)
    assert_same(result, jax.jit(fn)(*args))
    pairs = zip(padded(planned.out_specs[1]), padded(spec), strict=True)
    kept = [want if want is P.UNCONSTRAINED else have for have, want in pairs]
    assert kept == list(padded(spec))
    assert result[1].sharding.is_equivalent_to(planned.out_shardings[1], 2)


def padded(spec: PartitionSpec) -> tuple[Any, ...]:
    return (*spec, *[None] * (2 - len(spec)))


def test_constraint_on_a_bare_spec_under_set_mesh() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x * 2, P("x", "y")) + 1

    with jax.set_mesh(MESH):
        planned = plan(fn, (floats(64, 64),), MESH)
        assert_same(planned.jit()(floats(64, 64)), floats(64, 64) * 2 + 1)


# Donation


def test_donated_arrays_are_taken() -> None:
    def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return state + x.sum(), x.sum()

    planned = plan(step, (BIG, X), MESH, donate_argnums=0)
    state, x = planned.place(BIG, X)
    result, _ = planned.jit()(state, x)
    assert state.is_deleted()
    assert not x.is_deleted()
    assert_same(result, BIG + X.sum())
    kept = plan(step, (BIG, X), MESH)
    state, x = kept.place(BIG, X)
    kept.jit()(state, x)
    assert not state.is_deleted()


def test_donation_counts_in_memory() -> None:
    def step(state: jax.Array) -> jax.Array:
        return state * 2

    peaks = [plan(step, (BIG,), MESH, donate_argnums=donated).prediction.peak_bytes for donated in ((), (0,))]
    assert peaks[1] == pytest.approx(peaks[0] / 2)


# Meshes without devices


def test_abstract_mesh_plans_without_devices() -> None:
    planned = plan(layer, (BIG, floats(256, 256)), AbstractMesh((16, 16), ("data", "model")))
    assert isinstance(planned.mesh, AbstractMesh)
    assert "16" in planned.explain()


def test_a_mesh_of_devices_elsewhere_compiles() -> None:
    pytest.importorskip("libtpu", reason="the TPU compiler, extra `tpu`, is not installed")
    description = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4")
    mesh = topologies.make_mesh(description, (2, 4), ("x", "y"))
    planned = plan(layer, (BIG, floats(256, 256)), mesh)
    assert planned.jit().lower(BIG, floats(256, 256)).compile().as_text()


def test_lower_takes_shapes() -> None:
    shapes = (jax.ShapeDtypeStruct(BIG.shape, BIG.dtype), jax.ShapeDtypeStruct((256, 256), np.float32))
    compiled = plan(layer, shapes, MESH).jit().lower(*shapes).compile()
    assert compiled.memory_analysis().argument_size_in_bytes > 0


def test_nothing_is_allocated_for_shapes() -> None:
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.bfloat16)
    planned = plan(lambda x: (x * 2).sum(axis=0), (huge,), MESH)
    assert planned.prediction.peak_bytes > 2**35


# What the model says of its choice


@pytest.mark.parametrize("case", [PROGRAMS[1], PROGRAMS[2], PROGRAMS[7]], ids=lambda case: case.name)
@pytest.mark.parametrize("sizes", [(8,), (2, 4), (2, 2, 2)], ids=str)
def test_never_worse_than_the_hand_written(case: Case, sizes: tuple[int, ...]) -> None:
    planned = plan(case.fn, case.args, AbstractMesh(sizes, ("x", "y", "z")[: len(sizes)]))
    assert planned.alternatives
    for name, other in planned.alternatives.items():
        assert planned.prediction.step_seconds <= other.prediction.step_seconds * (1 + 1e-6), name
    assert planned.lower_bound_seconds <= planned.objective_seconds * (1 + 1e-9)


def test_alternatives_compute_the_same() -> None:
    args = (floats(64, 64), floats(64, 64))
    for other in plan(attention_like, args, MESH).alternatives.values():
        assert_same(other.jit()(*args), attention_like(*args))


def attention_like(x: jax.Array, w: jax.Array) -> jax.Array:
    scores = jax.nn.softmax((x @ w) @ x.T, axis=-1)
    return scores @ (x @ w)


def test_megatron() -> None:
    """Two layers, their weights kept apart over one axis: columns, then rows, then one all-reduce."""
    rows, width, hidden = 512, 256, 1024

    def mlp(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        return jax.nn.gelu(x @ w1) @ w2

    args = (
        jax.ShapeDtypeStruct((rows, width), jnp.float32),
        jax.ShapeDtypeStruct((width, hidden), jnp.float32),
        jax.ShapeDtypeStruct((hidden, width), jnp.float32),
    )
    mesh = AbstractMesh((8,), ("model",))
    specs = (P(), P(None, "model"), P("model"))
    planned = plan(mlp, args, mesh, in_specs=specs, out_specs=P())
    (reduction,) = planned.prediction.collectives
    assert reduction.kind == "all-reduce"
    assert reduction.axes == ("model",)
    assert reduction.bytes == rows * width * 4
    assert planned.in_specs == specs


def test_tensor_parallel_alternative_is_megatron() -> None:
    """Without being told, among layouts that leave the batch alone the best is column, then row."""
    shapes = [(4096, 512), (512, 4096), (4096, 512)]

    def mlp(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        return x + jax.nn.gelu(x @ w1) @ w2

    args = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    planned = plan(mlp, args, AbstractMesh((8,), ("model",)), in_specs=(P(), None, None), out_specs=P())
    megatron = planned.alternatives["tensor-parallel"]
    assert megatron.in_specs[1:] == (P(None, "model"), P("model"))
    assert [(one.kind, one.bytes) for one in megatron.prediction.collectives] == [("all-reduce", 4096 * 512 * 4)]


def test_axis_types_are_the_users() -> None:
    assert plan(layer, (BIG, floats(256, 256)), EXPLICIT).mesh.axis_types == (AxisType.Explicit,) * 2


def test_explain_names_the_arguments() -> None:
    text = layer_plan().explain()
    assert "x  " in text
    assert "split: dimension 0 over x" in text
    assert "split: dimension 1 over y" in text
    assert "tensor-parallel" in text or "data-parallel" in text


def test_attention_uses_every_device() -> None:
    """Heads or rows: something is split eight ways where all are worth it."""
    shapes = [jax.ShapeDtypeStruct((16, 32), jnp.float32), jax.ShapeDtypeStruct((32, 32), jnp.float32)]
    assert plan(attention, shapes, MESH).prediction.step_seconds > 0
