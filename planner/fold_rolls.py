"""Finds rolls: slices of one array put together in another order, and what gradients make of that.

concatenate(x[n - k:], x[:n - k])                              a roll by k
pad(g[:k], (n - k, 0)) + pad(g[k:], (0, n - k))                its gradient, a roll by n - k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jax import lax
from jax.extend.core import Literal
from jax.extend.core import primitives as jex_primitives

from planner.graph import Atom, Op, Value, aval_of, read_counts
from planner.rules.roll import roll_p


@dataclass(frozen=True)
class _Piece:
    """A slice of an array along one dimension, and where it is put in an array of the same shape.

    Attributes:
        makers: the ops that do so.
    """

    array: Atom
    dimension: int
    start: int
    size: int
    target: int
    makers: tuple[Op, ...]


def fold_rolls(ops: Sequence[Op], outputs: Sequence[Atom]) -> tuple[Op, ...]:
    """The ops of a body with a `roll` for each of those that make one, where nothing else reads their slices."""
    reads = read_counts(ops, outputs)
    # Of a split both parts must be read once: it goes as a whole.
    maker = {value: op for op in ops if all(reads[each] == 1 for each in op.results) for value in op.results}
    instead: dict[Op, Op | None] = {}
    for op in ops:
        pieces = _pieces(op, maker)
        shift = _shift(pieces, op.results[0].shape) if len(pieces) == 2 else 0
        if shift:
            instead.update((made, None) for piece in pieces for made in piece.makers)
            params = {"dimension": pieces[0].dimension, "shift": shift}
            instead[op] = replace(op, primitive=roll_p, params=params, operands=(pieces[0].array,))
    kept = (instead.get(op, op) for op in ops)
    return tuple(op for op in kept if op is not None)


def _pieces(op: Op, maker: Mapping[Value, Op]) -> list[_Piece]:
    """The slices that an op puts into its result; empty where it does anything else."""
    if op.primitive is jex_primitives.concatenate_p and len(op.operands) == 2:
        dimension = op.params["dimension"]
        offsets = (0, aval_of(op.operands[0]).shape[dimension])
        found = [_sliced(atom, dimension, at, maker, ()) for atom, at in zip(op.operands, offsets, strict=True)]
    elif op.primitive in (jex_primitives.add_jaxvals_p, jex_primitives.add_p):
        found = [_padded(atom, maker) for atom in op.operands]
    else:
        return []
    return [piece for piece in found if piece is not None]


def _padded(atom: Atom, maker: Mapping[Value, Op]) -> _Piece | None:
    """A slice with zeros around it along one dimension."""
    pad = maker.get(atom) if isinstance(atom, Value) else None
    if pad is None or pad.primitive is not jex_primitives.pad_p or not _is_zero(pad.operands[1]):
        return None
    widths = {dim: width for dim, width in enumerate(pad.params["padding_config"]) if tuple(width) != (0, 0, 0)}
    if len(widths) != 1:
        return None
    ((dimension, (low, high, between)),) = widths.items()
    if low < 0 or high < 0 or between:
        return None
    return _sliced(pad.operands[0], dimension, low, maker, (pad,))


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Literal) and not np.any(np.asarray(atom.val))


def _sliced(
    atom: Atom, dimension: int, target: int, maker: Mapping[Value, Op], makers: tuple[Op, ...]
) -> _Piece | None:
    cut = maker.get(atom) if isinstance(atom, Value) else None
    if cut is None:
        return None
    if cut.primitive is jex_primitives.slice_p and set(cut.params["strides"] or (1,)) == {1}:
        start = cut.params["start_indices"][dimension]
    elif cut.primitive is lax.split_p and cut.params["axis"] == dimension:
        start = sum(cut.params["sizes"][: cut.results.index(atom)])
    else:
        return None
    return _Piece(cut.operands[0], dimension, start, aval_of(atom).shape[dimension], target, (*makers, cut))


def _shift(pieces: Sequence[_Piece], shape: Sequence[int]) -> int:
    """By how much two pieces roll an array of this shape; 0 where they do not."""
    first, last = sorted(pieces, key=lambda piece: piece.start)
    size = shape[first.dimension]
    if first.array is not last.array or first.dimension != last.dimension or aval_of(first.array).shape != tuple(shape):
        return 0
    parted = (first.start, last.start, first.size + last.size) == (0, first.size, size)
    shifts = {(piece.target - piece.start) % size for piece in pieces}
    return shifts.pop() if parted and len(shifts) == 1 else 0
