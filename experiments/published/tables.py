"""The tables of published figures, as CSV; their columns are those that tests/data/published/README.md explains."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.results import ROOT

SMALL = ROOT / "tests" / "data" / "published"
"""Copies that come with this package, thinned out where they are large."""


def folder(given: Path | None = None) -> Path:
    """Where to read from: what the user says, or the copies.

    Raises:
        FileNotFoundError: what the user says is no folder.
    """
    if given is None:
        return SMALL
    if not given.is_dir():
        raise FileNotFoundError(f"{given} is no folder; give the one that holds xla_matmul.csv and its like")
    return given


def read(where: Path, name: str) -> pd.DataFrame:
    """One table; empty, with no columns, where the folder has none of that name."""
    path = where / f"{name}.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame()


def present(value: object) -> bool:
    """Whether a cell holds anything."""
    return not bool(pd.isna(value))  # type: ignore[call-overload]
