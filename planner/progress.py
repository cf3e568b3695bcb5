"""What is being done, on the terminal, for those who wait."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.status import Status


class Stages(AbstractContextManager["Stages"]):
    """A line on stderr that says which stage is running; nothing at all unless shown."""

    def __init__(self, show: bool):
        self._status = Status("planning", console=Console(stderr=True)) if show else None

    def enter(self, stage: str) -> None:
        if self._status is not None:
            self._status.update(f"planning: {stage}")

    def __enter__(self) -> Stages:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
