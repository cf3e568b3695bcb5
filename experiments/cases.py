"""The cases of a benchmark, each measured in a process of its own and kept as a file: a crash loses one of them.

A case is one workload on one mesh, both as typed, or another pair of words. One that this revision has measured already
is not measured again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.child import ChildFailed, call_in_child
from experiments.results import conditions, revision
from experiments.terminal import bars
from experiments.workloads import names

Case = tuple[str, str]
"""Workload and mesh, as typed."""


@dataclass(frozen=True)
class Cases:
    """Where a benchmark keeps its cases: a JSON file for each, with "case", "conditions" and what was found."""

    folder: Path

    def measure(
        self, wanted: Sequence[Case], measure: Callable[[str, str], Mapping[str, Any]], timeout: float, again: bool
    ) -> None:
        """Measures the cases, each by `measure(workload, mesh)` in a process of its own.

        Args:
            timeout: seconds that a case may take.
            again: also what this revision has measured already.
        """
        at, here = revision(), conditions()
        with bars() as shown:
            task = shown.add_task("", total=len(wanted))
            for case in wanted:
                shown.update(task, description=" on ".join(case))
                if again or not self.is_measured(case, at):
                    self.store(case, here, outcome(case, measure, timeout))
                shown.advance(task)

    def store(self, case: Case, here: str, found: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(case).write_text(json.dumps({"case": case, "conditions": here, **found}))

    def is_measured(self, case: Case, at: str) -> bool:
        """Whether the case was measured, without failing, at this very revision; of changed files one cannot know."""
        if at.endswith("-dirty") or not self._path(case).exists():
            return False
        record = json.loads(self._path(case).read_text())
        return "failure" not in record and record["conditions"].endswith(f"revision {at}")

    def records(self) -> list[dict[str, Any]]:
        """All that was measured so far, in the order of the workloads, then of the alphabet."""
        place = {name: place for place, name in enumerate(names())}
        found = [json.loads(path.read_text()) for path in self.folder.glob("*.json")]
        return sorted(
            found,
            key=lambda record: (place.get(record["case"][0], len(place)), record["case"][0], len(record["case"][1])),
        )

    def _path(self, case: Case) -> Path:
        return self.folder / f"{'-'.join(case)}.json"


def outcome(case: Case, measure: Callable[[str, str], Mapping[str, Any]], timeout: float) -> Mapping[str, Any]:
    """What the case's process found, or how it failed."""
    try:
        found: Mapping[str, Any] = call_in_child(measure, *case, timeout_seconds=timeout)
    except ChildFailed as error:
        return {"failure": str(error)}
    return found


def by_conditions(frame: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    """What was measured under the same conditions together."""
    if frame.empty:
        return
    for here, part in frame.groupby("conditions"):
        yield str(here), part.drop(columns="conditions")
