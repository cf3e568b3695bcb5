"""What a call takes because caches do not keep what it comes back to: by reuse distance, the bytes touched meanwhile.

The price of an op has arguments and results come from memory, and what the program made itself from the caches (see
`planner.work`): a solver that prices ops one by one does not know what lies between. Here the order is known.

In a loop each round goes over the memory of the one before, and what it makes stays in the caches. Outside, arrays lie
one behind the other, and their memory is cold too when the call touches it for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.topology import Device
from planner.buffers import Timeline
from planner.fusion import NAMES_ONLY
from planner.program import Array, Instruction, Program

SLICES = frozenset({"slice", "dynamic_slice", "gather"})
"""Ops that touch no more of an operand than their result has."""
UNTOUCHED = NAMES_ONLY | {"return"}
"""What hands memory on."""


def refetch_seconds(device: Device, program: Program, over_time: Timeline, temporary_bytes: float) -> float:
    """Beyond the prices of ops and collectives, of one call of a program.

    Args:
        temporary_bytes: of the memory that temporary arrays take.
    """
    touched, after = 0.0, dict[Array, float]()
    again: list[tuple[float, float, float]] = []  # how often, bytes, and bytes touched since
    for kernel in over_time.kernels[program]:
        root, read = kernel[-1], _read(kernel, over_time)
        if root.name in UNTOUCHED:
            after |= {array: after[before] for array in root.results for before in read if before in after}
            continue
        for array, nbytes in read.items():
            if array in after:
                again.append((root.count, nbytes, touched - after[array]))
                after[array] = touched + nbytes
            touched += nbytes
        touched += _touched_inside(root, over_time)
        for array in root.results:
            touched += _part(root, array)
            after[array] = touched
    again.append((1.0, temporary_bytes, touched))
    times, nbytes, distances = np.array(again).T
    copied = sum(float(device.memory_seconds(2 * argument.nbytes)) for argument in over_time.copied)
    return float(times @ device.refetch_seconds(nbytes, distances)) + copied


def _touched_inside(one: Instruction, over_time: Timeline) -> float:
    """Bytes that a device touches in all rounds of a loop."""
    total = 0.0
    for body in one.bodies:
        rounds = body.instructions[-1].count / one.count if one.count else 0.0
        for kernel in over_time.kernels[body]:
            if kernel[-1].name not in UNTOUCHED:
                written = sum(_part(kernel[-1], array) for array in kernel[-1].results)
                read = sum(_read(kernel, over_time).values())
                total += rounds * (read + written + _touched_inside(kernel[-1], over_time))
    return total


def _read(kernel: Sequence[Instruction], over_time: Timeline) -> dict[Array, float]:
    """The arrays that a kernel reads, and how many bytes of each."""
    made = {array for one in kernel for array in one.results}
    found: dict[Array, float] = {}
    for one in kernel:
        computed = over_time.parts.get(one, 1.0)
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
