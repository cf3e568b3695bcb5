"""Whatever strategies an assignment picks, the emitted program computes what the function does, and moves what it says.

A plan that is slow is a pity, one that is wrong is a disaster; so strategies are picked at random here, as no solver
would, and XLA must neither give other numbers nor replicate what it was not told to.
"""

from __future__ import annotations

import jax
import pytest
from cases import BINARY, BITWISE, CASES, SHIFTS, UNARY, Case
from forced import (
    bytes_by_kind,
    described,
    device_mesh,
    differences,
    priced_on,
    random_assignments,
    run_as_assigned,
)
from jax.sharding import Mesh
from programs import PROGRAMS

from costmodel import CostModel, preset
from planner.assignment import Assignment
from planner.predict import predict

MESH = device_mesh(x=2, y=4)
CUBE = device_mesh(a=2, b=2, c=2)
MOST = 12
ALIKE = {*UNARY, *BINARY, *BITWISE, *SHIFTS, "igamma_grad_a", "polygamma", "regularized_incomplete_beta"}
"""One rule for all of them, and some take long to compile: a few strategies of each."""
STATEFUL = {"rng_uniform"}
"""Gives other numbers each time it runs."""
OPS = [case for case in CASES if case.name not in STATEFUL]
READ_TWICE = {"dot_general to f32", *(case.name for case in OPS if case.name.endswith("gradients"))}
"""Ops of which several operands are one array: two ways of it have parts in common, which XLA merges."""
HALO_SLACK = 1.3
"""XLA's halos are a little wider than some windows need."""


def assignments_of(case: Case, mesh: Mesh, cost_model: CostModel | None = None) -> list[Assignment]:
    most = 3 if case.name in ALIKE else MOST
    return random_assignments(priced_on(case, mesh, cost_model), most, case.name)


def check_values(case: Case, assignments: list[Assignment], results: list[list[jax.Array]], stderr: str) -> None:
    wanted = jax.tree.leaves(jax.jit(case.fn)(*case.args))
    wrong = {
        described(assignment): found_wrong
        for assignment, found in zip(assignments, results, strict=True)
        if (found_wrong := differences(found, wanted))
    }
    assert not wrong
    assert "Involuntary full rematerialization" not in stderr


@pytest.mark.parametrize("case", [*OPS, *PROGRAMS], ids=lambda case: case.name)
def test_every_strategy_computes_the_same(case: Case, capfd: pytest.CaptureFixture[str]) -> None:
    """And communicates what was predicted.

    An op that stands alone moves just that. Where ops meet, XLA moves less if it can: it takes what does not change out
    of loops, and merges what two ways have in common; it must not move more.
    """
    assignments = assignments_of(case, MESH)
    run = run_as_assigned(assignments, MESH, case.args)
    check_values(case, assignments, run.results, capfd.readouterr().err)
    if case.name == "loop vmapped":
        return  # JAX lowers a loop with a condition for each row by testing again inside it, which no jaxpr shows
    nothing_donated = (None,) * len(assignments[0].priced.graph.body.outputs)
    predicted = bytes_by_kind(
        one for assignment in assignments for one in predict(assignment, nothing_donated).collectives
    )
    most = {kind: nbytes * slack(case, kind[0]) for kind, nbytes in predicted.items()}
    assert not {kind: nbytes for kind, nbytes in run.communicated.items() if nbytes > most.get(kind, 0.0)}
    if case in OPS and case.name not in READ_TWICE:
        least = {kind: nbytes / slack(case, kind[0]) for kind, nbytes in predicted.items()}
        assert not {kind: nbytes for kind, nbytes in least.items() if run.communicated[kind] < nbytes}


def slack(case: Case, kind: str) -> float:
    return HALO_SLACK if "convolution" in case.name and kind == "collective-permute" else 1 + 1e-9


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case.name)
def test_meshes_of_three_axes(case: Case, capfd: pytest.CaptureFixture[str]) -> None:
    assignments = assignments_of(case, CUBE)[:4]
    run = run_as_assigned(assignments, CUBE, case.args)
    check_values(case, assignments, run.results, capfd.readouterr().err)


SCATTERING = ("dot_general", "dot_general batched", "dot_general twice", "convolution", "mlp gradient", "scan layers")


@pytest.mark.parametrize(
    "case", [case for case in (*OPS, *PROGRAMS) if case.name in SCATTERING], ids=lambda case: case.name
)
def test_scattered_reductions(case: Case, capfd: pytest.CaptureFixture[str]) -> None:
    """Strategies that GPUs and TPUs have besides; on CPU the same numbers come of them, by other collectives."""
    assignments = assignments_of(case, MESH, CostModel(preset("h100-dgx:1")))
    strategies = [a.strategy(node) for a in assignments for node in range(len(a.picks) - 1)]
    assert any(strategy.scatter for strategy in strategies)
    run = run_as_assigned(assignments, MESH, case.args)
    check_values(case, assignments, run.results, capfd.readouterr().err)
