"""In which shapes XLA's CPU compiler keeps arrays: contractions read and write no more than batch, rows and columns.

Dimensions that play the same part in a contraction are collapsed into one (openxla/xla: dot_decomposer.cc), and what is
computed element by element from such arrays alone is computed in that shape (reshape_mover.cc). A loop that meets two
shapes of the same array reads it anew: its result does not take that array's memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from planner.graph import Op, aval_of
from planner.program import Array, Instruction

Shape = tuple[int, ...]


class Shapes:
    """The shapes of what a straight line of instructions makes; what enters it is as the program has it.

    Attributes:
        computed: for each result the shape in which it is computed.
        kept: the one in which it is in memory: the one in which it is read, if all read it alike.
    """

    def __init__(self, instructions: Sequence[Instruction]):
        self.computed: dict[Array, Shape] = {}
        read: dict[Array, set[Shape]] = {}
        for one in instructions:
            contraction = _contraction(one)
            shapes = {self.computed.get(array, array.value.shape) for array in one.operands}
            alike = len(shapes) == 1 and one.traits.loops and not one.traits.moves and not one.traits.reuses
            for result in one.results:
                own = _made_as(contraction) if contraction else result.value.shape
                self.computed[result] = min(shapes) if alike else own
            for position, array in enumerate(one.operands):
                own = _read_as(contraction, position) if contraction else array.value.shape
                read.setdefault(array, set()).add(min(shapes) if alike else own)
        self.kept = {
            array: next(iter(read[array])) if len(read.get(array, ())) == 1 else shape
            for array, shape in self.computed.items()
        }

    def allow(self, array: Array, result: Array) -> bool:
        """Whether a loop's result may take the memory of an array that it reads."""
        read = self.kept.get(array, array.value.shape)
        return result not in self.computed or read == self.computed[result] == self.kept[result]


def _contraction(one: Instruction) -> Op | None:
    """The contraction of two arrays that this is."""
    return one.op if one.op and one.name == one.op.name == "dot_general" and len(one.operands) == 2 else None


def _read_as(op: Op, position: int) -> Shape:
    """Batch, rows or columns, and what is summed over, in the order in which they first come."""
    summed, batch = (dims[position] for dims in op.params["dimension_numbers"])
    parts: dict[str, int] = {}
    for dim, size in enumerate(aval_of(op.operands[position]).shape):
        part = "summed" if dim in summed else "batch" if dim in batch else "free"
        parts[part] = parts.get(part, 1) * size
    return tuple(parts.values())


def _made_as(op: Op) -> Shape:
    (summed, _), (batch, _) = op.params["dimension_numbers"]
    rows = len(aval_of(op.operands[0]).shape) - len(summed) - len(batch)
    shape = op.results[0].shape
    ends = sorted({0, len(batch), len(batch) + rows, len(shape)})
    return tuple(math.prod(shape[first:last]) for first, last in itertools.pairwise(ends))
