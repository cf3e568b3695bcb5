"""The pattern language of sharding rules: ``(b s) d, d n -> b s n``, read and written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]
Dim: TypeAlias = tuple[str, ...]
"""The factors of one dimension, major first; empty for a dimension that is never sharded."""
Dims: TypeAlias = tuple[Dim, ...]


def dim_names(rank: int, prefix: str = "d") -> list[str]:
    """``d0, d1, ...``: one factor for each of so many dimensions."""
    return [f"{prefix}{axis}" for axis in range(rank)]


_TOKEN = re.compile(r"\s*(?:\((?P<compound>[^()]*)\)|(?P<ellipsis>\.\.\.)|(?P<name>\w+))\s*")
_ELLIPSIS: Dim = ("...",)


def parse_pattern(pattern: str, operand_count: int, result_count: int) -> tuple[list[list[Dim]], list[list[Dim]]]:
    """The dimensions of each operand and of each result, as written; raises ``ValueError``."""
    sides = pattern.split("->")
    if len(sides) != 2:
        raise ValueError(f'sharding rule "{pattern}": write it as "operands -> results", with one "->"')
    parsed = []
    for text, count, kind in zip(sides, (operand_count, result_count), ("operand", "result"), strict=True):
        arrays = [] if count == 0 and not text.strip() else text.split(",")
        if len(arrays) != count:
            raise ValueError(f'sharding rule "{pattern}" names {len(arrays)} {kind}s, but the op has {count}')
        parsed.append([list(_parse_array(array, pattern)) for array in arrays])
    return parsed[0], parsed[1]


def _parse_array(text: str, pattern: str) -> Iterator[Dim]:
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(
                f'sharding rule "{pattern}": cannot read "{text[position:].strip()}"; '
                'a dimension is a name, "_", "..." or a group such as "(i j)"'
            )
        position = match.end()
        if match["ellipsis"]:
            yield _ELLIPSIS
        elif match["compound"] is not None:
            yield tuple(name for name in match["compound"].split() if name not in ("_", "1"))
        else:
            yield () if match["name"] in ("_", "1") else (match["name"],)


def expand_ellipsis(dims: list[Dim], shape: Shape) -> list[Dim]:
    """Put factors for the dimensions that an ellipsis covers; they are numbered from the right."""
    if _ELLIPSIS not in dims:
        return dims
    at = dims.index(_ELLIPSIS)
    covered = range(len(shape) - len(dims) + 1, 0, -1)
    return [*dims[:at], *((f"...{i}",) for i in covered), *dims[at + 1 :]]


def render(dims: Dims) -> str:
    """One array, as a pattern would say it."""
    return " ".join("_" if not dim else dim[0] if len(dim) == 1 else f"({' '.join(dim)})" for dim in dims)
