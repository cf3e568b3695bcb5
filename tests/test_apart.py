"""Programs compiled in one process are timed in another."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from executor.calibrate import Calibration
from executor.race import compile_programs, contenders
from experiments.apart import LEAST_CALLS, Packed, packed, time_apart
from experiments.cases import planned_case
from experiments.child import call_in_child

PROBED = 0.5


class Probed:
    """Takes the place of a calibration: one probe."""

    samples: Sequence[Sequence[float]] = ()

    def compile(self) -> None:
        self.samples = ([],)

    @property
    def timers(self) -> list[Callable[[], None]]:
        return [lambda: self.samples[0].append(PROBED)]


def calls_of(programs: Sequence[Packed]) -> list[list[float]]:
    """Runs in a process of its own."""
    probes, (samples,) = time_apart([("mlp", "2x4")], [programs], 0, Probed)
    assert probes == ([PROBED],)
    return samples


def test_programs_are_called_in_another_process_with_state_that_goes_round() -> None:
    """A train step donates its state, so that a second call fails without."""
    _, planned = planned_case("mlp", "2x4")
    programs = compile_programs({name: contenders(planned)[name] for name in ("replicated", "data-parallel")})
    samples = call_in_child(calls_of, [packed(program) for program in programs], timeout_seconds=300)
    assert [len(taken) >= LEAST_CALLS for taken in samples] == [True, True]
    assert np.min(np.concatenate(samples)) > 0


def test_a_calibration_takes_in_what_another_process_timed() -> None:
    made = Calibration(jax.devices(), (2**10, 2**12, 2**14), ("float32",))
    rounds = [[1.0, float(number)] for number in range(len(made))]
    made.add(rounds)
    made.add(rounds)
    assert made.samples[3] == (1.0, 3.0, 1.0, 3.0)
