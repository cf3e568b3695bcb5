"""Ops that work element by element, and those that make elements from their position alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend.core import primitives as p

from planner._jax_compat import random_unwrap_p, random_wrap_p
from planner.rules.pattern import dim_names
from planner.rules.registry import register
from planner.rules.rule import Aval, ShardingRule, replicated

ELEMENTWISE = (
    p.abs_p, p.acos_p, p.acosh_p, p.add_jaxvals_p, p.add_p, p.and_p, p.asin_p, p.asinh_p, p.atan2_p,
    p.atan_p, p.atanh_p, p.bessel_i0e_p, p.bessel_i1e_p, p.cbrt_p, p.ceil_p, p.clamp_p, p.clz_p,
    p.complex_p, p.conj_p, p.convert_element_type_p, p.copy_p, p.cos_p, p.cosh_p, p.digamma_p, p.div_p,
    p.eq_p, p.eq_to_p, p.erf_inv_p, p.erf_p, p.erfc_p, p.exp2_p, p.exp_p, p.expm1_p, p.floor_p, p.ge_p,
    p.gt_p, p.imag_p, p.integer_pow_p, p.is_finite_p, p.le_p, p.le_to_p, p.lgamma_p, p.log1p_p, p.log_p,
    p.logistic_p, p.lt_p, p.lt_to_p, p.max_p, p.min_p, p.mul_p, p.name_p, p.ne_p, p.neg_p, p.nextafter_p,
    p.not_p, p.or_p, p.polygamma_p, p.population_count_p, p.pow_p, p.real_p, p.reduce_precision_p,
    p.rem_p, p.round_p, p.rsqrt_p, p.select_n_p, p.sharding_constraint_p, p.shift_left_p,
    p.shift_right_arithmetic_p, p.shift_right_logical_p, p.sign_p, p.sin_p, p.sinh_p, p.sqrt_p,
    p.square_p, p.stop_gradient_p, p.sub_p, p.tan_p, p.tanh_p, p.threefry2x32_p, p.xor_p, p.zeta_p,
)  # fmt: skip
"""Each element of the results is made of the elements of the operands at its place."""


@register(*ELEMENTWISE)
def elementwise(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Every dimension passes through; scalars, and dimensions of size one, are broadcast."""
    names = dim_names(max(len(a.shape) for a in results))
    return ShardingRule.of(
        operands, results, [names[: len(a.shape)] for a in operands], [names[: len(a.shape)] for a in results]
    )


@register(lax.optimization_barrier_p, p.device_put_p)
def _one_to_one(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Each operand becomes one result, independently of the others."""
    dims = [dim_names(len(a.shape), prefix=f"d{index}_") for index, a in enumerate(operands)]
    return ShardingRule.of(operands, results, dims, dims)


@register(p.iota_p)
def _made_in_place(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Every device can make its own part of the result, whichever part it is."""
    return ShardingRule.of(
        operands,
        results,
        [[None] * len(a.shape) for a in operands],
        [dim_names(len(a.shape)) for a in results],
    )


@register(p.random_bits_p)
def _random_bits(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Bits come from a counter over the whole result: each device can draw its own part. Keys stay whole."""
    batch = len(operands[0].shape)
    names = dim_names(len(results[0].shape))
    return ShardingRule.of(operands, results, [[None] * batch], [[*[None] * batch, *names[batch:]]])


# Keys are a few bytes. Gamma variates are drawn by rejection, the generators keep a state, and the incomplete
# gamma and beta functions iterate until all elements have converged: every iteration would ask all devices.
@register(
    p.igamma_grad_a_p, p.igamma_p, p.igammac_p, p.random_fold_in_p, p.random_gamma_p, p.random_seed_p,
    p.random_split_p, p.regularized_incomplete_beta_p, p.rng_bit_generator_p, p.rng_uniform_p,
    random_unwrap_p, random_wrap_p,
)  # fmt: skip
def _whole(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    return replicated([a.shape for a in operands], [a.shape for a in results])


@register(p.bitcast_convert_type_p)
def _bitcast(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Between widths, the last dimension of the narrower type holds the parts of one element."""
    (operand,), (result,) = operands, results
    names: list[str | None] = [*dim_names(min(len(operand.shape), len(result.shape)))]
    return ShardingRule.of(
        operands, results, [[*names, None][: len(operand.shape)]], [[*names, None][: len(result.shape)]]
    )
