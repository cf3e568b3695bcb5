"""All-reduces that the compiler joins: those that need not wait for each other go as one (XLA's AllReduceCombiner).

What is joined arrives together: until then all that is to be reduced stays in memory, and nothing that needs any of the
results can begin.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from planner.program import Array, Instruction

MOST_BYTES, MOST_ARRAYS = 30 * 2**20, 256
"""How much is joined at most: XLA's default."""


def joined(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The instructions with all-reduces joined, in an order in which what is read is there."""
    groups = [group for group in _groups(instructions) if len(group) > 1]
    if not groups:
        return tuple(instructions)
    into = {index: group[0] for group in groups for index in group}
    parts: dict[int, list[Instruction]] = {}
    for index, instruction in enumerate(instructions):
        parts.setdefault(into.get(index, index), []).append(instruction)
    return _in_order([_together(these) for _, these in sorted(parts.items())])


def _groups(instructions: Sequence[Instruction]) -> list[list[int]]:
    """All-reduces to be joined, by index; each in the group that was being filled when it came."""
    found = [index for index, one in enumerate(instructions) if one.name == "all-reduce"]
    bit = {index: 1 << place for place, index in enumerate(found)}
    needed = _needed(instructions, bit)
    left, groups = list(found), []
    while left:
        group: list[int] = []
        axes = instructions[left[0]].collectives[0].axes
        mask, before, nbytes = 0, 0, 0.0
        for index in left:
            each = instructions[index].collectives[0]
            if each.axes != axes or each.bytes > MOST_BYTES:
                continue
            waits = needed[index] & mask or before & bit[index]
            if waits or nbytes + each.bytes > MOST_BYTES or len(group) == MOST_ARRAYS:
                break
            group.append(index)
            mask, before, nbytes = mask | bit[index], before | needed[index], nbytes + each.bytes
        group = group or left[:1]
        left = [index for index in left if index not in set(group)]
        for index in found:
            if index in group or needed[index] & mask:
                needed[index] |= before if index in group else before | mask
        groups.append(group)
    return groups


def _needed(instructions: Sequence[Instruction], bit: dict[int, int]) -> dict[int, int]:
    """For each all-reduce those that it waits for, as bits."""
    behind: dict[Array, int] = {}
    needed = {}
    for index, instruction in enumerate(instructions):
        before = 0
        for array in instruction.operands:
            before |= behind.get(array, 0)
        if index in bit:
            needed[index] = before
            before |= bit[index]
        behind.update(dict.fromkeys(instruction.results, before))
    return needed


def _together(these: Sequence[Instruction]) -> Instruction:
    if len(these) == 1:
        return these[0]
    return replace(
        these[0],
        operands=tuple(array for one in these for array in one.operands),
        results=tuple(array for one in these for array in one.results),
        collectives=tuple(each for one in these for each in one.collectives),
    )


def _in_order(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """Each after those whose results it reads, else in the order in which they came."""
    maker = {array: index for index, one in enumerate(instructions) for array in one.results}
    waits = [{maker[array] for array in one.operands if array in maker} for one in instructions]
    readers: list[list[int]] = [[] for _ in instructions]
    for index, makers in enumerate(waits):
        for made_by in makers:
            readers[made_by].append(index)
    missing = [len(makers) for makers in waits]
    ready = [index for index, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(instructions[index])
        for reader in readers[index]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    assert len(order) == len(instructions), "joined all-reduces wait for each other"
    return tuple(order)
