"""A run while it goes on: a live table on a terminal, a few lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from experiments.runner.columns import FAILED
from experiments.runner.directory import Row
from experiments.runner.suite import Suite
from experiments.runner.trial import Key
from planner.quantities import bytes_text, seconds_text

SHOWN_ROWS = 12


class Board(AbstractContextManager["Board"]):
    """What runs, what came out last, how long it took and how long it will; failures alone where nobody watches."""

    def __init__(self, suite: Suite, console: Console | None = None):
        self._suite = suite
        self._console = console or Console(stderr=True)
        self._last: deque[Row] = deque(maxlen=SHOWN_ROWS)
        self._spinner = Spinner("dots")
        self._now, self._begun = "", time.monotonic()
        self._done = self._wanted = 0
        self._taken: list[float] = []
        self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._render)

    def begin(self, done: int, waiting: Sequence[Key]) -> None:
        """`done` runs have rows, `waiting` are left."""
        self._done, self._wanted = done, done + len(waiting)
        if not self._console.is_terminal:
            earlier = f", {done} of them are there" if done else ""
            self.say(f"{self._suite.name}: {self._wanted} runs{earlier}")

    def start(self, what: Key | str) -> None:
        self._now = what if isinstance(what, str) else _name(what)

    def finish(self, row: Row) -> None:
        self._last.append(row)
        self._done += 1
        self._taken.append(float(row["wall_seconds"]))
        self._now = ""
        if row["status"] in FAILED and not self._console.is_terminal:
            self.say(f"{row['workload']} on {row['mesh']}, {row['strategy']}: {row['status']}: {row['error']}")

    def say(self, message: str) -> None:
        """A line for people, above the table."""
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def _render(self) -> Group:
        table = Table(title=f"{self._suite.name}: {self._done} of {self._wanted} runs", title_justify="left")
        for name in ("workload", "mesh", "strategy"):
            table.add_column(name, no_wrap=True)
        for name in ("predicted", "measured", "memory", "took"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", overflow="ellipsis", no_wrap=True)
        for row in self._last:
            table.add_row(*_cells(row))
        elapsed = time.monotonic() - self._begun
        self._spinner.update(text=Text(f"{self._now}   {_clock(elapsed)} elapsed{self._left()}"))
        return Group(table, self._spinner)

    def _left(self) -> str:
        if not self._taken:
            return ""
        return f", about {_clock((self._wanted - self._done) * sum(self._taken) / len(self._taken))} left"

    def __enter__(self) -> Board:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def _name(key: Key) -> str:
    workload, _, mesh, strategy, repeat = key
    again = f", repeat {repeat}" if repeat > 1 else ""
    return f"{workload} on {mesh}, {strategy}{again}"


def _cells(row: Row) -> list[str | Text]:
    def shown(name: str, text: object) -> str:
        value = row.get(name)
        return "-" if value is None else str(text(value))  # type: ignore[operator]

    outcome = "" if row["status"] == "ok" else f"{row['status']}: {row['error']}" if row["error"] else row["status"]
    return [
        str(row["workload"]),
        str(row["mesh"]),
        str(row["strategy"]),
        shown("predicted_step_seconds", seconds_text),
        shown("measured_step_seconds", seconds_text),
        shown("compiled_peak_bytes", bytes_text),
        seconds_text(float(row["wall_seconds"])),
        Text(outcome, style="red" if row["status"] in FAILED else "dim"),
    ]


def _clock(seconds: float) -> str:
    """`1:05` for 65 s."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
