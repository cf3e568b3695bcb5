"""Plans against each other: each different program compiled once, then timed in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from planner import Plan

WARMUP_CALLS = 2
SURE_ROUNDS = 5
"""How often a program is timed before it can be far behind."""


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled plan.

    Attributes:
        names: of all plans that come out as this very program.
        plan: the first of them.
        compile_seconds: what compiling took, tracing and lowering not counted.
    """

    names: tuple[str, ...]
    plan: Plan
    compiled: jax.stages.Compiled
    compile_seconds: float

    def runner(self, args: Sequence[Any]) -> Runner:
        """Of real arrays, laid out in any way; they are copied, so that donation takes nothing."""
        placed = self.plan.place(*jax.tree.map(jnp.copy, tuple(args)))
        return Runner(self.compiled, placed if len(args) != 1 else (placed,), self.plan.request.ties)


def contenders(plan: Plan) -> Mapping[str, Plan]:
    """The plan and the hand-written layouts of the same problem, by name."""
    return {plan.strategy: plan, **plan.alternatives}


def compile_programs(
    plans: Mapping[str, Plan], progress: Callable[[str, float], None] = lambda name, done: None
) -> list[Program]:
    """Compiles each different program once: between two names of one program, timing would toss a coin.

    Args:
        progress: called with the name of what is being compiled, and the part of the work that is done.
    """
    names: dict[str, list[str]] = {}
    lowered: dict[str, jax.stages.Lowered] = {}
    for name, plan in plans.items():
        program = lower(plan)
        text = program.as_text()
        names.setdefault(text, []).append(name)
        lowered.setdefault(text, program)
    programs = []
    for done, (text, program) in enumerate(lowered.items()):
        first = names[text][0]
        progress(first, done / len(lowered))
        begun = time.perf_counter()
        compiled = program.compile()
        programs.append(Program(tuple(names[text]), plans[first], compiled, time.perf_counter() - begun))
    return programs


def lower(plan: Plan) -> jax.stages.Lowered:
    """The planned function lowered for the shapes that it was planned for."""
    traced = plan.traced
    return plan.jit().lower(*jax.tree.unflatten(traced.in_tree, traced.in_avals))


def race(
    programs: Sequence[Program],
    args: Sequence[Any],
    *,
    least_rounds: int = 15,
    least_seconds: float = 0.5,
    most_seconds: float = 60.0,
    far_behind: float = math.inf,
    progress: Callable[[float], None] = lambda done: None,
) -> list[tuple[float, ...]]:
    """Times programs of one function in rounds, so that a machine whose speed drifts is as fast for one as for another.

    Args:
        args: real arrays, laid out in any way; they are copied, so that donation takes nothing.
        least_rounds, least_seconds: it ends when both are reached, the latter by the calls of each
            program that is timed still,
        most_seconds: or after the least rounds if so much time has passed.
        far_behind: a program whose fastest call takes this many times the second fastest's median is timed no further.
        progress: called with the part of the work that is done.

    Returns:
        seconds of each call of each program; those far behind have fewer than the others.
    """
    runners = [program.runner(args) for program in programs]
    for runner in runners * WARMUP_CALLS:
        runner.seconds()
    samples: list[list[float]] = [[] for _ in runners]
    running = list(range(len(runners)))
    begun, turns = time.perf_counter(), np.random.default_rng(0)
    rounds, done = 0, 0.0
    while done < 1.0:
        for index in turns.permutation(running):  # so that nobody always follows the same one
            samples[index].append(runners[index].seconds())
        rounds += 1
        if rounds >= SURE_ROUNDS:
            running = _in_the_running(samples, far_behind)
        timed = min(sum(samples[index]) for index in running)
        passed = time.perf_counter() - begun
        enough = timed >= least_seconds or passed >= most_seconds
        part = 1.0 if enough else max(timed / least_seconds, passed / most_seconds)
        done = min(rounds / least_rounds, part)
        progress(min(done, 1.0))
    return [tuple(taken) for taken in samples]


def _in_the_running(samples: Sequence[Sequence[float]], far_behind: float) -> list[int]:
    """Those whose fastest call is not far behind: noise at the beginning makes a program slower, never faster."""
    medians = sorted(float(np.median(taken)) for taken in samples)
    second = medians[min(1, len(medians) - 1)]
    return [index for index, taken in enumerate(samples) if min(taken) <= far_behind * second]


class Runner:
    """A compiled program with its arguments on the devices; state that it returns goes round.

    Args:
        args: laid out as the program takes them; those that it donates are used up.
        ties: for each result, the argument that it is in the next call, or None.
    """

    def __init__(self, compiled: jax.stages.Compiled, args: Sequence[Any], ties: Sequence[int | None]):
        self._compiled = compiled
        self._args = tuple(args)
        self._ties = tuple(ties)

    def seconds(self) -> float:
        """Calls the program once, until its results are ready; how long that took."""
        begun = time.perf_counter()
        results = jax.block_until_ready(self._compiled(*self._args))
        elapsed = time.perf_counter() - begun
        leaves, tree = jax.tree.flatten(self._args)
        for result, argument in zip(jax.tree.leaves(results), self._ties, strict=True):
            if argument is not None:
                leaves[argument] = result
        self._args = jax.tree.unflatten(tree, leaves)
        return elapsed
