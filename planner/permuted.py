"""Copies that XLA makes before a permutation, because of what comes after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from planner.program import Array, Instruction


def copied_before_permutations(instructions: Sequence[Instruction]) -> dict[Instruction, Instruction]:
    """The copies that have elements in another order for an all-gather, and the permutations that brought those.

    A permutation does not care for the order in memory: XLA's layout assignment carries the one that a collective wants
    through it, if nothing else reads it, and what makes its operand writes that (openxla/xla:
    xla/service/layout_assignment.cc). What a product wants is a transposition of its own, which stays where it is.

    Returns:
        for each of both, the instruction that stands in its place: the copy for the permutation, and it for the copy.
    """
    readers = Counter(array for one in instructions for array in one.operands)
    permutations: dict[Array, Instruction] = {
        one.results[0]: one for one in instructions if one.name == "collective-permute" and readers[one.results[0]] == 1
    }
    gathered = {array for one in instructions if one.name == "all-gather" for array in one.operands}
    moved: dict[Instruction, Instruction] = {}
    for copy in instructions:
        if copy.turn is not None and copy.results[0] in gathered and copy.operands[0] in permutations:
            permutation = permutations[copy.operands[0]]
            turned = replace(copy.operands[0], name=copy.results[0].name)
            moved[permutation] = replace(copy, operands=permutation.operands, results=(turned,))
            moved[copy] = replace(permutation, operands=(turned,), results=copy.results)
    return moved
