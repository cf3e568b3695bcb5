"""The programs that nothing was tuned to are what they claim: functions of their arguments, planned by shape alone."""

from collections.abc import Callable

import jax
import pytest
from forced import device_mesh

from experiments.unseen import PROGRAMS, Program
from planner import plan


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_they_trace_and_what_is_donated_comes_back(make: Callable[[], Program]) -> None:
    program = make()
    results = jax.tree.leaves(jax.eval_shape(program.fn, *program.example_args))
    given = [leaf for place in program.donate_argnums for leaf in jax.tree.leaves(program.example_args[place])]
    left = [(result.shape, result.dtype) for result in results]
    for leaf in given:
        left.remove((leaf.shape, leaf.dtype))


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_what_they_are_run_on_has_the_shapes_that_they_are_planned_for(make: Callable[[], Program]) -> None:
    program = make()
    assert program.as_workload("one").example_args == program.example_args


@pytest.mark.parametrize("name", ["graph-network", "k-means", "state-space", "decode"])
def test_they_are_planned(name: str) -> None:
    program = PROGRAMS[name]()
    planned = plan(program.fn, program.example_args, device_mesh(x=2, y=4), donate_argnums=program.donate_argnums)
    assert planned.prediction.step_seconds > 0
    assert planned.prediction.peak_bytes > 0
