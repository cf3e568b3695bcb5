"""What a call takes because caches do not keep what it comes back to: by reuse distance, the bytes touched meanwhile.

The price of an op has arguments and results come from memory, and what the program made itself from the caches (see
`planner.work`): a solver that prices ops one by one does not know what lies between. Here the order is known.

As long as a device runs on alone, only what it touches itself is between, and counts by what loops over one array take,
the larger it is. Where devices share cores and have met since, at a collective, another core may go on with a device
than the one that began, and all the others have gone through the caches: there it counts by what a call takes for the
memory that it touches first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax.extend.core import primitives as jex_primitives

from costmodel.model import MeshCost
from planner._jax_compat import scan_counts
from planner.buffers import Timeline
from planner.pieces import unassembled
from planner.places import Places
from planner.program import Array, Instruction, Program
from planner.traits import renames
from planner.work import SLICES

TIMED_COLD = frozenset({"all-gather", "all-reduce", "reduce-scatter"})
"""Collectives that take the longer, the longer ago the memory was touched into which they bring, timed into one
array after the other. All-to-alls go there and back in one; permutations take as long into two as into sixteen."""


def refetch_seconds(cost: MeshCost, program: Program, over_time: Timeline, all_bytes: float) -> float:
    """Beyond the prices of ops and collectives, of one call of a program.

    Args:
        all_bytes: of all memory that the program takes: no more can lie between, however often it is touched.
    """
    places = Places(over_time)
    call = _Walk(cost, over_time, places)
    again = list(call.through(program))
    loops = [one for one in program.walk() if one.is_loop]
    arguments = frozenset(program.inputs)
    entering = ((one.count, array) for one in loops for array in _whole(one))
    # What is copied is read where it was not touched in this call, and written there.
    copied = ((1.0 + cost.device.cold_write_factor, array) for array in over_time.copied)
    again += (
        _Again(times, array.nbytes, call.touched)
        for times, array in itertools.chain(entering, copied)
        if array in arguments
    )
    inside = (each for one in loops for each in one.bodies[-1].instructions)
    again += (_Again(each.count, _of_a_round(each), call.touched) for each in inside)
    rounds = [_of_rounds(one.bodies[-1], cost, over_time, places) for one in loops]
    in_rounds = [each for _, touched in rounds for each in touched]
    brought = [each for walk in (call, *(walk for walk, _ in rounds)) for each in walk.brought]
    times, nbytes, distances, met = _columns([*again, *in_rounds])
    seconds = times @ cost.device.refetch_seconds(nbytes, np.minimum(distances, all_bytes), met.astype(bool))
    times, nbytes, distances, _ = _columns(brought)
    return float(seconds + times @ cost.device.brought_seconds(nbytes, np.minimum(distances, all_bytes)))


class _Again(NamedTuple):
    """How often so many bytes are read or written that were touched last so many others ago.

    Attributes:
        met: whether the devices have met since then.
    """

    times: float
    nbytes: float
    distance: float
    met: bool = True


def _columns(again: Sequence[_Again]) -> np.ndarray:
    return np.array(again, dtype=float).reshape(-1, len(_Again._fields)).T


class _Walk:
    """Through kernels in the order in which they run.

    Attributes:
        touched: bytes, up to now.
        met: how many they were when the devices met last.
        after: how many they were when an array had been touched last; the price of what touches an argument first has
            it come from memory.
        brought: what collectives have brought, and when the memory was touched in which it lies.
    """

    def __init__(self, cost: MeshCost, over_time: Timeline, places: Places):
        self.cost, self.over_time, self.places = cost, over_time, places.untouched()
        self.touched = 0.0
        self.met = -math.inf
        self.after: dict[Array, float] = {}
        self.brought: list[_Again] = []

    def through(self, program: Program) -> Iterator[_Again]:
        """What is touched again on the way, and was priced as coming from the caches."""
        not_done = unassembled(self.over_time.kernels[program])
        for kernel in self.over_time.kernels[program]:
            root, read = kernel[-1], _read(kernel, self.over_time)
            if hands_on(kernel) or root in not_done:
                ages = [self.after[array] for array in read if array in self.after]
                self.after |= {array: each for array in root.results for each in ages}
                continue
            before: dict[Array, _Again] = {}
            for array, nbytes in read.items():
                if array in self.after:
                    before[array] = self._again(root.count, nbytes, self.after[array])
                self.touched += nbytes
                self.places.touch(array, self.touched)
                if array in self.after or nbytes >= array.nbytes:  # of an argument the next may take another part
                    self.after[array] = self.touched
            sliced = {array for one in kernel if _takes_of_a_loop(one) for array in one.operands}
            yield from (before[array] for array in _priced_warm(root, read, before, self.cost) if array not in sliced)
            self.touched += _touched_inside(root, self.over_time)
            for array in root.results:
                if not (root.collectives or root.bodies):  # what they bring was timed as coming to lie in cold memory
                    yield from self._written(root, array)
                if root.name in TIMED_COLD:
                    self.brought += (
                        _Again(root.count * share, array.nbytes, distance)
                        for share, distance in self.places.since(array, self.touched)
                    )
                self.touched += _part(root, array)
                self.places.touch(array, self.touched)
                self.after[array] = self.touched
            if _meets(root):
                self.met = self.touched

    def _written(self, root: Instruction, array: Array) -> Iterator[_Again]:
        """What a kernel writes into memory in which something else lay, or this array itself in the round before."""
        nbytes, more = _part(root, array), self.cost.device.cold_write_factor
        if self.places.known(array):
            for share, distance in self.places.since(array, self.touched):
                yield self._again(more * share * root.count, nbytes, self.touched - distance)
        elif array in self.after:
            yield self._again(root.count, nbytes, self.after[array])

    def _again(self, times: float, nbytes: float, before: float) -> _Again:
        """Of bytes that were touched last when so many had been."""
        return _Again(times, nbytes, self.touched - before, before <= self.met)


def _of_rounds(body: Program, cost: MeshCost, over_time: Timeline, places: Places) -> tuple[_Walk, list[_Again]]:
    """What a round of a loop touches that the round before, or itself, touched; its slices of larger arrays apart."""
    walk = _Walk(cost, over_time, places)
    walk.after = {array: 0.0 for kernel in over_time.kernels[body] for array in _read(kernel, over_time)}
    for _ in walk.through(body):
        pass
    for result, carried in body.carried:
        if result in walk.after:
            walk.after[carried] = walk.after[result]
    walk.brought.clear()
    return walk, list(walk.through(body))


def _whole(loop: Instruction) -> list[Array]:
    """The operands of a loop that each round reads as a whole, or changes."""
    assert loop.op is not None
    if loop.op.primitive is jex_primitives.while_p:
        return list(loop.operands)
    sliced = set(loop.op.operands[sum(scan_counts(loop.op.params)) :])
    return [array for array in loop.operands if array.value not in sliced]


def _meets(one: Instruction) -> bool:
    """Whether devices wait for each other in an instruction, or in a loop that it is."""
    return bool(one.collectives) or any(_meets(inner) for body in one.bodies for inner in body.instructions)


def hands_on(kernel: Sequence[Instruction]) -> bool:
    """Whether a kernel leaves memory as it is; what copies an array into another layout does not."""
    return all(one.name == "return" or (one.op is not None and renames(one.op)) for one in kernel)


def _priced_warm(
    root: Instruction, read: Iterable[Array], before: Mapping[Array, _Again], cost: MeshCost
) -> Collection[Array]:
    """The arrays, among those touched before, that a kernel's price has come from the caches.

    But on GPUs, a product was timed with one operand that is a different one each time: that is the one that was
    touched longest ago (`executor.probes.product_probe`). Collectives take as long wherever their operands are: what
    decides is how devices meet, and that the bytes of one are read by the cores of others. What they bring was timed
    as coming to lie in cold memory.
    """
    if root.collectives:
        return ()
    if root.name == "dot_general" and cost.fetches_ahead and before.keys() >= set(read):
        return sorted(before, key=lambda array: before[array].distance)[:-1]
    return before.keys()


def _takes_of_a_loop(one: Instruction) -> bool:
    """Whether it takes a round's slice out of what a loop goes over."""
    return one.op is None and one.name == "dynamic_slice"


def _of_a_round(one: Instruction) -> float:
    """Bytes that an instruction takes out of what a loop goes over, or adds to what it stacks, for one round alone."""
    if _takes_of_a_loop(one):
        return one.results[0].nbytes
    return one.operands[0].nbytes if one.op is None and one.name == "dynamic_update_slice" else 0.0


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
        for array in _whole(one) if one.is_loop else one.operands:
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
