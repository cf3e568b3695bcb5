"""Which ops XLA's GPU compiler puts into one kernel: those that make the kernels together move fewer bytes.

This follows its priority fusion (openxla/xla: xla/service/gpu/transforms/priority_fusion.cc). An op goes into all of
its readers or into none, and is computed by each, if what they then read instead takes less time than writing it, and
reading it in each. A reduction along rows, with what spreads its results over rows again, is part of one kernel for
each row (softmax_rewriter_triton.cc): softmax reads its operand once.

One thing is not followed: what reads two arrays as large as it makes is computed once if it has several readers. XLA
lets two compute it, and so the sums of a residual stream from ever more arrays, each layer's otherwise than the last's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from costmodel.topology import Backend
from planner.fusion import Kernel, fuse
from planner.traits import Reduces, Traits

LAUNCH_BYTES = 4e6
"""What memory moves while a kernel more is launched: a microsecond, at some terabytes a second."""
MOST_OPERANDS = 96
"""Of a kernel (MaxOperandsAndOutputsPerFusion in xla/service/gpu/gpu_fusible.h)."""


@dataclass
class _Draft:
    """A kernel while ops come into it.

    Attributes:
        members: its ops.
        moves: what it reads, and whether in another order than it writes.
        reduces: how the reductions go that it does beside others: along rows, or otherwise too; or None.
    """

    members: set[int]
    moves: dict[int, bool]
    reduces: Reduces | None = None


def kernels(
    backend: Backend,
    behaviour: Sequence[Traits],
    operands: Sequence[Sequence[int]],
    outputs: Sequence[int],
    nbytes: Callable[[int], float],
    alike: bool = False,
) -> list[Kernel]:
    """The kernels that a backend's compiler makes of a straight line of ops.

    Args:
        behaviour, operands, outputs, alike: see `planner.fusion.fuse`.
        nbytes: of what an op makes, and of an input, by its number.
    """
    if backend == "gpu":
        return fuse_by_priority(behaviour, operands, outputs, cache(nbytes))
    return fuse(behaviour, operands, outputs, alike)


def fuse_by_priority(
    behaviour: Sequence[Traits],
    operands: Sequence[Sequence[int]],
    outputs: Sequence[int],
    nbytes: Callable[[int], float],
) -> list[Kernel]:
    """The kernels of a straight line of ops, as `planner.fusion.fuse` takes and returns them, by what they move."""
    drafts = _needed(behaviour, operands, outputs)
    readers: dict[int, set[int]] = {index: set() for index in drafts}
    for index, draft in drafts.items():
        for made in draft.moves.keys() & drafts.keys():
            readers[made].add(index)
    kept = set(outputs)
    for index in sorted(drafts):
        draft = drafts[index]
        into = [drafts[reader] for reader in readers[index]]
        fits = into and index not in kept and (behaviour[index].loops or behaviour[index].reduces)
        if not fits or not all(_takes(reader, drafts, index, behaviour, operands) for reader in readers[index]):
            continue
        if len(into) > 1 and sum(nbytes(read) >= nbytes(index) for read in draft.moves) > 1:
            continue
        apart = sum(map(nbytes, draft.moves)) + (1 + len(into)) * nbytes(index) + LAUNCH_BYTES
        again = sum(nbytes(read) for reader in into for read in draft.moves.keys() - reader.moves.keys())
        if again >= apart:
            continue
        for reader in into:
            moved = reader.moves.pop(index)
            for read, moves in draft.moves.items():
                reader.moves[read] = reader.moves.get(read, False) or moves or moved
            reader.members |= draft.members
            reader.reduces = _together(reader.reduces, draft.reduces, behaviour[index].reduces)
        for read in draft.moves.keys() & drafts.keys():
            readers[read] = (readers[read] - {index}) | readers[index]
        del drafts[index], readers[index]
    return [
        Kernel(
            root,
            frozenset(draft.members),
            frozenset(draft.moves),
            frozenset(read for read, moves in draft.moves.items() if not moves),
        )
        for root, draft in sorted(drafts.items())
    ]


def _needed(
    behaviour: Sequence[Traits], operands: Sequence[Sequence[int]], outputs: Sequence[int]
) -> dict[int, _Draft]:
    """Each op that something comes of as a kernel of its own."""
    needed = set(outputs)
    for index in reversed(range(len(behaviour))):
        if index in needed:
            needed.update(operands[index])
    return {
        index: _Draft({index}, _moves(how, operands[index])) for index, how in enumerate(behaviour) if index in needed
    }


def _moves(how: Traits, operands: Sequence[int]) -> dict[int, bool]:
    """What an op reads, and whether in another order than it writes."""
    found = dict.fromkeys(operands, how.moves or how.reuses)
    for place, operand in enumerate(operands):
        found[operand] |= how.repeated(place) is not None
    return found


def _takes(
    reader: int,
    drafts: dict[int, _Draft],
    index: int,
    behaviour: Sequence[Traits],
    operands: Sequence[Sequence[int]],
) -> bool:
    """Whether a kernel can compute what it reads."""
    how, draft, made = behaviour[reader], drafts[reader], drafts[index]
    if not how.takes or len(draft.moves.keys() | made.moves.keys()) > MOST_OPERANDS:
        return False
    if how.updates and (operands[reader][0] == index or made.moves.get(operands[reader][0])):
        return False  # it would read what has been written over
    repeated = {how.repeated(place) for place, read in enumerate(operands[reader]) if read == index} - {None}
    elementwise = not (how.moves or how.reuses or repeated)
    match _together(made.reduces, behaviour[index].reduces):
        case None:
            return True
        case "rows":
            return elementwise or how.spreads or how.reduces == "rows" or repeated == {"rows"}
        case "otherwise":
            return elementwise


def _together(*reduces: Reduces | None) -> Reduces | None:
    return "otherwise" if "otherwise" in reduces else "rows" if "rows" in reduces else None
