"""One sharding rule for a chain of ops: their factors, united where one op's result is the next's operand.

A factor that two ops treat differently takes the stricter role, in the order of `Role`. A factor cannot be
united with two others at once, so ``i`` of size 32 that meets ``a b`` of sizes 4 and 8 is first split into
two.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from planner.rules.rule import Aval, ShardingRule

Factor = int
FactorDims = list[list[Factor]]
"""The factors of each dimension of one array, major first."""


class Role(enum.IntEnum):
    PASS_THROUGH = 0
    REDUCTION = 1
    WHOLE = 2
    """Cannot be sharded."""


class Factors:
    """A growing set of factors with sizes and roles, in which factors can be united and split."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._roles: list[Role] = []
        self._same_as: dict[Factor, Factor] = {}
        self._parts: dict[Factor, tuple[Factor, Factor]] = {}

    def new(self, size: int, role: Role = Role.PASS_THROUGH) -> Factor:
        self._sizes.append(size)
        self._roles.append(role)
        return len(self._sizes) - 1

    def size(self, factors: Iterable[Factor]) -> int:
        """Of a dimension made of these."""
        return math.prod(self._sizes[factor] for factor in factors)

    def whole(self, factors: Iterable[Factor]) -> None:
        """These cannot be sharded."""
        for factor in self.parts(factors):
            self._roles[factor] = Role.WHOLE

    def parts(self, factors: Iterable[Factor]) -> list[Factor]:
        """What these have become by uniting and splitting; those of size one are left out."""
        result = []
        for factor in factors:
            while factor in self._same_as:
                factor = self._same_as[factor]
            if factor in self._parts:
                result.extend(self.parts(self._parts[factor]))
            elif self._sizes[factor] > 1:
                result.append(factor)
        return result

    def unite(self, left: Iterable[Factor], right: Iterable[Factor]) -> None:
        """Two lists of factors are the same dimension; what cannot be matched, major first, stays whole."""
        lefts, rights = self.parts(left), self.parts(right)
        if not lefts or not rights:
            self.whole([*lefts, *rights])
            return
        small, large = sorted((lefts[0], rights[0]), key=self._sizes.__getitem__)
        if self._sizes[large] % self._sizes[small]:
            self.whole([*lefts, *rights])
        elif self._sizes[large] > self._sizes[small]:
            self._split(large, self._sizes[small])
            self.unite(lefts, rights)
        else:
            self._merge(small, large)
            self.unite(lefts[1:], rights[1:])

    def _merge(self, one: Factor, other: Factor) -> None:
        if one != other:
            self._roles[one] = max(self._roles[one], self._roles[other])
            self._same_as[other] = one

    def _split(self, factor: Factor, major_size: int) -> None:
        role = self._roles[factor]
        self._parts[factor] = self.new(major_size, role), self.new(self._sizes[factor] // major_size, role)

    def rule(
        self,
        operands: Sequence[Aval],
        results: Sequence[Aval],
        operand_dims: Sequence[FactorDims],
        result_dims: Sequence[FactorDims],
    ) -> ShardingRule:
        """The rule between the ends of the chain; raises ``ValueError`` if it does not fit the arrays."""
        ends = [[self.parts(dim) for dim in dims] for dims in (*operand_dims, *result_dims)]
        in_operands, in_results = ends[: len(operand_dims)], ends[len(operand_dims) :]
        for factor in self._unusable(in_operands, in_results):
            self._roles[factor] = Role.WHOLE
        used = dict.fromkeys(factor for dims in ends for dim in dims for factor in dim)

        def named(arrays: Sequence[FactorDims]) -> list[list[list[str]]]:
            return [[[f"f{factor}" for factor in dim] for dim in dims] for dims in arrays]

        return ShardingRule.of(
            operands,
            results,
            named(in_operands),
            named(in_results),
            reduce=[f"f{factor}" for factor in used if self._roles[factor] is Role.REDUCTION],
            replicate=[f"f{factor}" for factor in used if self._roles[factor] is Role.WHOLE],
            sizes={f"f{factor}": self._sizes[factor] for factor in used},
        )

    def _unusable(self, operands: Sequence[FactorDims], results: Sequence[FactorDims]) -> set[Factor]:
        """Factors that cannot be sharded because of where they are.

        Twice in one array, one mesh axis would be needed twice. Neither in a result nor reduced, the op needs
        the whole dimension. Reduced and in a result too (softmax), the collective is inside and a rule cannot
        say so.
        """
        in_results = {factor for dims in results for dim in dims for factor in dim}
        return {
            factor
            for dims in (*operands, *results)
            for factor, times in Counter(factor for dim in dims for factor in dim).items()
            if times > 1 or (self._roles[factor] is Role.REDUCTION) == (factor in in_results)
        }
