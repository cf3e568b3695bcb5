"""How each op behaves in the kernels that the compiler makes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import jax.numpy as jnp

from costmodel.topology import Backend
from planner.graph import Op, aval_of
from planner.rules.elementwise import ELEMENTWISE

Reduces = Literal["otherwise", "rows"]
"""Along the last dimensions, or along others too."""


class Traits(NamedTuple):
    """How an op behaves in a loop.

    Attributes:
        loops: it can be computed element by element, inside the loop of a reader.
        takes: it can take the ops before it into its own loop.
        costly: it is not computed twice.
        reuses: an element of its operand goes into several of its results.
        moves: elements change their places.
        unary: it reads at most one array of the size of its result.
        sums: it is a call of a library, which takes in what is read on the way to its result alone.
        summed: the library can take it in.
        updates: it writes a part of its first operand anew, in place.
        joins: it puts arrays, or an array and what pads it, side by side.
        parts: it is a loop for each part of its result, so that several read what it reads.
        reduces: the way a reduction goes, where that matters.
        spreads: it repeats each element of its operand for a row of its result.
        places: how many places in an operand it works out for each place in its result; 0 where that is the same, but
            for dimensions that are exchanged or go backwards.
        repeats: for each operand, if any is, how an elementwise op repeats it along dimensions of which it has one
            element: along the last ones, so that each makes a row, or along others.
        exchanges: devices send each other parts of its operand, which it reads beside what is there.
        reshaped: the places of operands that it reads by way of the same array in another shape.
    """

    loops: bool = False
    takes: bool = False
    costly: bool = True
    reuses: bool = False
    moves: bool = False
    unary: bool = True
    sums: bool = False
    summed: bool = False
    updates: bool = False
    joins: bool = False
    parts: bool = False
    reduces: Reduces | None = None
    spreads: bool = False
    places: int = 0
    repeats: tuple[Reduces | None, ...] = ()
    exchanges: bool = False
    reshaped: tuple[int, ...] = ()

    @property
    def broadcasts(self) -> bool:
        """Whether it repeats its operand and does nothing else."""
        return self.reuses and not self.moves

    def repeated(self, place: int) -> Reduces | None:
        """How the operand at this place is repeated."""
        return self.repeats[place] if place < len(self.repeats) else None

    def reading(self, kept: Iterable[bool]) -> Traits:
        """The same of an op that reads some of its operands only: the others are literals."""
        return self._replace(repeats=tuple(itertools.compress(self.repeats, kept))) if self.repeats else self


LIBRARY = Traits()
"""Contractions, sorts, collectives, loops: a kernel of its own."""

SLICE = Traits(loops=True, takes=True, costly=False, reuses=True, moves=True, places=1)
"""Taking a device's own part of an array."""

NAMES_ONLY = frozenset({"reshape", "squeeze", "expand_dims", "sharding_constraint", "copy", "name", "stop_gradient"})
"""Ops after which the same memory holds the same elements."""

REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"})

LIBRARY_REDUCTIONS, LIBRARY_ELEMENTS = frozenset({"reduce_sum", "reduce_max", "reduce_min"}), 4096
"""XLA's CPU compiler leaves these to YNNPACK where there are at least so many floating-point elements to reduce."""

LONGEST_REDUCED = 32
"""Others it makes in two steps if they are longer (xla/hlo/transforms/simplifiers/tree_reduction_rewriter.cc)."""

SUMMED = frozenset(
    {
        "abs", "ceil", "convert_element_type", "cos", "erf", "exp", "exp2", "expm1", "floor", "log", "log1p",
        "logistic", "neg", "round", "rsqrt", "sign", "sin", "sqrt", "tanh", "tan", "square", "integer_pow",
        "add", "add_any", "div", "max", "min", "mul", "pow", "sub",
    }
)  # fmt: skip
"""What YNNPACK computes on the way to those, of as many elements (xla/backends/cpu/ynn_support.cc in openxla/xla).

Other reductions are left out, though it takes them in where the layouts in between fit: an array that both read would
then not exist, and counting too much is the smaller error.
"""

SUMMED_TYPES = frozenset({"float64", "float32", "bfloat16", "int8", "uint8"})

COSTLY = frozenset(
    {
        "exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "pow", "erf", "erfc", "erf_inv", "rsqrt",
        "sqrt", "cbrt", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "asin", "acos", "atan", "lgamma",
        "digamma", "div", "rem", "gather",
    }
)  # fmt: skip
"""Elementwise ops (and gathers) that XLA computes once only."""

_ELEMENTWISE = frozenset(map(str, ELEMENTWISE))

IN_FLOAT32 = _ELEMENTWISE - NAMES_ONLY - {"select_n"}
"""Ops that CPUs compute in float32; rounding to bfloat16 takes several instructions."""

JOINS = frozenset({"concatenate", "roll"})

MOVES = JOINS | {"transpose", "rev", "slice", "split", "pad", "dynamic_update_slice", "gather"}

TILED = frozenset({*_ELEMENTWISE, *NAMES_ONLY, "transpose"}) - {"threefry2x32"}
"""Ops that a loop over tiles can hold, as far as they repeat no scalar; see `in_tiles`."""

SAME_PLACES = frozenset({*_ELEMENTWISE, *NAMES_ONLY, "transpose", "rev"}) - {
    "reshape", "squeeze", "expand_dims",
}  # fmt: skip
"""Ops that read their operands where they write, but for the order of dimensions: of the same shapes, or transposed."""

LOOPS = TILED | MOVES | {"broadcast_in_dim", "iota"}
"""Ops that are computed element by element (a split as a slice for each result); all others are calls of a library."""

MOST_JOINED, LEAST_JOINED_ROW = 8, 128
"""A concatenation is a kernel of its own if it joins more arrays than that, or rows of at least so many elements."""


def traits(op: Op, elements: float, backend: Backend, row: int | None = None) -> Traits:
    """How an op behaves in a loop.

    Args:
        elements: of the largest array that it reads or makes, on one device.
        row: see `joined_apart`.
    """
    if op.name in ("argmax", "argmin"):  # pairs of values and places can end a loop but not be inside one
        return Traits(takes=True)
    if op.name in REDUCTIONS:
        if backend == "gpu":
            along_rows = _last(op.params["axes"], len(aval_of(op.operands[0]).shape))
            return Traits(takes=True, moves=True, reduces="rows" if along_rows else "otherwise")
        if backend == "cpu" and elements >= LIBRARY_ELEMENTS:
            if op.name in LIBRARY_REDUCTIONS and jnp.issubdtype(op.results[0].dtype, jnp.floating):
                return Traits(takes=True, moves=True, sums=True)
            reduced = aval_of(op.operands[0]).shape
            if max((reduced[axis] for axis in op.params["axes"]), default=0) > LONGEST_REDUCED:
                return LIBRARY
        return Traits(loops=True, takes=True, moves=True)
    if op.name == "dynamic_slice" or (op.name == "gather" and one_window(op)):
        return SLICE
    in_place = op.name.startswith("scatter") and one_window(op)
    apart = op.name in JOINS and backend == "cpu" and joined_apart(op, row)
    if op.effects or apart or not (op.name in LOOPS or in_place):
        return LIBRARY
    result = op.results[0]
    large = [aval for aval in map(aval_of, op.operands) if _true_rank(aval.shape) >= max(1, _true_rank(result.shape))]
    unary = len(large) <= 1 or sum(math.prod(aval.shape) for aval in large) <= math.prod(result.shape)
    costly = op.name in COSTLY or (backend == "cpu" and op.name in IN_FLOAT32 and str(result.dtype) == "bfloat16")
    costly = costly or (backend == "tpu" and not unary)  # presumably, what is read again is weighed there
    reuses = op.name == "broadcast_in_dim"
    summed = reuses or op.name in NAMES_ONLY or (elements >= LIBRARY_ELEMENTS and _summed(op))
    updates, joins = in_place or op.name == "dynamic_update_slice", op.name in JOINS or op.name == "pad"
    moves, unary = op.name in MOVES or updates, unary and not updates  # what is in place would be read elsewhere too
    spreads = reuses and _last(result.repeats, result.rank)
    places = 0 if op.name in SAME_PLACES else 2 if op.name == "roll" else 1  # of a roll's two parts
    return Traits(
        True, True, costly, reuses, moves, unary, summed=summed, updates=updates, joins=joins, spreads=spreads,
        places=places, repeats=_repeats(op),
    )  # fmt: skip


def _repeats(op: Op) -> tuple[Reduces | None, ...]:
    """See `Traits.repeats`."""
    if op.name not in _ELEMENTWISE:
        return ()
    result = op.results[0].shape
    found: list[Reduces | None] = []
    for atom in op.operands:
        sizes = zip(aval_of(atom).shape, result, strict=False)  # a scalar has none
        dims = [dim for dim, (size, made) in enumerate(sizes) if size < made]
        found.append(("rows" if _last(dims, len(result)) else "otherwise") if dims else None)
    return tuple(found) if any(found) else ()


def _last(dims: Sequence[int], rank: int) -> bool:
    return sorted(dims) == list(range(rank - len(dims), rank))


def _true_rank(shape: tuple[int, ...]) -> int:
    return sum(size > 1 for size in shape)


def one_window(op: Op) -> bool:
    """Whether a gather or scatter has a single index: XLA makes a dynamic slice, or an update of one, of it."""
    return math.prod(aval_of(op.operands[1]).shape[:-1]) == 1


def in_tiles(op: Op) -> bool:
    """Whether XLA's CPU compiler can have an op in a loop that it computes tile by tile.

    That goes for what it computes element by element and for transpositions, but neither for slices and what is put
    together nor for what is repeated, as a scalar is that an array is multiplied by. With one such op in the loop it
    goes through its result element after element (openxla/xla: xla/backends/cpu/codegen/tiled/tiled_fusion_emitter.cc).
    """
    ranks = [len(aval_of(atom).shape) for atom in (*op.operands, *op.results)]
    return op.name in TILED and (min(ranks) > 0 or max(ranks) == 0) and not _repeats(op)


def joined_apart(op: Op, row: int | None = None) -> bool:
    """Whether a concatenation, or the one that a roll ends with, is a kernel of its own.

    Args:
        row: how many elements the innermost dimension of its result has on one device; None for all.
    """
    result = op.results[0]
    by_rows = result.rank > 1 and op.params["dimension"] == result.rank - 1
    large = by_rows and (result.shape[-1] if row is None else row) >= LEAST_JOINED_ROW
    return len(op.operands) > MOST_JOINED or large


def _summed(op: Op) -> bool:
    """Whether YNNPACK computes an op of these types."""
    avals = [*map(aval_of, op.operands), *map(aval_of, op.results)]
    return op.name in SUMMED and all(str(aval.dtype) in SUMMED_TYPES for aval in avals)


def renames(op: Op) -> bool:
    """Whether the result is the operand by another name: what is broadcast along dimensions of one element, too."""
    if op.name == "broadcast_in_dim":
        return math.prod(op.results[0].shape) == math.prod(aval_of(op.operands[0]).shape)
    return op.name in NAMES_ONLY
