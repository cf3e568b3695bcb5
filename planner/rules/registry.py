"""The registry of sharding rules, and the way from an equation to its rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from jax.extend.core import Primitive

from planner.rules.pattern import Shape
from planner.rules.rule import Aval, Halo, ShardingRule, replicated
from planner.rules.shardy import shardy_rule

RuleFn: TypeAlias = Callable[..., ShardingRule]
"""Takes the operands' avals, the results' avals and the equation's params by name; gives the rule."""

Origin = Literal["registry", "shardy", "replicated"]
"""Where a rule came from; "replicated" where nobody knows one."""

FlopsFn: TypeAlias = Callable[..., float]
"""Takes what a `RuleFn` takes; gives the floating-point operations of the whole op."""

_RULES: dict[Primitive, RuleFn] = {}
_FLOPS: dict[Primitive, FlopsFn] = {}


def register(*primitives: Primitive) -> Callable[[RuleFn], RuleFn]:
    """Make a function the sharding rule of these primitives.

    >>> from jax.extend.core import Primitive
    >>> outer_p = Primitive("outer")
    >>> @register(outer_p)
    ... def _outer(operands, results, **params):
    ...     return ShardingRule.of(operands, results, [["m"], ["n"]], [["m", "n"]])

    Raises ``ValueError`` where a primitive has a rule already.
    """

    def add(rule_fn: RuleFn) -> RuleFn:
        for primitive in primitives:
            if primitive in _RULES:
                raise ValueError(
                    f"primitive '{primitive}' has a sharding rule already: {_RULES[primitive].__qualname__}"
                )
            _RULES[primitive] = rule_fn
        return rule_fn

    return add


def register_rule(
    primitive: Primitive,
    pattern: str,
    *,
    reduce: str = "",
    replicate: str = "",
    permute: Mapping[str, Halo] | None = None,
    flops: FlopsFn | None = None,
) -> None:
    """Give a primitive its sharding rule as a pattern; `ShardingRule.parse` says how patterns are written.

    A kernel of the user's own (a fused attention, say) may also say how much it computes: `flops` takes the operands'
    avals, the results' avals and the equation's params by name, and gives the multiplications and additions of the
    whole op. It is then priced as one kernel that reads its operands and writes its results once; without it, as
    elementwise.

    >>> from jax.extend.core import Primitive
    >>> register_rule(Primitive("my_matmul"), "... m k, k n -> ... m n", reduce="k")

    Raises ``ValueError`` where the primitive has a rule already.
    """

    @register(primitive)
    def from_pattern(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
        return ShardingRule.parse(pattern, _shapes(operands), _shapes(results), reduce, replicate, permute)

    if flops is not None:
        register_flops(primitive, flops)


def register_flops(primitive: Primitive, flops: FlopsFn) -> None:
    """Say how much a primitive computes."""
    _FLOPS[primitive] = flops


def kernel_flops(primitive: Primitive) -> FlopsFn | None:
    """What was registered of how much a primitive computes; None where nothing was."""
    return _FLOPS.get(primitive)


def registered() -> frozenset[Primitive]:
    """All primitives that have a rule of their own."""
    return frozenset(_RULES)


def rule_for(
    primitive: Primitive,
    operand_avals: Sequence[Aval],
    result_avals: Sequence[Aval],
    params: Mapping[str, Any],
) -> tuple[ShardingRule, Origin]:
    """The sharding rule of one equation, and where it came from.

    The registry's own rule first, then the one that Shardy gives for what the equation lowers to. Where
    neither knows, everything is replicated, which is always correct and never fast: the caller should warn.

    Raises ``ValueError`` where a registered rule does not fit the equation's shapes.
    """
    if rule_fn := _RULES.get(primitive):
        try:
            rule = rule_fn(operand_avals, result_avals, **params)
            rule.check(_shapes(operand_avals), _shapes(result_avals))
        except ValueError as error:
            raise ValueError(
                f"the sharding rule registered for primitive '{primitive}' does not fit: {error}"
            ) from error
        return rule, "registry"
    if rule_or_none := shardy_rule(primitive, operand_avals, result_avals, params):
        return rule_or_none, "shardy"
    return replicated(_shapes(operand_avals), _shapes(result_avals)), "replicated"


def _shapes(avals: Sequence[Aval]) -> list[Shape]:
    # Tokens and references have no shape, and nothing to shard.
    return [tuple(getattr(aval, "shape", ())) for aval in avals]
