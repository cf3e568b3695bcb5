"""Results that are kept: the conditions they were measured under, and their tables in docs/results.md."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import pandas as pd

from costmodel.cpus import processor
from experiments.terminal import cell, console, table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results.md"
OUT = ROOT / "out"
"""What is left behind by benchmarks; git does not look there."""
PACKAGES = ("costmodel", "planner", "executor", "experiments")


def revision() -> str:
    """The commit of this checkout, with `-dirty` if the packages differ from it; "unknown" outside a checkout."""
    changed = "-dirty" if _git("status", "--porcelain", "--", *PACKAGES) else ""
    return (_git("rev-parse", "--short", "HEAD") or "unknown") + changed


def _git(*arguments: str) -> str:
    outcome = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    return outcome.stdout.strip()


def conditions() -> str:
    """When, on what, and with which versions; a line for people."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "ortools"))
    return (
        f"{datetime.date.today().isoformat()}, {os.cpu_count()} cores of {processor()}, Python "
        f"{platform.python_version()}, {versions}, revision {revision()}"
    )


def markdown(frame: pd.DataFrame) -> str:
    """A Markdown table; numbers to three digits, to the right."""
    numbers = [pd.api.types.is_numeric_dtype(frame[name]) for name in frame.columns]
    rows = [
        [str(name).replace("_", " ") for name in frame.columns],
        ["--:" if number else "---" for number in numbers],
        *(map(cell, row) for row in frame.itertuples(index=False)),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Writes a frame as CSV with six digits, in a new folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False, float_format="%.6g")


def keep(section: str, body: str, path: Path = RESULTS) -> None:
    """Puts a text between the markers of a section, in place of what stood there; a new section goes to the end."""
    begin, end = f"<!-- begin {section} -->", f"<!-- end {section} -->"
    text = path.read_text() if path.exists() else "# Results\n"
    block = f"{begin}\n\n{body.strip()}\n\n{end}"
    before, found, rest = text.partition(begin)
    if found:
        _, _, after = rest.partition(end)
        text = before + block + after
    else:
        text = f"{text.rstrip()}\n\n{block}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def show_and_keep(section: str, title: str, about: str, frame: pd.DataFrame) -> None:
    """Prints a table, and keeps it as a section, below what it is about and under what conditions it was measured."""
    console().print(table(frame, title))
    keep(section, f"{about}\n\nMeasured {conditions()}.\n\n{markdown(frame)}")
