"""Examples in docstrings say what the code does."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("costmodel", "planner", "executor", "experiments")
SOURCES = (path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
SHOWING = sorted(path for path in SOURCES if ">>> " in (ROOT / path).read_text())


@pytest.mark.parametrize("path", SHOWING, ids=str)
def test_examples_in_docstrings(path: Path) -> None:
    parts = path.with_suffix("").parts
    module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    found = doctest.testmod(module)
    assert found.attempted
    assert found.failed == 0
