"""Pieces that an all-to-all brings: which are never put together."""

from __future__ import annotations

import itertools
from collections.abc import KeysView, Sequence

from planner.program import Array, Instruction
from planner.traits import REDUCTIONS


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
