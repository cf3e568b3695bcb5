"""docs/experiments.md names every column with its unit, and every strategy; `--write` brings it up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.baselines import STRATEGIES
from experiments.results import keep
from experiments.runner.columns import COLUMNS

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments.md"


def bring_up_to_date(document: Path) -> None:
    """Puts the tables as the code has them into the document."""
    columns = [f"| `{column.name}` | {column.unit or 'text'} | {column.meaning} |" for column in COLUMNS.values()]
    keep("columns", "\n".join(["| column | unit | meaning |", "| --- | --- | --- |", *columns]), document)
    strategies = [f"| `{name}` | {meaning} |" for name, meaning in STRATEGIES.items()]
    keep("strategies", "\n".join(["| strategy | layout |", "| --- | --- |", *strategies]), document)


def test_the_document_is_up_to_date(tmp_path: Path) -> None:
    document = tmp_path / DOCUMENT.name
    document.write_text(DOCUMENT.read_text())
    bring_up_to_date(document)
    assert DOCUMENT.read_text() == document.read_text(), f"bring it up to date with python {__file__} --write"


if __name__ == "__main__" and "--write" in sys.argv:
    bring_up_to_date(DOCUMENT)
