"""Times compiled programs in a process of their own.

What a program takes depends on the process that it runs in, on where its memory lies and its threads settle: of GPT's
random layouts one took 7 % less than another in one process and 10 % more in the next, in each again and again. So
programs are compiled once and timed in several processes, as they would be run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from executor.race import WARMUP_CALLS, Program, Runner
from experiments.cases import case_workload, offer_devices

CALL_SECONDS, LEAST_CALLS, MOST_CALLS = 2.0, 8, 1000
"""A program is called for so many seconds, but this often at least and at most. A shared host changes its speed by a
third several times a second: fewer calls leave their means several per cent apart, as far as many layouts are."""
ROW_SECONDS, LEAST_ROW = 0.02, 4
"""Of calls in a row, as steps follow each other in a training loop, and as calibration times its calls: for so many
seconds, or so often. Before them comes one that does not count, which reads what others have driven from the caches."""


@dataclass(frozen=True)
class Packed:
    """A compiled program that another process can load.

    Attributes:
        executable: as `jax.experimental.serialize_executable` makes it.
        ties: for each result, the argument that it is in the next call, or None.
    """

    executable: tuple[Any, ...]
    ties: tuple[int | None, ...]


def packed(program: Program) -> Packed:
    """The program, to be sent to another process."""
    return Packed(serialize(program.compiled), tuple(program.plan.request.ties))


def time_apart(workload_name: str, mesh: str, programs: Sequence[Packed], seed: int) -> dict[str, list[list[float]]]:
    """A round of calls of each program, in rows, in an order drawn from the seed.

    Runs in a process of its own, without devices so far.

    Returns:
        as "samples", for each program the seconds of its calls.
    """
    offer_devices(mesh)
    args = case_workload(workload_name).make_args(jax.random.key(0))
    runners = [_loaded(program, args) for program in programs]
    samples: list[list[float]] = [[] for _ in programs]
    rows = _rows(runners, samples)
    for index in np.random.default_rng(seed).permutation(len(rows)):
        rows[index]()
    return {"samples": samples}


def _loaded(program: Packed, args: Sequence[Any]) -> Runner:
    """With arguments of its own, so that donation takes nothing from others."""
    compiled = deserialize_and_load(*program.executable)
    shardings, _ = compiled.input_shardings
    return Runner(compiled, jax.device_put(jax.tree.map(jnp.copy, tuple(args)), shardings), program.ties)


def _rows(runners: Sequence[Runner], samples: Sequence[list[float]]) -> list[Callable[[], None]]:
    """The calls of a round, in rows, each adding its seconds to the program's samples."""

    def call(runner: Runner, taken: list[float], times: int) -> None:
        runner.seconds()
        taken += [runner.seconds() for _ in range(times)]

    found: list[Callable[[], None]] = []
    for runner, taken in zip(runners, samples, strict=True):
        seconds = min(runner.seconds() for _ in range(WARMUP_CALLS))
        count = int(np.clip(CALL_SECONDS / seconds, LEAST_CALLS, MOST_CALLS))
        row = int(np.clip(ROW_SECONDS / seconds, LEAST_ROW, count))
        found += [partial(call, runner, taken, row)] * round(count / row)
    return found
