"""In which shapes XLA's CPU compiler keeps arrays: contractions read and write rows and columns, beside the batch.

Dimensions that play the same part in a contraction are collapsed into one (openxla/xla: dot_decomposer.cc), and what is
computed element by element from such arrays alone is computed in that shape (reshape_mover.cc). A loop that meets two
shapes of the same array does not take its memory for its result.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from planner.graph import Op, aval_of
from planner.program import Array, Instruction
from planner.traits import Traits

Shape = tuple[int, ...]


class Shapes:
    """The shapes of what a straight line of instructions makes; what enters it is as the program has it.

    Attributes:
        computed: for each result the shape in which it is computed.
        kept: the one in which it is in memory: the one in which it is read, if all read it alike. What a contraction
            makes without a dimension that has one element on a device, behind a longer one, stays without it.
    """

    def __init__(self, instructions: Sequence[Instruction]):
        self.computed: dict[Array, Shape] = {}
        read: dict[Array, set[Shape]] = {}
        thin: set[Array] = set()
        for one in instructions:
            contraction = _contraction(one)
            shapes = {self.computed.get(array, array.value.shape) for array in one.operands}
            alike = len(shapes) == 1 and one.traits.loops and not one.traits.moves and not one.traits.reuses
            for result in one.results:
                own = _made_as(contraction, result.shape) if contraction else result.value.shape
                self.computed[result] = min(shapes) if alike else own
                if contraction and 1 in itertools.dropwhile(lambda size: size == 1, result.shape):
                    thin.add(result)
            for position, array in enumerate(one.operands):
                own = _read_as(contraction, position, array.shape) if contraction else array.value.shape
                read.setdefault(array, set()).add(min(shapes) if alike else own)
        self.kept = {
            array: next(iter(read[array])) if len(read.get(array, ())) == 1 and array not in thin else shape
            for array, shape in self.computed.items()
        }

    def allow(self, array: Array, result: Array) -> bool:
        """Whether a loop's result may take the memory of an array that it reads."""
        read = self.kept.get(array, array.value.shape)
        return result not in self.computed or read == self.computed[result] == self.kept[result]


def behaviour(one: Instruction) -> Traits:
    """How an instruction behaves, a contraction as one that reads by way of another shape what is collapsed for it."""
    op = _contraction(one)
    if op is None:
        return one.traits
    places = enumerate(array.shape for array in one.operands)
    return one.traits._replace(reshaped=tuple(at for at, shape in places if len(_read_as(op, at, shape)) != len(shape)))


def _contraction(one: Instruction) -> Op | None:
    """The contraction of two arrays that this is."""
    return one.op if one.op and one.name == one.op.name == "dot_general" and len(one.operands) == 2 else None


def _read_as(op: Op, position: int, shard: Shape) -> Shape:
    """The batch's dimensions as they are, rows or columns, and what is summed over, in the order in which they come."""
    summed, batch = (dims[position] for dims in op.params["dimension_numbers"])
    shape = aval_of(op.operands[position]).shape
    parts = [dim if dim in batch else -1 if dim in summed else -2 for dim in range(len(shape))]
    return _collapsed(shape, parts, shard)


def _made_as(op: Op, shard: Shape) -> Shape:
    (summed, _), (batch, _) = op.params["dimension_numbers"]
    rows = len(aval_of(op.operands[0]).shape) - len(summed)
    shape = op.results[0].shape
    parts = [dim if dim < len(batch) else -1 if dim < rows else -2 for dim in range(len(shape))]
    return _collapsed(shape, parts, shard)


def _collapsed(shape: Shape, parts: Sequence[int], shard: Shape) -> Shape:
    """One dimension for each part, without those of which a device has one element."""
    here = shard if len(shard) == len(shape) else shape  # else it was reshaped on the way
    sizes: dict[int, int] = {}
    for size, part, count in zip(shape, parts, here, strict=True):
        if count > 1:
            sizes[part] = sizes.get(part, 1) * size
    return tuple(sizes.values())
