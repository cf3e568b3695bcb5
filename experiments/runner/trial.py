"""One run of a suite, as data; imports little, since every run's process begins with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Key = tuple[str, str, str, str, int]
"""What tells one run of a suite from another: workload, size, mesh, strategy and repeat, as in `columns.KEY`."""


@dataclass(frozen=True)
class Dimensions:
    """Which dimensions of a function's arguments mean what; arguments by the last part of their path.

    Attributes:
        sequence: the position in a sequence.
        experts: the expert that a parameter belongs to.
    """

    sequence: Mapping[str, int] = field(default_factory=dict)
    experts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One run.

    Attributes:
        calls, seconds: timing ends when there were so many calls, and they took so long.
        plan_seconds: for the solver.
        profile: a cost model as JSON, or None for the preset's.
    """

    workload: str
    size: Literal["test", "full"]
    mesh: str
    strategy: str
    repeat: int
    seed: int
    calls: int
    seconds: float
    plan_seconds: float
    check: bool
    dimensions: Dimensions
    profile: Path | None = None

    @property
    def key(self) -> Key:
        return self.workload, self.size, self.mesh, self.strategy, self.repeat
