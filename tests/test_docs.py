"""The examples in the documents run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", ["rules.md"])
def test_examples(name: str) -> None:
    text = (DOCS / name).read_text()
    found = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert found
    namespace: dict[str, Any] = {}
    with jax.numpy_dtype_promotion("standard"):
        for block in found:
            above = text.count("\n", 0, block.start(1))
            exec(compile("\n" * above + block[1], str(DOCS / name), "exec"), namespace)
