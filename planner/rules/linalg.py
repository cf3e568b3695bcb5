"""Linear algebra: library calls that work on whole matrices, one after another along the batch dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import primitives as p
from jax.lax import linalg

from planner.rules.pattern import dim_names
from planner.rules.registry import register
from planner.rules.rule import Aval, DimSpec, ShardingRule


@register(
    p.cholesky_p, linalg.cholesky_update_p, p.eig_p, p.eigh_p, p.hessenberg_p, p.householder_product_p,
    p.lu_p, linalg.ormqr_p, p.qr_p, p.schur_p, p.svd_p, linalg.symmetric_product_p, p.triangular_solve_p,
    p.tridiagonal_p,
)  # fmt: skip
def _matrices(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """The batch dimensions of the first operand, a stack of matrices, pass through in all arrays.

    So would the columns of a triangular system's right-hand side in theory; XLA gathers them.
    """
    return _batched(len(operands[0].shape) - 2, operands, results)


@register(linalg.lu_pivots_to_permutation_p, p.tridiagonal_solve_p)
def _vectors(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """The same where the first operand is a stack of vectors."""
    return _batched(len(operands[0].shape) - 1, operands, results)


def _batched(batch_rank: int, operands: Sequence[Aval], results: Sequence[Aval]) -> ShardingRule:
    batch = dim_names(batch_rank)

    def dims(array: Aval) -> list[DimSpec]:
        return [*batch, *[None] * (len(array.shape) - batch_rank)]

    return ShardingRule.of(operands, results, map(dims, operands), map(dims, results))
