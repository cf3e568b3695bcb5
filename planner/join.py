"""All-reduces that the compiler joins: those that need not wait for each other go as one (XLA's AllReduceCombiner).

What is joined arrives together: until then all that is to be reduced stays in memory, and nothing that needs any of the
results can begin.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from planner.program import Array, Instruction

MOST_BYTES, MOST_ARRAYS = 30 * 2**20, 256
"""How much is joined at most: XLA's default."""


def joined(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The instructions with all-reduces joined, in an order in which what is read is there.

    As XLA has it (xla/service/collective_combiner_utils.h): operands first from the outputs on, each group is as many
    that go with its first as come before one that waits for any of them.
    """
    found = [one for one in instructions if one.name == "all-reduce" and one.collectives[0].bytes <= MOST_BYTES]
    often = Counter(one.joins for one in found)
    left = {one for one in found if often[one.joins] > 1}
    parts = list(instructions)
    order: list[Instruction] = []
    while left:
        order = order or [*operands_first([(one, one.operands) for one in parts])]
        group = _next_group(order, left)
        left -= set(group)
        if len(group) > 1:
            places = [place for place, one in enumerate(parts) if one in group]
            parts[places[0]] = _together([parts[place] for place in places])
            parts = [one for place, one in enumerate(parts) if place not in places[1:]]
            order = []
    return tuple(parts) if len(parts) == len(instructions) else _in_order(parts)


def operands_first(reads: Sequence[tuple[Instruction, Iterable[Array]]]) -> Iterator[Instruction]:
    """What instructions read before them: from the last one's first operand on, as XLA goes through a program.

    Args:
        reads: the instructions, the last of which returns what others make, each with what it reads.
    """
    makers = {array: (one, operands) for one, operands in reads for array in one.results}
    seen: set[Instruction] = set()
    for last in reversed(reads):
        waiting = [(last[0], iter(last[1]))]
        while waiting:
            one, left = waiting[-1]
            made = next((array for array in left if array in makers and makers[array][0] not in seen), None)
            if made is not None:
                below, operands = makers[made]
                waiting.append((below, iter(operands)))
                continue
            waiting.pop()
            if one not in seen:
                seen.add(one)
                yield one


def _next_group(order: Sequence[Instruction], left: set[Instruction]) -> list[Instruction]:
    """Of the all-reduces that are left the first, and those that go with it."""
    group: list[Instruction] = []
    nbytes = 0.0
    waits = set[Array]()  # what waits for any of them
    for one in order:
        waiting = not waits.isdisjoint(one.operands)
        if waiting:
            waits.update(one.results)
        if one not in left or (group and one.joins != group[0].joins):
            continue
        nbytes += one.collectives[0].bytes
        if waiting or nbytes > MOST_BYTES or len(group) == MOST_ARRAYS:
            break
        group.append(one)
        waits.update(one.results)
    return group


def _together(these: Sequence[Instruction]) -> Instruction:
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
