"""What a sharding rule is: which dimensions of an op's operands and results correspond.

A rule names *factors*. A factor is a range of indices that runs through some dimensions of some operands and
results; sharding a factor shards every dimension that it appears in. In ``m k, k n -> m n`` all three factors
may be sharded: ``m`` and ``n`` pass through, ``k`` is a reduction, after which the devices' results must be
summed.

A factor is one of

- *pass-through*: sharding it costs nothing inside the op. The default.
- *reduction*: contracted; sharded, it takes an all-reduce that sums (or maximises, ...) the results over it.
- *need-replication*: it cannot be sharded; whoever has it sharded must gather it first.
- *permutation*: it may be sharded, and neighbours exchange a halo (a convolution's spatial dimension).

The words and the idea are Shardy's. A rule sees shapes, never a mesh, a cost or a layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from planner.rules.pattern import Dim, Dims, Shape, expand_ellipsis, parse_pattern, render

DimSpec: TypeAlias = str | Sequence[str] | None
"""One dimension as rules write it: a factor, several factors (major first), or None for never sharded."""


Halo: TypeAlias = tuple[int, int]
"""How many elements a shard needs of the one before it, and of the one after."""


class Aval(Protocol):
    """What a rule sees of an array; jax's ``ShapedArray`` and ``ShapeDtypeStruct`` are two."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> object: ...


@dataclass(frozen=True)
class ShardingRule:
    """Which dimensions of an op correspond, by factors.

    >>> rule = ShardingRule.parse("m k, k n -> m n", [(8, 16), (16, 32)], [(8, 32)], reduce="k")
    >>> rule.sizes
    {'m': 8, 'k': 16, 'n': 32}
    >>> sorted(rule.passthrough)
    ['m', 'n']
    >>> print(ShardingRule.parse("(b s) d -> b s d", [(64, 3)], [(4, 16, 3)], replicate="s"))
    (b s) d -> b s d {replicate: s}
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: Mapping[str, int] = field(hash=False)
    reduction: frozenset[str] = frozenset()
    replication: frozenset[str] = frozenset()
    permutation: Mapping[str, Halo] = field(default_factory=dict, hash=False)
    """Halo factors, each with the elements along it that a shard needs of the one before and of the one after."""

    def __post_init__(self) -> None:
        roles = [*self.reduction, *self.replication, *self.permutation]
        if unknown := sorted(set(roles) - set(self.sizes)):
            raise ValueError(f"sharding rule {self}: {_names(unknown)} has a role but is in no operand or result")
        if twice := sorted({f for f in roles if roles.count(f) > 1}):
            raise ValueError(f"sharding rule {self}: {_names(twice)} has more than one of reduce, replicate, permute")

    @property
    def factors(self) -> tuple[str, ...]:
        """All factors, in order of first appearance."""
        return tuple(self.sizes)

    @property
    def passthrough(self) -> frozenset[str]:
        """The factors without a role."""
        return frozenset(self.sizes) - self.reduction - self.replication - frozenset(self.permutation)

    @classmethod
    def parse(
        cls,
        pattern: str,
        operand_shapes: Sequence[Shape],
        result_shapes: Sequence[Shape],
        reduce: str = "",
        replicate: str = "",
        permute: Mapping[str, Halo] | None = None,
    ) -> ShardingRule:
        """The rule that an einops-like pattern describes, for arrays of these shapes.

        - ``m k, k n -> m n``: arrays are parted by commas, dimensions by spaces; a scalar is left empty.
        - ``(i j) k -> i j k``: a compound dimension, major factor first.
        - ``_`` or ``1``: a dimension that is never sharded. One of size one never is, whatever its name.
        - ``... k -> ...``: any number of leading dimensions, aligned from the right as in NumPy broadcasting.

        Raises ``ValueError`` if the pattern cannot be read or does not fit the shapes.
        """
        operands, results = parse_pattern(pattern, len(operand_shapes), len(result_shapes))
        try:
            return _from_dims(
                [expand_ellipsis(dims, shape) for dims, shape in zip(operands, operand_shapes, strict=True)],
                [expand_ellipsis(dims, shape) for dims, shape in zip(results, result_shapes, strict=True)],
                operand_shapes,
                result_shapes,
                reduce.split(),
                replicate.split(),
                permute or {},
                {},
            )
        except ValueError as error:
            raise ValueError(f'sharding rule "{pattern}": {error}') from None

    @classmethod
    def of(
        cls,
        operands: Sequence[Aval],
        results: Sequence[Aval],
        operand_dims: Iterable[Sequence[DimSpec]],
        result_dims: Iterable[Sequence[DimSpec]],
        reduce: Iterable[str] = (),
        replicate: Iterable[str] = (),
        permute: Mapping[str, Halo] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> ShardingRule:
        """The rule with these factors for each dimension of these arrays.

        Sizes follow from the shapes; `sizes` gives those that only occur in compound dimensions.
        """
        return _from_dims(
            [[_as_dim(d) for d in dims] for dims in operand_dims],
            [[_as_dim(d) for d in dims] for dims in result_dims],
            [a.shape for a in operands],
            [a.shape for a in results],
            reduce,
            replicate,
            permute or {},
            sizes or {},
        )

    def check(self, operand_shapes: Sequence[Shape], result_shapes: Sequence[Shape]) -> None:
        """Raise ``ValueError`` unless the rule fits arrays of these shapes."""
        for kind, rule_arrays, shapes in (
            ("operand", self.operands, operand_shapes),
            ("result", self.results, result_shapes),
        ):
            if len(rule_arrays) != len(shapes):
                raise ValueError(f"rule {self} has {len(rule_arrays)} {kind}s, the op has {len(shapes)}")
            for index, (dims, shape) in enumerate(zip(rule_arrays, shapes, strict=True)):
                _check_array(f"{kind} {index}", dims, shape, self.sizes)

    def __str__(self) -> str:
        arrays = [", ".join(map(render, side)) for side in (self.operands, self.results)]
        halos = (f"{factor} by {before}+{after}" for factor, (before, after) in self.permutation.items())
        roles = {
            "reduce": sorted(self.reduction),
            "replicate": sorted(self.replication),
            "permute": sorted(halos),
        }
        notes = "; ".join(f"{role}: {' '.join(names)}" for role, names in roles.items() if names)
        return " -> ".join(arrays) + (f" {{{notes}}}" if notes else "")


def replicated(operand_shapes: Sequence[Shape], result_shapes: Sequence[Shape]) -> ShardingRule:
    """The rule of an op that only runs on whole arrays."""
    return ShardingRule(
        operands=tuple(((),) * len(shape) for shape in operand_shapes),
        results=tuple(((),) * len(shape) for shape in result_shapes),
        sizes={},
    )


def _from_dims(
    operands: Sequence[Sequence[Dim]],
    results: Sequence[Sequence[Dim]],
    operand_shapes: Sequence[Shape],
    result_shapes: Sequence[Shape],
    reduce: Iterable[str],
    replicate: Iterable[str],
    permute: Mapping[str, Halo],
    given_sizes: Mapping[str, int],
) -> ShardingRule:
    """Infer the sizes of factors from shapes, drop those of size one, and check the rest."""
    located = [
        *_located("operand", operands, operand_shapes),
        *_located("result", results, result_shapes),
    ]
    all_sizes = _infer_sizes(located, given_sizes)
    sizes = {factor: size for factor, size in all_sizes.items() if size > 1}

    def sharded(dims: Sequence[Dim], shape: Shape) -> Dims:
        return tuple(
            tuple(factor for factor in dim if factor in sizes) if size > 1 else ()
            for dim, size in zip(dims, shape, strict=True)
        )

    def kept(factors: Iterable[str]) -> frozenset[str]:
        if unknown := sorted(set(factors) - all_sizes.keys()):
            raise ValueError(f"{_names(unknown)} has a role but is in no operand or result")
        return frozenset(factors).intersection(sizes)

    rule = ShardingRule(
        operands=tuple(map(sharded, operands, operand_shapes)),
        results=tuple(map(sharded, results, result_shapes)),
        sizes=sizes,
        reduction=kept(reduce),
        replication=kept(replicate),
        permutation={factor: permute[factor] for factor in sorted(kept(permute))},
    )
    rule.check(operand_shapes, result_shapes)
    return rule


def _located(kind: str, arrays: Sequence[Sequence[Dim]], shapes: Sequence[Shape]) -> Iterator[tuple[str, Dim, int]]:
    """Every dimension: where it is, its factors, its size."""
    for index, (dims, shape) in enumerate(zip(arrays, shapes, strict=True)):
        if len(dims) != len(shape):
            raise ValueError(f"{kind} {index} has shape {shape}, but {len(dims)} dimensions are named for it")
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            yield f"dimension {axis} of {kind} {index}", dim, size


def _infer_sizes(located: Sequence[tuple[str, Dim, int]], given: Mapping[str, int]) -> dict[str, int]:
    """The size of each factor, from the dimensions that it has to itself, else by dividing compound ones."""
    sizes = dict(given)
    for where, dim, size in located:
        if len(dim) == 1:
            known = sizes.get(dim[0], 1)
            if 1 not in (known, size) and known != size:
                raise ValueError(f"factor '{dim[0]}' has size {known}, but {where} has size {size}")
            sizes[dim[0]] = max(known, size)
    compounds = [(dim, size) for _, dim, size in located if len(dim) > 1 and size > 1]
    for _ in compounds:  # each round settles at least one compound dimension, or none can be
        for dim, size in compounds:
            unknown = [factor for factor in dim if factor not in sizes]
            if len(unknown) == 1:
                sizes[unknown[0]] = size // math.prod(sizes.get(factor, 1) for factor in dim)
    mentioned = dict.fromkeys(factor for _, dim, _ in located for factor in dim)
    if unsettled := sorted(mentioned.keys() - sizes.keys()):
        raise ValueError(f"the size of {_names(unsettled)} does not follow from the shapes")
    return {factor: sizes[factor] for factor in mentioned}


def _check_array(where: str, dims: Dims, shape: Shape, sizes: Mapping[str, int]) -> None:
    if len(dims) != len(shape):
        raise ValueError(f"{where} has shape {shape}, but the rule gives it {len(dims)} dimensions")
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if dim and math.prod(sizes[factor] for factor in dim) != size:
            product = " x ".join(f"{factor}={sizes[factor]}" for factor in dim)
            raise ValueError(f"dimension {axis} of {where} has size {size}, but the rule gives it {product}")


def _as_dim(spec: DimSpec) -> Dim:
    if spec is None:
        return ()
    return (spec,) if isinstance(spec, str) else tuple(spec)


def _names(factors: Iterable[str]) -> str:
    return "factor " + ", ".join(f"'{factor}'" for factor in factors)
