"""Pieces that an all-to-all brings: which are never put together, and which are read at other places."""

from __future__ import annotations

import itertools
from collections.abc import KeysView, Sequence

from planner.program import Array, Instruction
from planner.traits import REDUCTIONS, renames


def unassembled(kernels: Sequence[Sequence[Instruction]]) -> KeysView[Instruction]:
    """The copies that would put pieces together of which nothing is read but in reductions, in their order.

    Where the dimension along which they lie is reduced, XLA reduces each piece and then what comes of them
    (openxla/xla: xla/hlo/transforms/simplifiers/algebraic_simplifier.cc, "Convert Reduce(concat({a,b,...}))").
    """
    readers: dict[Array, list[Instruction]] = {}
    for one in itertools.chain.from_iterable(kernels):
        for array in one.operands:
            readers.setdefault(array, []).append(one)
    return dict.fromkeys(
        copy
        for arrived, copies in readers.items()
        if arrived.pieces > 1
        for copy in copies
        if copy.name == "copy" and all(_reduces(one, arrived.along) for one in readers.get(copy.results[0], ()))
    ).keys()


def _reduces(one: Instruction, dim: int) -> bool:
    return one.op is not None and one.name in REDUCTIONS and dim in one.op.params["axes"]


def shifted_seconds(kernels: Sequence[Sequence[Instruction]]) -> float:
    """What kernels take longer that read pieces at other places than they write to, as slices and rolls do.

    Where what they write begins within a piece, none of its rows lies in one piece, and no row is copied as a whole.
    """
    total = 0.0
    for kernel in kernels:
        if any(one.traits.places and not (one.op and renames(one.op)) for one in kernel):
            root = kernel[-1]
            written = sum(array.nbytes for array in root.results)
            read = (one for one in kernel if one.shifted_seconds)
            total += root.count * sum(min(1.0, written / one.results[0].nbytes) * one.shifted_seconds for one in read)
    return total
