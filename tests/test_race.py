"""Programs are timed by turns; those far behind only as often as it takes to know."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from executor import race


class Scripted:
    """Takes the place of a program: its calls take the seconds given, the last of them again and again."""

    def __init__(self, *seconds: float):
        warmed_up = itertools.repeat(seconds[0], race.WARMUP_CALLS)
        self._seconds = itertools.chain(warmed_up, seconds, itertools.repeat(seconds[-1]))

    def runner(self, _: Sequence[Any]) -> Scripted:
        return self

    def seconds(self) -> float:
        return next(self._seconds)


def test_a_program_far_behind_is_timed_no_further_and_a_noisy_one_is() -> None:
    first, second, noisy, slow = [1.0], [1.1], [9.0, 1.2, 9.0, 9.0, 9.0, 9.0, 1.2], [2.0]
    programs: Any = [Scripted(*seconds) for seconds in (first, second, noisy, slow)]
    samples = race.race(programs, (), least_rounds=20, least_seconds=1.0, far_behind=1.4)
    assert [len(taken) for taken in samples] == [20, 20, 20, race.SURE_ROUNDS]
    assert samples[2][:3] == (9.0, 1.2, 9.0)
