"""How things look on a terminal: tables, bars, messages."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

LEAST_WIDTH = 110
"""Where there is no terminal, rich takes 80 columns, and our tables break."""
LONGEST_NAME = 60
"""Characters of a text that stays on one line; longer ones wrap, lest they leave nothing to the other columns."""


def console(stderr: bool = False) -> Console:
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=max(found.width, LEAST_WIDTH))


def bars() -> Progress:
    """Progress bars on stderr: what is being done, how much of it is, and for how long."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def table(frame: pd.DataFrame, title: str) -> Table:
    """A table of a frame; underscores in its column names become spaces, so that long ones wrap."""
    shown = Table(title=title)
    for name in frame.columns:
        is_number = pd.api.types.is_numeric_dtype(frame[name])
        whole = not is_number and frame[name].map(cell).str.len().max() <= LONGEST_NAME
        heading = str(name).replace("_", " ")
        shown.add_column(heading, justify="right" if is_number else "left", no_wrap=whole, overflow="fold")
    for row in frame.itertuples(index=False):
        shown.add_row(*map(cell, row))
    return shown


def legend(columns: Mapping[str, str]) -> str:
    """What each column holds, a line each."""
    width = max(map(len, columns))
    return "\n".join(f"  {name.replace('_', ' '):<{width}}  {meaning}" for name, meaning in columns.items())


def cell(value: object) -> str:
    """A value as a table shows it: numbers to three digits, what is missing as a dash."""
    if isinstance(value, float):
        if pd.isna(value):
            return "-"
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
