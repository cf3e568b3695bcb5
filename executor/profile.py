"""Timing planned functions on the devices they are planned for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from planner import Plan
from planner.jitted import PlannedFunction


@dataclass(frozen=True)
class Measurement:
    """How long calls took, each until its results were ready.

    Attributes:
        samples: seconds, in the order they were taken.
        compile_seconds: the first call, compilation included.
    """

    samples: tuple[float, ...]
    compile_seconds: float

    @property
    def median_seconds(self) -> float:
        return float(np.median(self.samples))

    @property
    def min_seconds(self) -> float:
        return min(self.samples)

    def quantile_seconds(self, fraction: float) -> float:
        """The time that this fraction of the calls stayed below."""
        return float(np.quantile(self.samples, fraction))


class _Runner:
    """A planned function with its arguments on the devices; state that it returns goes round."""

    def __init__(self, plan: Plan, args: Sequence[Any]):
        self._plan = plan
        self._function: PlannedFunction = plan.jit()
        fresh = jax.tree.map(
            lambda leaf: leaf + 0 if isinstance(leaf, jax.Array) and _is_number(leaf) else leaf, tuple(args)
        )
        placed = plan.place(*fresh)
        self._args = placed if len(args) != 1 else (placed,)

    def seconds(self) -> float:
        begun = time.perf_counter()
        results = jax.block_until_ready(self._function(*self._args))
        elapsed = time.perf_counter() - begun
        leaves, outs = jax.tree.leaves(self._args), jax.tree.leaves(results)
        for result, argument in zip(outs, self._plan.request.ties, strict=True):
            if argument is not None:
                leaves[argument] = result
        self._args = jax.tree.unflatten(self._plan.traced.in_tree, leaves)
        return elapsed


def measure(plan: Plan, args: Sequence[Any], *, repeats: int = 20, warmup: int = 2) -> Measurement:
    """Times calls of one planned function.

    Args:
        args: real arrays of the plan's shapes, laid out in any way; they are copied, so that donation takes nothing.
        repeats: timed calls, after `warmup` untimed ones.
    """
    return measure_interleaved({"": plan}, args, repeats=repeats, warmup=warmup)[""]


def measure_interleaved(
    plans: Mapping[str, Plan], args: Sequence[Any], *, repeats: int = 20, warmup: int = 2
) -> Mapping[str, Measurement]:
    """Times several plans of one function in turn, so that a machine whose speed drifts favours none of them."""
    if repeats < 1 or warmup < 1:
        raise ValueError(f"repeats and warmup are {repeats} and {warmup}; both need at least one call")
    runners = {name: _Runner(plan, args) for name, plan in plans.items()}
    compile_seconds = {name: runner.seconds() for name, runner in runners.items()}
    samples: dict[str, list[float]] = {name: [] for name in runners}
    for round_number in range(warmup - 1 + repeats):
        for name, runner in runners.items():
            elapsed = runner.seconds()
            if round_number >= warmup - 1:
                samples[name].append(elapsed)
    return {name: Measurement(tuple(taken), compile_seconds[name]) for name, taken in samples.items()}


def _is_number(leaf: jax.Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, np.number))
