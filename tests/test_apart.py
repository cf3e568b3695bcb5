"""Programs compiled in one process are timed in another."""

import jax
import numpy as np

from executor.calibrate import Calibration
from executor.race import compile_programs, contenders
from experiments.apart import LEAST_CALLS, packed, time_apart
from experiments.cases import planned_case
from experiments.child import call_in_child


def test_programs_are_called_in_another_process_with_state_that_goes_round() -> None:
    """A train step donates its state, so that a second call fails without."""
    _, planned = planned_case("mlp", "2x4")
    programs = compile_programs({name: contenders(planned)[name] for name in ("replicated", "data-parallel")})
    sent = [packed(program) for program in programs]
    samples = call_in_child(time_apart, "mlp", "2x4", sent, 0, timeout_seconds=300)["samples"]
    assert [len(taken) >= LEAST_CALLS for taken in samples] == [True, True]
    assert np.min(np.concatenate(samples)) > 0


def test_a_calibration_takes_in_what_another_process_timed() -> None:
    made = Calibration(jax.devices(), (2**10, 2**12, 2**14), ("float32",))
    rounds = [[1.0, float(number)] for number in range(len(made))]
    made.add(rounds)
    made.add(rounds)
    assert made.samples[3] == (1.0, 3.0, 1.0, 3.0)
