"""Our rules held against those that Shardy gives, over every case of JAX's primitive harnesses.

    python tests/against_shardy.py

prints, for each primitive of which some rule differs, how many of its equations do, and why that is known to be so; it
fails where it is not known.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import JaxprEqn
from jax.extend.core import primitives as p

from planner.rules import ShardingRule, registered, rule_for
from planner.rules.shardy import shardy_rule

DIFFERENCES = {
    "a library call, opaque to Shardy": {
        "cholesky", "eig", "eigh", "hessenberg", "householder_product", "lu",
        "lu_pivots_to_permutation", "ormqr", "qr", "schur", "svd", "triangular_solve", "tridiagonal",
        "tridiagonal_solve",
    },
    "a loop inside, which rules are not composed through": {"threefry2x32"},
    "keys lower to arrays of another rank": {"random_bits"},
    "Shardy has no rule for what it lowers to": {
        "approx_top_k", "optimization_barrier", "rng_bit_generator", "top_k",
    },
    "truth values can be all-reduced, bits cannot; the fallback allows neither": {"reduce_and", "reduce_or"},
    "the fallback keeps whole what XLA mistreats on some dimensions; our rules know on which": {
        "conv_general_dilated", "scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul",
        "scatter-sub", "select_and_scatter", "select_and_scatter_add", "sharding_constraint",
    },
    "XLA gathers its rows, so that the fallback keeps it whole; plans run it on shards": {"fft"},
    "Shardy shards what an update leaves alone; XLA gathers it": {"dynamic_update_slice"},
    "Shardy shards a repeated dimension, or one matched in part; it rarely pays": {"reshape", "tile"},
    "ours knows only batch dimensions, as the library calls do": {"symmetric_product"},
}  # fmt: skip
"""Primitives whose registered rule is not what the fallback would give for every case, and why."""

IN_HARNESSES = {
    "ours adds up what a gather finds in shards only where nothing is sliced that is indexed": {"gather"},
    "what it computes may be anything, and parts of it need not be put together by the same": {"reduce"},
    "to the power of nought it lowers to a constant": {"integer_pow"},
    "an empty array lowers to a constant": {"pad"},
}
"""The same, of which JAX's harnesses alone have such cases."""


def usable(rule: ShardingRule | None) -> object:
    """What of a rule can be sharded, with factors numbered in the order in which arrays show them; None for nothing."""
    if rule is None:
        return None
    numbers: dict[str, tuple[int, int, bool]] = {}
    shown = (factor for dims in (*rule.operands, *rule.results) for dim in dims for factor in dim)
    for factor in dict.fromkeys(shown):
        if factor not in rule.replication and rule.sizes[factor] > 1:
            numbers[factor] = len(numbers), rule.sizes[factor], factor in rule.reduction
    if not numbers:
        return None
    return [
        [[[numbers[f] for f in dim if f in numbers] for dim in dims] for dims in arrays]
        for arrays in (rule.operands, rule.results)
    ]


def differs(eqn: JaxprEqn) -> bool:
    """Whether our rule for an equation shards otherwise than Shardy's."""
    rule, _ = rule_of(eqn)
    return bool(rule.permutation) or usable(rule) != usable(shardy_rule_of(eqn))


def equations(fn: Callable[..., Any], *args: np.ndarray) -> Iterator[JaxprEqn]:
    """The equations of a function, those inside its `jit`s included."""

    def walk(jaxpr: Any) -> Iterator[JaxprEqn]:
        for eqn in jaxpr.eqns:
            if eqn.primitive is p.jit_p:
                yield from walk(eqn.params["jaxpr"].jaxpr)
            else:
                yield eqn

    yield from walk(jax.make_jaxpr(fn)(*args).jaxpr)


def avals(atoms: Any) -> list[Any]:
    return [atom.aval for atom in atoms]


def rule_of(eqn: JaxprEqn) -> tuple[ShardingRule, str]:
    return rule_for(eqn.primitive, avals(eqn.invars), avals(eqn.outvars), eqn.params)


def shardy_rule_of(eqn: JaxprEqn) -> ShardingRule | None:
    return shardy_rule(eqn.primitive, avals(eqn.invars), avals(eqn.outvars), eqn.params)


def main() -> None:
    from sweep import harnesses, set_up

    set_up()
    warnings.simplefilter("ignore")
    compared: set[Any] = set()
    equal: Counter[str] = Counter()
    different: dict[str, list[str]] = {}
    for name, case in harnesses().items():
        try:
            found = list(equations(case.dyn_fun, *case.dyn_args_maker(np.random.RandomState(0))))
        except Exception:  # it does not run on CPU: `sweep.py` says so
            continue
        for eqn in found:
            shapes = [[getattr(aval, "shape", ()) for aval in avals(side)] for side in (eqn.invars, eqn.outvars)]
            key = str(eqn.primitive), str(shapes), str(eqn.params)
            if key in compared or eqn.primitive not in registered():
                continue
            compared.add(key)
            if differs(eqn):
                different.setdefault(key[0], []).append(name)
            else:
                equal[key[0]] += 1
    reasons = {
        primitive: reason for reason, primitives in {**DIFFERENCES, **IN_HARNESSES}.items() for primitive in primitives
    }
    for primitive, names in sorted(different.items()):
        total = len(names) + equal[primitive]
        why = reasons.get(primitive, "NOT KNOWN WHY")
        print(f"{primitive}: {len(names)} of {total}, {why}; such as {names[0][:120]}")
    print(f"{len(compared)} equations of {len({key[0] for key in compared})} primitives, {equal.total()} agree")
    sys.exit(bool(different.keys() - reasons.keys()))


if __name__ == "__main__":
    main()
