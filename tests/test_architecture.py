"""The house's own rules: which package may import which, that importing one changes nothing, that examples are true."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("costmodel", "planner", "executor", "experiments")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
SHOWING = [path.relative_to(ROOT) for path in SOURCES if ">>> " in path.read_text()]


def test_imports_run_one_way() -> None:
    """The contracts stand in pyproject.toml, under `tool.importlinter`."""
    linter = Path(sys.executable).with_name("lint-imports")
    outcome = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout


def test_jax_internals_are_imported_in_one_file() -> None:
    internal = re.compile(r"^\s*(import|from) jax\._src", re.M)
    importers = [path for path in SOURCES if internal.search(path.read_text())]
    assert importers in ([], [ROOT / "planner" / "_jax_compat.py"])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_outgrows_a_reader(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", SHOWING, ids=str)
def test_examples_in_docstrings(path: Path) -> None:
    parts = path.with_suffix("").parts
    found = doctest.testmod(importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    assert found.attempted
    assert found.failed == 0


def test_importing_changes_nothing() -> None:
    """No XLA_FLAGS, no JAX setting, no device: those belong to the user."""
    program = f"""
import importlib, os, pkgutil, jax
environment, settings = dict(os.environ), dict(jax.config.values)
for package in map(importlib.import_module, {PACKAGES}):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
assert dict(os.environ) == environment, "environment changed"
assert dict(jax.config.values) == settings, "JAX settings changed"
jax.config.update("jax_num_cpu_devices", 3)  # raises once a backend is up
"""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, "-c", program]
    outcome = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
