"""Sharding rules: the pattern language, the registry, agreement with Shardy, and how its rules compose."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from against_shardy import DIFFERENCES, avals, differs, equations, rule_of, shardy_rule_of, usable
from cases import CASES, Case
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import JaxprEqn, Primitive
from jax.extend.core import primitives as p

from planner.rules import ShardingRule, register, register_rule, registered, replicated, roll_p, rule_for
from planner.rules.compose import Factors

parametrize_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def call(fn: Callable[..., Any], *args: np.ndarray) -> JaxprEqn:
    """The one equation, a call, of a jitted function."""
    (eqn,) = jax.make_jaxpr(jax.jit(fn))(*args).jaxpr.eqns
    return eqn


def x(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


# The case table.


def test_case_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_registered_primitive_has_a_case(built_in: frozenset[Primitive]) -> None:
    covered = {eqn.primitive for case in CASES for eqn in equations(case.fn, *case.args)}
    assert built_in - covered == {roll_p}, "which graphs alone have; see test_rolls"


@parametrize_cases
def test_rules_fit_their_equations(case: Case) -> None:
    for eqn in equations(case.fn, *case.args):
        rule, origin = rule_of(eqn)
        rule.check([a.shape for a in avals(eqn.invars)], [a.shape for a in avals(eqn.outvars)])
        assert origin == ("registry" if eqn.primitive in registered() else "shardy")


def test_registry_agrees_with_shardy_but_for_known_differences() -> None:
    different = set()
    for case in CASES:
        for eqn in equations(case.fn, *case.args):
            if differs(eqn):
                different.add(str(eqn.primitive))
    assert different == set().union(*DIFFERENCES.values())


RENDERED = {
    "add": "d0 d1, d0 d1 -> d0 d1",
    "mul by size one": "d0 d1, d0 _ -> d0 d1",
    "mul by scalar": "d0 d1,  -> d0 d1",
    "iota": " -> d0 d1",
    "optimization_barrier": "d0_0 d0_1, d1_0 -> d0_0 d0_1, d1_0",
    "bitcast to narrow": "d0 d1 -> d0 d1 _",
    "broadcast_in_dim": "d1 d2 -> d0 d1 d2",
    "concatenate": "d0 _, d0 _ -> d0 _",
    "reshape split": "(f0 f1) f2 -> f0 f1 f2",
    "reshape merge": "f0 f1 f2 -> (f0 f1) f2",
    "reshape regroup": "(f0 f1) f2 -> f0 (f1 f2)",
    "reshape ones": "f0 f1 -> _ f0 _ f1",
    "transpose": "d0 d1 d2 -> d2 d0 d1",
    "rev": "d0 d1 -> d0 d1 {replicate: d1}",
    "reduce_sum": "d0 d1 d2 -> d1 {reduce: d0 d2}",
    "reduce_and": "d0 d1 -> d0 {reduce: d1}",
    "reduce_and of bits": "d0 d1 -> d0 {replicate: d1}",
    "reduce_max complex": "d0 d1 -> d0 {replicate: d1}",
    "argmax": "d0 d1 -> d0 {replicate: d1}",
    "cumsum": "d0 d1 -> d0 d1 {replicate: d1}",
    "sort with values": "d0 d1, d0 d1 -> d0 d1, d0 d1 {replicate: d0}",
    "reduce_window_max": "d0 _ d2 -> d0 _ d2",
    "select_and_scatter_add": "d0 _ d2, d0 _ d2 -> d0 _ d2",
    "fft": "d0 _ -> d0 _",
    "top_k": "d0 _ -> d0 _, d0 _",
    "dot_general": "m0 k0, k0 n1 -> m0 n1 {reduce: k0}",
    "dot_general batched": "b0 k0 m2 b1, b1 n1 b0 k0 -> b0 b1 m2 n1 {reduce: k0}",
    "convolution": "batch _ _ in, _ _ in out -> batch _ _ out {reduce: in}",
    "convolution 1x1": "batch s0 s1 in, _ _ in out -> batch s0 s1 out {reduce: in}",
    "convolution to one feature": "batch s0 s1 in, _ _ in _ -> "
    "batch s0 s1 _ {reduce: in; permute: s0 by 1+1 s1 by 1+1}",
    "convolution depthwise": "batch s0 s1 channel, _ _ _ (channel multiplier) -> "
    "batch s0 s1 (channel multiplier) {permute: s0 by 1+1 s1 by 1+1}",
    "convolution grouped": "_ _ _ _, _ _ _ _ -> _ _ _ _",
    "gather cells": "t0 t1, i0 _ -> i0 {reduce: t0 t1}",
    "scatter": "t0 t1, i0 _, i0 t1 -> t0 t1 {replicate: i0}",
    "scatter_add": "t0 t1, i0 _, i0 t1 -> t0 t1 {reduce: i0}",
    "lu": "d0 _ _ -> d0 _ _, d0 _, d0 _",
}


@pytest.mark.parametrize("name", RENDERED)
def test_rendered_rules(name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    (eqn,) = equations(case.fn, *case.args)
    assert str(rule_of(eqn)[0]) == RENDERED[name]


@pytest.mark.parametrize(
    ("fn", "args", "rendered"),
    [
        (
            lambda x, i: x[i],
            (x(16, 8), np.zeros((8, 4), np.int32)),
            "t0 t1, i0 i1 _ -> i0 i1 t1 {reduce: t0}",
        ),
        (
            lambda x, i: jnp.take_along_axis(x, i, axis=1),
            (x(8, 16), np.zeros((8, 1), np.int32)),
            "i0 t1, i0 _ _ -> i0 _ {reduce: t1}",
        ),
    ],
    ids=["embedding", "take_along_axis"],
)
def test_gathers_of_rows(fn: Callable[..., Any], args: tuple[np.ndarray, ...], rendered: str) -> None:
    *_, gather = equations(fn, *args)
    assert str(rule_of(gather)[0]) == rendered


def test_unmatched_reshape_keeps_the_rest_whole_and_what_follows_free() -> None:
    (eqn,) = equations(lambda x: x.reshape(4, 6, 8), x(6, 4, 8))
    rule, _ = rule_of(eqn)
    assert [rule.sizes[f] for f in sorted(rule.passthrough)] == [2, 8]
    assert rule.operands[0][2] == rule.results[0][2]


@given(data=st.data(), primes=st.lists(st.sampled_from([2, 3]), min_size=2, max_size=6))
def test_reshapes_keep_every_element_on_its_shard(data: st.DataObject, primes: list[int]) -> None:
    shapes = [tuple(math.prod(group) for group in _grouped(data.draw(st.permutations(primes)), data)) for _ in range(2)]
    avals = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    rule, _ = rule_for(p.reshape_p, avals[:1], avals[1:], {"dimensions": None})
    for factor in rule.passthrough:
        before, after = (
            _coordinates(factor, dims, shape, rule)
            for dims, shape in zip((rule.operands[0], rule.results[0]), shapes, strict=True)
        )
        np.testing.assert_array_equal(before, after)


def _grouped(values: list[int], data: st.DataObject) -> list[list[int]]:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(values)))))
    return [values[a:b] for a, b in pairwise([0, *cuts, len(values)])]


def _coordinates(factor: str, dims: Any, shape: tuple[int, ...], rule: ShardingRule) -> np.ndarray:
    """Where along a factor each element of an array lies, elements in row-major order."""
    ((axis, dim),) = ((axis, dim) for axis, dim in enumerate(dims) if factor in dim)
    minor = math.prod(rule.sizes[f] for f in dim[dim.index(factor) + 1 :])
    return (np.indices(shape)[axis] // minor % rule.sizes[factor]).ravel()


# Patterns.


def test_parse_reads_compounds_ones_scalars_and_ellipses() -> None:
    rule = ShardingRule.parse(
        "... (b s) _, , k -> ... b s k",
        [(2, 3, 64, 5), (), (7,)],
        [(2, 3, 4, 16, 7)],
        replicate="s",
    )
    assert str(rule) == "...2 ...1 (b s) _, , k -> ...2 ...1 b s k {replicate: s}"
    assert rule.sizes == {"...2": 2, "...1": 3, "b": 4, "s": 16, "k": 7}
    assert rule.passthrough == {"...2", "...1", "b", "k"}


def test_dimensions_of_size_one_are_never_sharded() -> None:
    rule = ShardingRule.parse("m k, k n -> m n", [(8, 1), (1, 4)], [(8, 4)], reduce="k")
    assert rule == ShardingRule.parse("m _, _ n -> m n", [(8, 1), (1, 4)], [(8, 4)])
    assert hash(rule) == hash(ShardingRule.parse("m _, _ n -> m n", [(8, 1), (1, 4)], [(8, 4)]))


def test_halo_factors_carry_their_width() -> None:
    rule = ShardingRule.parse("h, _ -> h", [(16,), (3,)], [(16,)], permute={"h": (2, 0)})
    assert rule.permutation == {"h": (2, 0)}
    assert not rule.passthrough


@pytest.mark.parametrize(
    ("pattern", "operands", "results", "roles", "message"),
    [
        ("m k k n -> m n", [(8, 4), (4, 8)], [(8, 8)], {}, r"names 1 operands, but the op has 2"),
        ("m, m", [(8,)], [(8,)], {}, r'with one "->"'),
        ("m? -> m", [(8,)], [(8,)], {}, r'cannot read "\?"'),
        ("m n -> m n", [(8,)], [(8, 4)], {}, r"operand 0 has shape \(8,\), but 2 dimensions are named"),
        ("m, m -> m", [(8,), (4,)], [(8,)], {}, r"'m' has size 8, but dimension 0 of operand 1 has size 4"),
        ("(a b) -> (a b)", [(8,)], [(8,)], {}, r"size of factor 'a', 'b' does not follow"),
        ("(a b) -> a b", [(9,)], [(4, 2)], {}, r"dimension 0 of operand 0 has size 9, .* a=4 x b=2"),
        ("m -> m", [(8,)], [(8,)], {"reduce": "k"}, r"factor 'k' has a role but is in no operand"),
        ("m -> m", [(8,)], [(8,)], {"reduce": "m", "replicate": "m"}, r"'m' has more than one of"),
    ],
)
def test_patterns_that_do_not_fit(
    pattern: str, operands: list[Any], results: list[Any], roles: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ShardingRule.parse(pattern, operands, results, **roles)


def test_check_names_the_array_that_does_not_fit() -> None:
    rule = ShardingRule.parse("m k -> m", [(8, 4)], [(8,)], reduce="k")
    rule.check([(8, 4)], [(8,)])
    with pytest.raises(ValueError, match=r"dimension 1 of operand 0 has size 5, but the rule gives it k=4"):
        rule.check([(8, 5)], [(8,)])
    with pytest.raises(ValueError, match=r"has 1 results, the op has 2"):
        rule.check([(8, 4)], [(8,), (8,)])


# The registry.


def test_a_primitive_has_one_rule() -> None:
    with pytest.raises(ValueError, match=r"'sin' has a sharding rule already: elementwise"):
        register_rule(p.sin_p, "i -> i")
    with pytest.raises(ValueError, match=r"'dot_general' has a sharding rule already"):
        register(p.dot_general_p)(lambda operands, results, **params: replicated([], []))


def test_a_registered_pattern_is_the_rule() -> None:
    matmul_p = Primitive("my_matmul")
    register_rule(matmul_p, "... m k, k n -> ... m n", reduce="k")
    shapes = [jax.ShapeDtypeStruct(s, np.float32) for s in [(2, 8, 16), (16, 4), (2, 8, 4)]]
    rule, origin = rule_for(matmul_p, shapes[:2], shapes[2:], {})
    assert (str(rule), origin) == ("...1 m k, k n -> ...1 m n {reduce: k}", "registry")
    with pytest.raises(ValueError, match=r"registered for primitive 'my_matmul' does not fit: .*names 2 operands"):
        rule_for(matmul_p, shapes, shapes[2:], {})


def test_a_primitive_that_nobody_knows_is_replicated() -> None:
    shape = jax.ShapeDtypeStruct((8, 4), np.float32)
    rule, origin = rule_for(Primitive("mystery"), [shape], [shape], {"unhashable": []})
    assert (rule, origin) == (replicated([(8, 4)], [(8, 4)]), "replicated")
    assert str(rule) == "_ _ -> _ _"


# Shardy's rules.


def test_ragged_dot_has_shardys_rule() -> None:
    (case,) = (case for case in CASES if case.name == "ragged_dot")
    (eqn,) = equations(case.fn, *case.args)
    rule, origin = rule_of(eqn)
    lhs, rhs, _ = rule.operands
    assert origin == "shardy"
    assert (lhs[0], lhs[1], rhs[2]) == (rule.results[0][0], rhs[1], rule.results[0][1])
    assert rule.reduction == {*lhs[1]}
    assert rule.replication >= {*rhs[0]}


@pytest.mark.parametrize(
    ("fn", "args", "pattern", "reduce"),
    [
        (lambda a, b: jnp.tanh(a @ b) + 1, (x(8, 16), x(16, 4)), "m k, k n -> m n", "k"),
        (lambda a: jax.nn.softmax(a, axis=1), (x(8, 16),), "m _ -> m _", ""),
        (lambda a: a.reshape(8, 8, 2).sum(0).T, (x(64, 2),), "(r i) j -> j i", "r"),
        (lambda a: a.reshape(64) * 2, (x(4, 16),), "a b -> (a b)", ""),
        (lambda a: a @ a.T, (x(8, 16),), "_ k -> _ _", "k"),
        (lambda a: jnp.flip(a, 0)[:, :4], (x(8, 16),), "_ _ -> _ _", ""),
        (lambda a: jnp.cumsum(a, axis=1), (x(8, 16),), "m _ -> m _", ""),
        (
            lambda a: jax.lax.fori_loop(0, 3, lambda _, y: y * 2, a),
            (
                x(
                    8,
                ),
            ),
            None,
            "",
        ),
        (lambda a: jnp.linalg.cholesky(a), (x(2, 4, 4),), None, ""),
    ],
    ids=["dense", "softmax", "split", "merge", "gram", "flip", "cumsum", "loop", "library"],
)
def test_rules_compose_through_a_chain(
    fn: Callable[..., Any], args: tuple[np.ndarray, ...], pattern: str | None, reduce: str
) -> None:
    eqn = call(fn, *args)
    rule = shardy_rule_of(eqn)
    if pattern is None:
        assert rule is None
    else:
        shapes = [[a.shape for a in avals(side)] for side in (eqn.invars, eqn.outvars)]
        assert usable(rule) == usable(ShardingRule.parse(pattern, *shapes, reduce=reduce))


def test_uniting_splits_what_has_finer_parts() -> None:
    factors = Factors()
    whole, major, minor = factors.new(32), factors.new(4), factors.new(8)
    factors.unite([whole], [major, minor])
    assert factors.parts([whole]) == factors.parts([major, minor])
    other = factors.new(32)
    factors.unite([other], [whole])
    assert factors.parts([other]) == factors.parts([major, minor])
