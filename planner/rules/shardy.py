"""Rules that Shardy, the compiler's own propagation pass, gives for what an equation lowers to.

The equation is lowered to StableHLO on its own and ``sdy-populate-op-sharding-rules`` is run over it, after
which each op carries a rule; the rules of several ops are composed. What Shardy allows and XLA does badly is
taken out: halos, whose width Shardy does not tell, and the ops in `_WHOLE`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax.extend.core import Primitive
from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import sdy

from planner.rules.compose import FactorDims, Factors, Role
from planner.rules.pattern import Shape
from planner.rules.rule import Aval, ShardingRule

_RULE = "sdy.sharding_rule"
_POPULATE_RULES = "builtin.module(func.func(sdy-populate-op-sharding-rules))"

_WHOLE = frozenset(
    {
        "sdy.sharding_constraint",
        "stablehlo.convolution",
        "stablehlo.fft",
        "stablehlo.scatter",
        "stablehlo.select_and_scatter",
    }
)
"""Ops that XLA gathers for, or gets wrong, on dimensions that their rules let through."""

_ALL_REDUCIBLE = frozenset({"stablehlo.add", "stablehlo.maximum", "stablehlo.minimum", "stablehlo.multiply"})
"""Computations of a reduction that XLA makes an all-reduce of on every backend."""

_Signature: TypeAlias = tuple[tuple[Shape, Any], ...]
"""Shapes and dtypes."""


class _NoRule(Exception):
    """The chain holds something that no rule is known for."""


def shardy_rule(
    primitive: Primitive, operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]
) -> ShardingRule | None:
    """The rule that Shardy gives an equation, or None where it gives none."""
    if not all(hasattr(aval, "dtype") and 0 not in aval.shape for aval in (*operands, *results)):
        return None  # a token, an empty array
    key = (primitive, _signature(operands), _signature(results), tuple(params.items()))
    try:
        return _cached_rule(*key)
    except TypeError:  # a param is not hashable
        return _rule(*key)


def _signature(avals: Sequence[Aval]) -> _Signature:
    return tuple((tuple(aval.shape), aval.dtype) for aval in avals)


def _rule(
    primitive: Primitive, operands: _Signature, results: _Signature, params: tuple[tuple[str, Any], ...]
) -> ShardingRule | None:
    operand_structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in operands]
    result_structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    module = _lowered(primitive, operand_structs, dict(params))
    if module is None:
        return None
    chain = _Chain(module)
    try:
        return chain.factors.rule(operand_structs, result_structs, *chain.run())
    except (_NoRule, ValueError):  # ValueError: arrays that lower to another rank, as PRNG keys do
        return None


_cached_rule = functools.lru_cache(maxsize=4096)(_rule)


def _lowered(
    primitive: Primitive, operands: Sequence[jax.ShapeDtypeStruct], params: Mapping[str, Any]
) -> ir.Module | None:
    """The StableHLO of one equation, each op with its rule; None where it cannot be lowered alone."""
    bind = jax.jit(lambda *args: primitive.bind(*args, **params), keep_unused=True)
    try:
        module = bind.trace(*operands).lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
        with module.context:
            passmanager.PassManager.parse(_POPULATE_RULES).run(module.operation)
    except Exception:
        # This runs the code of whoever made the primitive, and MLIR's: anything may be raised. It means that
        # there is no rule, which the caller reports with the user's source line.
        return None
    return module


class _Chain:
    """The ops of a module, run over factors instead of arrays; calls are entered."""

    def __init__(self, module: ir.Module):
        self.factors = Factors()
        self._functions: dict[str, ir.Block] = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.regions[0].blocks[0]
            for op in module.body.operations
            if op.operation.name == "func.func"
        }

    def run(self) -> tuple[list[FactorDims], list[FactorDims]]:
        """The factors of the module's arguments and of its results."""
        arguments = [self._fresh(argument) for argument in self._functions["main"].arguments]
        return arguments, self._call("main", arguments)

    def _call(self, name: str, arguments: list[FactorDims]) -> list[FactorDims]:
        block = self._functions[name]
        env: dict[ir.Value[ir.Type], FactorDims] = dict(zip(block.arguments, arguments, strict=True))
        *ops, terminator = block.operations
        for op in ops:
            results = self._op(op.operation, [env[operand] for operand in op.operands])
            env.update(zip(op.results, results, strict=True))
        return [env[value] for value in terminator.operands]

    def _op(self, op: ir.Operation, operands: list[FactorDims]) -> list[FactorDims]:
        """The factors of an op's results; its operands' are united as its rule demands."""
        if op.name == "func.call":
            return self._call(ir.FlatSymbolRefAttr(op.attributes["callee"]).value, operands)
        if _RULE in op.attributes and op.name != "stablehlo.custom_call":
            return self._ruled(op, operands)
        if not operands:  # a constant, an iota
            return [self._fresh(result) for result in op.results]
        if op.name.startswith("chlo.") and len({_shape(array) for array in (*op.operands, *op.results)}) == 1:
            for operand in operands[1:]:
                self._unite(operands[0], operand)
            return [operands[0] for _ in op.results]
        raise _NoRule(op.name)

    def _ruled(self, op: ir.Operation, operands: list[FactorDims]) -> list[FactorDims]:
        rule = sdy.OpShardingRuleAttr(op.attributes[_RULE])
        own = [self.factors.new(size, _role(index, op, rule)) for index, size in enumerate(rule.factor_sizes)]
        for array, mapping, operand in zip(op.operands, rule.operand_mappings, operands, strict=True):
            self._unite(self._mapped(array, mapping, own), operand)
        return [
            self._mapped(array, mapping, own) for array, mapping in zip(op.results, rule.result_mappings, strict=True)
        ]

    def _mapped(self, array: ir.Value[ir.Type], mapping: ir.Attribute, own: list[int]) -> FactorDims:
        """The dimensions of an array as its op's rule maps them; where the sizes differ it is whole."""
        dims: FactorDims = []
        for size, dim_mapping in zip(_shape(array), sdy.TensorMappingAttr(mapping).dim_mappings, strict=True):
            dim = [own[index] for index in sdy.DimMappingAttr(dim_mapping).factor_indices]
            if self.factors.size(dim) != size:  # slice, pad
                self.factors.whole(dim)
                dim = []
            dims.append(dim)
        return dims

    def _unite(self, left: FactorDims, right: FactorDims) -> None:
        for one, other in zip(left, right, strict=True):
            self.factors.unite(one, other)

    def _fresh(self, array: ir.Value[ir.Type]) -> FactorDims:
        return [[self.factors.new(size)] for size in _shape(array)]


def _role(index: int, op: ir.Operation, rule: sdy.OpShardingRuleAttr) -> Role:
    if op.name in _WHOLE or index in (*rule.need_replication_factors, *rule.permutation_factors):
        return Role.WHOLE
    if index not in rule.reduction_factors:
        return Role.PASS_THROUGH
    computations = [inner.operation.name for region in op.regions for inner in [*region.blocks[0].operations][:-1]]
    one_known = len(computations) == 1 and computations[0] in _ALL_REDUCIBLE
    return Role.REDUCTION if one_known or not computations else Role.WHOLE


def _shape(array: ir.Value[ir.Type]) -> Shape:
    return tuple(ir.RankedTensorType(array.type).shape)
