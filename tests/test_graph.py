"""From jaxprs to graphs: what is inlined, merged, dropped and kept, and what every op and value knows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, Case, floats
from forced import device_mesh, differences, priced_on, random_assignments, run_as_assigned
from jax import lax
from programs import PROGRAMS, scan_layers, scan_remat_loss

from experiments.workloads import workload
from planner.graph import Body, Graph, Op, Value, check
from planner.jaxpr import UNKNOWN_TRIPS, build_graph
from planner.trace import trace

X, W = floats(16, 32), floats(32, 32)


def graph_of(fn: Callable[..., Any], *args: Any) -> Graph:
    return build_graph(trace(fn, args))


def names_of(graph: Graph) -> list[str]:
    return [op.name for op, _ in graph.walk()]


def test_calls_are_inlined() -> None:
    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        return jax.jit(jnp.sin)(x) + 1

    assert names_of(graph_of(lambda x: inner(x) * 2, X)) == ["sin", "add", "mul"]


def test_what_hands_on_its_operand_is_no_op() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x[:0], jax.lax.dynamic_slice(x[:], (0, 0), x.shape), x[:0]]) + x.reshape(x.shape)

    assert names_of(graph_of(fn, X)) == ["add"]


def test_a_branch_for_kernels_alone_is_not_taken() -> None:
    assert "cond" not in names_of(graph_of(jnp.diagonal, floats(8, 8)))
    assert "gather" in names_of(graph_of(jnp.diagonal, floats(8, 8)))


def test_equal_expressions_are_one() -> None:
    graph = graph_of(lambda x: (jnp.sin(x) @ W, jnp.sin(x) + 1, jnp.cos(x)), X)
    assert sorted(names_of(graph)) == ["add", "cos", "dot_general", "sin"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x + 1, x + 2),
        lambda x: (x.sum(axis=0), x.sum(axis=1)),
        lambda x: (x - x.T, x.T - x),
        lambda x: (x.astype(jnp.float16), x.astype(jnp.bfloat16)),
    ],
)
def test_expressions_that_differ_in_anything_are_two(fn: Callable[..., Any]) -> None:
    graph = graph_of(fn, floats(8, 8))
    left, right = graph.body.outputs
    assert left is not right


def test_equal_random_draws_are_one_and_others_are_not() -> None:
    key = jax.random.key(0)

    def fn(key: jax.Array) -> Any:
        other = jax.random.fold_in(key, 1)
        return jax.random.bits(key), jax.random.bits(key), jax.random.bits(other)

    first, again, other = graph_of(fn, key).body.outputs
    assert first is again
    assert first is not other


def test_dead_code_is_dropped_unless_it_has_effects() -> None:
    def fn(x: jax.Array) -> jax.Array:
        jnp.exp(x)
        jax.debug.callback(lambda x: None, x)
        return x + 1

    names = names_of(graph_of(fn, X))
    assert "exp" not in names
    assert "debug_callback" in names


def test_loops_and_the_like_keep_their_bodies() -> None:
    graph = graph_of(jax.grad(scan_remat_loss), floats(4, 32, 32), X)
    around = {op.name: [outer.name for outer in outers] for op, outers in graph.walk()}
    assert around["remat2"] == ["scan"]
    assert around["dot_general"] == ["scan", "remat2"]


def trips(fn: Callable[..., Any], *args: Any) -> list[int]:
    return [op.trips for op, _ in graph_of(fn, *args).walk() if op.bodies]


def test_trip_counts() -> None:
    assert trips(scan_layers, X, floats(4, 32, 32)) == [4]
    assert trips(lambda x: lax.fori_loop(2, 12, lambda i, x: x * 2, x), X) == [10]
    assert trips(lambda x, n: lax.fori_loop(0, n, lambda i, x: x * 2, x), X, 5) == [UNKNOWN_TRIPS]
    assert trips(lambda x: lax.while_loop(lambda x: x.sum() < 9, lambda x: x * 2, x), X) == [UNKNOWN_TRIPS]
    assert trips(lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), X) == [1]


def test_a_while_that_counts_by_more_than_one() -> None:
    """Ten by twos is five rounds."""

    def fn(x: jax.Array) -> Any:
        def body(state: Any) -> Any:
            return state[0] + 2, state[1] * 2

        return lax.while_loop(lambda state: state[0] < 10, body, (0, x))

    assert trips(fn, X) in ([5], [UNKNOWN_TRIPS]), "never ten: right, or not known"


def test_every_op_knows_its_line() -> None:
    graph = graph_of(scan_layers, X, floats(4, 32, 32))
    lines = {op.name: op.source for op, _ in graph.walk()}
    assert all(line.startswith("programs.py:") for line in lines.values())
    assert lines["dot_general"] != lines["reduce_sum"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Params:
    layers: list[dict[str, Any]]


def test_every_argument_knows_its_path() -> None:
    def fn(params: Params, batch: tuple[Any, ...], *rest: Any) -> jax.Array:
        return params.layers[1]["wq"] + batch[0]

    args = (Params([{"wq": X}, {"wq": X}]), (X,), X, {"a": X})
    names = [value.name for value in graph_of(fn, *args).body.inputs]
    assert names == ["params/layers/0/wq", "params/layers/1/wq", "batch/0", "rest[2]", "rest[3]/a"]


def test_closed_over_arrays_are_constants_once() -> None:
    big = jnp.asarray(W)

    def fn(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda i, x: x @ big, x) @ big

    graph = graph_of(fn, X)
    constants = [array for array in graph.constants.values() if np.shape(array) == (32, 32)]
    assert len(constants) == 1


def test_nothing_is_allocated() -> None:
    huge = jax.ShapeDtypeStruct((1 << 30, 1 << 20), jnp.float32)
    graph = graph_of(lambda x: (x @ x.T).sum(), huge)
    assert graph.body.inputs[0].nbytes == 1 << 52


@pytest.mark.parametrize("case", [*CASES, *PROGRAMS], ids=lambda case: case.name)
def test_every_case_has_a_graph_and_exports_it(case: Case) -> None:
    traced = trace(case.fn, case.args)
    graph = build_graph(traced)
    assert [value.shape for value in graph.body.inputs] == [aval.shape for aval in traced.in_avals]
    avals = [atom if isinstance(atom, Value) else atom.aval for atom in graph.body.outputs]
    outputs = [(aval.shape, aval.dtype) for aval in avals]
    assert outputs == [(aval.shape, aval.dtype) for aval in traced.out_avals]
    exported = graph.to_networkx()
    assert sum(1 for _, kind in exported.nodes(data="kind") if kind == "op") == len(names_of(graph))
    assert sum(1 for _, kind in exported.nodes(data="kind") if kind == "result") == len(graph.body.outputs)
    assert all(data["nbytes"] >= 0 for *_, data in exported.edges(data=True))


def test_networkx_edges_are_values() -> None:
    exported = graph_of(lambda x, w: jnp.tanh(x @ w).sum(), X, W).to_networkx()
    edges = {(tail, head): data for tail, head, data in exported.edges(data=True)}
    assert edges["argument x", "0 dot_general"] == {"shape": (16, 32), "dtype": "float32", "nbytes": 2048}
    assert ("0 dot_general", "1 tanh") in edges
    assert ("2 reduce_sum", "result 0") in edges
    assert exported.nodes["1 tanh"]["source"].startswith("test_graph.py:")


def test_check_finds_what_is_broken() -> None:
    graph = graph_of(lambda x: jnp.sin(x) + 1, X)
    first, second = graph.body.ops
    for ops in [(second, first), (second,), (first, first, second)]:
        with pytest.raises(AssertionError, match=r"undefined|defined twice"):
            check(Graph(Body(graph.body.inputs, graph.body.outputs, ops)))
    with pytest.raises(AssertionError, match=r"output .* is undefined"):
        check(Graph(Body(graph.body.inputs, (Value((), np.dtype("float32")),), graph.body.ops)))


def test_ops_are_compared_by_identity() -> None:
    graph = graph_of(lambda x: (x + 1) * 2, X)
    assert len({op for op, _ in graph.walk() if isinstance(op, Op)}) == 2


def test_transpositions_fold_into_contractions() -> None:
    """The gradients of a layer's weight and of attention's projections come out as they are wanted."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.einsum("bsd,dhk->bshk", x, w)).sum()

    w, x = floats(8, 4, 2), floats(3, 5, 8)
    traced = trace(jax.grad(loss, argnums=(0, 1)), (w, x))
    graph = build_graph(traced)
    check(graph)
    assert "transpose" not in names_of(graph)
    assert [atom.shape for atom in graph.body.outputs] == [(8, 4, 2), (3, 5, 8)]


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x: (x @ W, (x @ W).T), id="read otherwise too"),
        pytest.param(lambda x: jnp.einsum("bsd,bte->sdte", x, x).transpose(2, 1, 0, 3), id="mixed up"),
        pytest.param(lambda x: jnp.einsum("bsd,bte->bsdte", x, x).transpose(1, 0, 2, 3, 4), id="batch moved"),
    ],
)
def test_other_transpositions_stay(fn: Callable[..., Any]) -> None:
    x = floats(16, 32) if "W" in fn.__code__.co_names else floats(2, 3, 4)
    assert "transpose" in names_of(graph_of(fn, x))


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x, w: x.T @ (x @ w), id="left"),
        pytest.param(lambda x, w: x @ w.T, id="right"),
        pytest.param(lambda x, w: w.T @ x.T, id="both"),
        pytest.param(lambda x, w: jnp.stack([x, x]) @ jnp.swapaxes(jnp.stack([x, x]), -1, -2), id="batch"),
    ],
)
def test_contractions_read_what_was_transposed_for_them(fn: Callable[..., Any]) -> None:
    graph = graph_of(fn, X, W)
    check(graph)
    assert "transpose" not in names_of(graph)
    mesh = device_mesh(x=2, y=4)
    for assignment in random_assignments(priced_on(Case("transposed", fn, (X, W)), mesh), 8, "transposed"):
        (found,) = run_as_assigned([assignment], mesh, (X, W)).results
        assert not differences(found, [fn(X, W)])


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x, w: (x.T @ (x @ w), x.T), id="needed"),
        pytest.param(lambda x, w: x.T.reshape(2, 16, 16) @ x, id="reshaped"),
        pytest.param(lambda x, w: x.reshape(4, 4, 32).transpose(1, 0, 2) @ w.reshape(4, 32, 8), id="batch"),
    ],
)
def test_what_else_is_transposed_stays_so(fn: Callable[..., Any]) -> None:
    assert "transpose" in names_of(graph_of(fn, X, W))


@pytest.mark.alone
def test_tracing_and_building_the_graph_cost_less_than_twice_the_jaxpr_alone() -> None:
    """Of the largest program there is, GPT-2's train step of twelve layers written out; the best of five, in turns."""
    work = workload("gpt", "full")

    def seconds(run: Callable[[], Any]) -> float:
        jax.clear_caches()
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun

    runs = (
        lambda: jax.make_jaxpr(work.fn)(*work.example_args),
        lambda: build_graph(trace(work.fn, work.example_args)),
    )
    alone, with_graph = np.min([[seconds(run) for run in runs] for _ in range(5)], axis=0)
    assert with_graph < 2 * alone
