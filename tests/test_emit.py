"""Whatever strategies an assignment picks, the emitted program computes what the function does.

A plan that is slow is a pity, one that is wrong is a disaster; so strategies are picked at random here, which no solver
would, and XLA must neither give other numbers nor replicate what it was not told to.
"""

from __future__ import annotations

import jax
import pytest
from cases import BINARY, BITWISE, CASES, SHIFTS, UNARY, Case
from forced import (
    described,
    device_mesh,
    differences,
    priced_on,
    random_assignments,
    run_as_assigned,
)
from programs import PROGRAMS

from planner.assignment import Assignment

MESH = device_mesh(x=2, y=4)
MOST = 12
ALIKE = {*UNARY, *BINARY, *BITWISE, *SHIFTS, "igamma_grad_a", "polygamma", "regularized_incomplete_beta"}
"""One rule for all of them, and some take long to compile: a few strategies of each."""
STATEFUL = {"rng_uniform"}
"""Gives other numbers each time it runs."""
TABLE = [case for case in (*CASES, *PROGRAMS) if case.name not in STATEFUL]


def check_every_strategy(case: Case, assignments: list[Assignment], capfd: pytest.CaptureFixture[str]) -> None:
    wanted = jax.tree.leaves(jax.jit(case.fn)(*case.args))
    capfd.readouterr()
    results = run_as_assigned(assignments, MESH, case.args)
    wrong = {
        described(assignment): found_wrong
        for assignment, found in zip(assignments, results, strict=True)
        if (found_wrong := differences(found, wanted))
    }
    assert not wrong
    assert "Involuntary full rematerialization" not in capfd.readouterr().err


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_every_strategy_computes_the_same(case: Case, capfd: pytest.CaptureFixture[str]) -> None:
    most = 3 if case.name in ALIKE else MOST
    assignments = random_assignments(priced_on(case, MESH), most, case.name)
    check_every_strategy(case, assignments, capfd)
