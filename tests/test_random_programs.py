"""Sixty random programs, planned and run and held against the unsharded result; `make test-random` takes more."""

from __future__ import annotations

import pytest
from planned import Job, outcomes
from random_programs import draw

COUNT, TOGETHER = 60, 10


@pytest.mark.filterwarnings("ignore::planner.ReplicatedPrimitiveWarning")
@pytest.mark.parametrize("first", range(0, COUNT, TOGETHER))
def test_random_programs_compute_the_same(first: int) -> None:
    """To draw one that fails alone: `python tests/sweep.py random --only NUMBER`."""
    programs = [draw(number) for number in range(first, first + TOGETHER)]
    found = outcomes([Job(program.case, (program.mesh,), drawn=0, solved=False) for program in programs])
    assert not [outcome for outcome in found if outcome.status not in ("passed", "not run")]
    assert any(outcome.shards > 1 for outcome in found)


def test_a_program_is_the_same_whenever_it_is_drawn() -> None:
    import jax

    texts = [str(jax.make_jaxpr(draw(7).case.fn)(*draw(7).case.args)) for _ in range(2)]
    assert texts[0] == texts[1]
