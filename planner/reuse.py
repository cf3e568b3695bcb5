"""What a call takes because caches do not keep what it comes back to: by reuse distance, the bytes touched meanwhile.

The price of an op has arguments and results come from memory, and what the program made itself from the caches (see
`planner.work`): a solver that prices ops one by one does not know what lies between. Here the order is known.

In a loop each round goes over the memory of the one before, and what it makes stays in the caches. Outside, arrays lie
one behind the other, and their memory is cold too when the call touches it for the first time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from costmodel.model import MeshCost
from planner.buffers import Timeline
from planner.memory import with_memory_of_their_own
from planner.pieces import unassembled
from planner.program import Array, Instruction, Program
from planner.traits import renames

SLICES = frozenset({"slice", "dynamic_slice", "gather"})
"""Ops that touch no more of an operand than their result has."""


def refetch_seconds(cost: MeshCost, program: Program, over_time: Timeline, all_bytes: float) -> float:
    """Beyond the prices of ops and collectives, of one call of a program.

    Args:
        all_bytes: of all memory that the program takes: no more can lie between, however often it is touched.
    """
    touched, after = 0.0, dict[Array, float]()
    again: list[tuple[float, float, float]] = []  # how often, bytes, and bytes touched since
    not_done = unassembled(over_time.kernels[program])
    for kernel in over_time.kernels[program]:
        root, read = kernel[-1], _read(kernel, over_time)
        if hands_on(kernel) or root in not_done:
            after |= {array: after[before] for array in root.results for before in read if before in after}
            continue
        since: dict[Array, float] = {}
        for array, nbytes in read.items():
            since[array] = touched - after[array] if array in after else math.inf
            touched += nbytes
            if array in after:
                after[array] = touched
        again += ((root.count, read[one], since[one]) for one in _priced_warm(root, since, cost) if one in after)
        touched += _touched_inside(root, over_time)
        for array in root.results:
            touched += _part(root, array)
            after[array] = touched
    again.append((1.0, _first_written(program, over_time), touched))
    inside = (each for one in program.walk() for body in one.bodies for each in body.instructions)
    again += ((each.count, _of_a_round(each), touched) for each in inside)
    times, nbytes, distances = np.array(again).T
    return float(times @ cost.device.refetch_seconds(nbytes, np.minimum(distances, all_bytes)))


def _first_written(program: Program, over_time: Timeline) -> float:
    """Bytes of the memory of temporary arrays in which nothing was before in this call, but what collectives bring."""
    brought = {array for one in program.walk() if one.collectives for array in one.results}
    from_afar = {id(alive) for array, alive in over_time.arrays.items() if array in brought}
    alive = highest = found = 0.0
    temporary = [one for one in with_memory_of_their_own(over_time.allocations) if one.role == "temporary"]
    begins = [(one.start, one.nbytes, id(one) in from_afar) for one in temporary]
    for _, nbytes, is_brought in sorted([*begins, *((one.end + 1, -one.nbytes, False) for one in temporary)]):
        alive += nbytes
        if not is_brought:
            found += max(0.0, alive - highest)
        highest = max(highest, alive)
    return found


def hands_on(kernel: Sequence[Instruction]) -> bool:
    """Whether a kernel leaves memory as it is; what copies an array into another layout does not."""
    return all(one.name == "return" or (one.op is not None and renames(one.op)) for one in kernel)


def _priced_warm(root: Instruction, since: Mapping[Array, float], cost: MeshCost) -> Iterable[Array]:
    """The arrays that a kernel's price has come from the caches.

    But on CPUs, a product was timed with one operand that is a different one each time: that is the one that was
    touched longest ago (`executor.probes.product_probe`). Collectives take as long wherever their operands are: what
    decides is how devices meet, and that the bytes of one are read by the cores of others. What they bring was timed
    as coming to lie in cold memory.
    """
    if root.collectives:
        return ()
    if root.name == "dot_general" and cost.fetches_ahead:
        return sorted(since, key=since.__getitem__)[:-1]
    return since


def _of_a_round(one: Instruction) -> float:
    """Bytes that an instruction takes out of what a loop goes over, or adds to what it stacks, for one round alone."""
    if one.op is None and one.name in ("dynamic_slice", "dynamic_update_slice"):
        return one.results[0].nbytes or one.operands[0].nbytes
    return 0.0


def _touched_inside(one: Instruction, over_time: Timeline) -> float:
    """Bytes that a device touches in all rounds of a loop."""
    total = 0.0
    for body in one.bodies:
        rounds = body.instructions[-1].count / one.count if one.count else 0.0
        for kernel in over_time.kernels[body]:
            if not hands_on(kernel):
                written = sum(_part(kernel[-1], array) for array in kernel[-1].results)
                read = sum(_read(kernel, over_time).values())
                total += rounds * (read + written + _touched_inside(kernel[-1], over_time))
    return total


def _read(kernel: Sequence[Instruction], over_time: Timeline) -> dict[Array, float]:
    """The arrays that a kernel reads, and how many bytes of each."""
    made = {array for one in kernel for array in one.results}
    found: dict[Array, float] = {}
    for one in kernel:
        computed = min(1.0, over_time.parts.get(one, 1.0))
        for array in one.operands:
            if array not in made:
                found[array] = max(found.get(array, 0.0), computed * _part(one, array))
    return found


def _part(one: Instruction, array: Array) -> float:
    """Bytes that an instruction touches of an operand or result."""
    if one.name in SLICES:
        return min(array.nbytes, one.results[0].nbytes)
    if one.traits.updates:  # in place, no more than what is written there
        return min(array.nbytes, sum(operand.nbytes for operand in one.operands[1:]))
    return array.nbytes
