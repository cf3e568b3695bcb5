"""A program run op by op, and how far rounding alone moves its results.

Some programs give other numbers compiled as a whole than op by op, unsharded, by far more than rounding; what is right,
the ops say one by one. And where a result is mostly rounding, there is no number to hold a plan against: each argument
is moved at random by a unit in the last place, and each op's result by one for each term of its sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from executor.check import compare

TIMES, MARGIN = 6, 4.0
"""How often it is tried, and how much further than was seen rounding may go."""
INLINED = {"jit": "jaxpr", "checkpoint": "jaxpr"}


def op_by_op(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[list[Any], list[float]]:
    """The results, flat, and by how much each may differ where ops round otherwise, relative to its largest element."""
    jaxpr = jax.make_jaxpr(fn)(*args)
    flat = jax.tree.leaves(args)
    results = _evaluate(jaxpr.jaxpr, jaxpr.consts, flat, lambda result, terms: result)
    change = _rounding(np.random.default_rng(0))
    moved = [_evaluate(jaxpr.jaxpr, jaxpr.consts, [change(arg, 1) for arg in flat], change) for _ in range(TIMES)]
    errors = [max(compare(other[place], result) for other in moved) for place, result in enumerate(results)]
    return results, [MARGIN * error for error in errors]


Change = Callable[[Any, int], Any]


def _evaluate(jaxpr: jex_core.Jaxpr, consts: Any, args: Sequence[Any], change: Change) -> list[Any]:
    """Each op's result is changed, given how many elements went into it."""
    env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex_core.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        inner = eqn.params.get(INLINED.get(eqn.primitive.name, ""))
        if inner is not None:
            closed = isinstance(inner, jex_core.ClosedJaxpr)
            body, captured = (inner.jaxpr, inner.consts) if closed else (inner, ())
            results = _evaluate(body, captured, operands, change)
        else:
            found = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
            terms = max([1, *(math.prod(getattr(atom.aval, "shape", ())) for atom in eqn.invars)])
            results = [change(one, terms) for one in (found if eqn.primitive.multiple_results else [found])]
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _rounding(random: np.random.Generator) -> Change:
    def change(array: Any, terms: int) -> Any:
        if getattr(array, "dtype", None) != np.float32 or not array.size:
            return array
        units = max(1.0, terms / array.size)
        return array * (1 + units * 2.0**-23 * random.uniform(-1, 1, array.shape)).astype(np.float32)

    return change
