"""Which ops the compiler puts into one loop, and so which arrays exist in memory at all.

This follows XLA's instruction fusion (openxla/xla: xla/service/instruction_fusion.cc and
xla/service/cpu/cpu_instruction_fusion.cc): from the last op to the first, each takes in the ops that make its operands,
as long as that is possible and no costly op would be computed twice. A cheap op with several readers is computed by
each of them. What is left over is a list of *kernels*, each one loop or one call of a library, whose results are the
arrays that exist.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.traits import LIBRARY, Traits

MOST_WRITTEN = 15
"""How often the code of an op may be in a kernel: once for each place of its result that readers work out apart
(`kAllowedCodeDuplication` in xla/service/fusion_node_indexing_evaluation.cc)."""


@dataclass(frozen=True)
class Kernel:
    """Ops in one loop, or one op that is a kernel of its own.

    Attributes:
        root: the index of the op whose results it writes.
        members: all of its ops, the root included.
        reads: the ops and inputs whose results it reads.
        in_place: those of them that it reads element by element, so that its result may take their memory.
    """

    root: int
    members: frozenset[int]
    reads: frozenset[int]
    in_place: frozenset[int]


@dataclass
class _Draft:
    """A kernel while it takes ops in. Ops map to how their readers in the kernel read them.

    Attributes:
        placed: for each op or input, the members that work out at which of its places it is read, and how many each.
        written: how often a member's code is in the kernel.
        most_written: how often it may be.
    """

    root: int
    most_written: float = MOST_WRITTEN
    members: dict[int, Traits] = field(default_factory=dict)
    reuses: dict[int, bool] = field(default_factory=dict)
    moves: dict[int, bool] = field(default_factory=dict)
    readers: dict[int, int] = field(default_factory=dict)
    placed: dict[int, dict[int, int]] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)

    def add(self, index: int, how: Traits, operands: Sequence[int]) -> None:
        reused, moved = self.reuses.get(index, False), self.moves.get(index, False)
        self.members[index] = how
        self.written[index] = self.times_written(index)
        for place, operand in enumerate(operands):
            reuses = how.reuses or how.repeated(place) is not None
            self.reuses[operand] = self.reuses.get(operand, False) or reused or reuses
            self.moves[operand] = self.moves.get(operand, False) or moved or how.moves or reuses
            self.readers[operand] = self.readers.get(operand, 0) + 1
            places = how.places or int(reuses)
            self.placed.setdefault(operand, {}).update({index: places} if places else self.placed.get(index, {}))

    def times_written(self, index: int) -> int:
        """How often the code of an op would be in the kernel."""
        return sum(self.written[by] * times for by, times in self.placed.get(index, {}).items()) or 1

    def written_too_often(self, index: int, how: Traits, elsewhere: bool) -> bool:
        """Whether an op's code would be in the kernel more often than the compiler lets it; a broadcast's may be.

        What joins arrays branches, and is written for each reader: for one only, but where all there is is a single op.

        Args:
            elsewhere: whether another kernel reads what it makes.
        """
        times = self.times_written(index)
        joined_again = how.joins and (elsewhere or times > 1 or self.readers[index] > 1)
        return (times > self.most_written and not how.broadcasts) or (joined_again and len(self.members) > 1)

    def read_often(self, index: int) -> bool:
        """Whether an element of the operand would be computed more than once."""
        return self.reuses[index] or (self.readers[index] > 1 and self.moves[index])


def fuse(
    behaviour: Sequence[Traits], operands: Sequence[Sequence[int]], outputs: Sequence[int], alike: bool = False
) -> list[Kernel]:
    """The kernels of a straight line of ops.

    Args:
        behaviour: of each op, in program order.
        operands: for each op, the indices of the ops whose results it reads; other numbers stand for inputs.
        outputs: the ops whose results are needed afterwards.
        alike: whether layers that do the same are to have the same kernels. XLA does not see to that on CPUs: where a
            residual stream is added to a broadcast, the n-th layer's loop computes it anew from 2 n arrays, and where
            a kernel has become too long depends on where the first began.

    Returns:
        the kernels in program order of their roots.
    """
    count = len(behaviour)
    users: list[set[int]] = [set() for _ in range(count)]
    for index, made_by in enumerate(operands):
        for maker in made_by:
            if 0 <= maker < count:
                users[maker].add(index)
    for index in outputs:
        users[index].add(count)
    for index in reversed(range(count)):
        if not users[index]:
            for maker in operands[index]:
                if 0 <= maker < count:
                    users[maker].discard(index)
    kernels: dict[int, Kernel] = {}
    for root in reversed(range(count)):  # the calls first, as the compiler does (library_rewriter.cc)
        if behaviour[root].sums and users[root]:
            kernels[root] = _grown(_Draft(root), behaviour, operands, users, frozenset())
    behaviour = [LIBRARY if index in kernels else how for index, how in enumerate(behaviour)]
    operands = [
        [*kernels[i].reads] if i in kernels else made_by if users[i] else [] for i, made_by in enumerate(operands)
    ]
    whole = _read_once(behaviour, operands, users, alike)
    for root in reversed(range(count)):
        if users[root] and root not in kernels:
            draft = _Draft(root, math.inf) if alike else _Draft(root)
            kernels[root] = _grown(draft, behaviour, operands, users, whole)
    return [kernels[root] for root in sorted(kernels)]


def _grown(
    draft: _Draft,
    behaviour: Sequence[Traits],
    operands: Sequence[Sequence[int]],
    users: list[set[int]],
    whole: frozenset[int],
) -> Kernel:
    """The kernel that begins with its root and takes in what it can."""
    root = draft.root
    draft.add(root, behaviour[root], operands[root])
    waiting = [-maker for maker in set(operands[root]) if 0 <= maker < len(behaviour)] if behaviour[root].takes else []
    heapq.heapify(waiting)
    while waiting:
        maker = -heapq.heappop(waiting)
        how = behaviour[maker]
        duplicated = behaviour[root].parts or users[maker] != {root}
        if behaviour[root].sums:
            if duplicated or not how.summed:
                continue
        elif not how.loops or maker in whole or (how.costly and (duplicated or draft.read_often(maker))):
            continue
        if draft.written_too_often(maker, how, duplicated):
            continue
        if behaviour[root].updates and operands[root][0] in operands[maker] and (how.moves or draft.moves[maker]):
            continue  # it would read what has been written over (ShouldFuseInPlaceOp in instruction_fusion.cc)
        users[maker].discard(root)
        draft.add(maker, how, operands[maker])
        for further in set(operands[maker]):
            if 0 <= further < len(behaviour):
                if root not in users[further]:
                    users[further].add(root)
                    heapq.heappush(waiting, -further)
                if not users[maker]:
                    users[further].discard(maker)
    reads = frozenset(index for index in draft.readers if index not in draft.members)
    return Kernel(root, frozenset(draft.members), reads, frozenset(i for i in reads if not draft.moves[i]))


def _read_once(
    behaviour: Sequence[Traits], operands: Sequence[Sequence[int]], users: Sequence[set[int]], alike: bool
) -> frozenset[int]:
    """Ops of several large operands that cannot be taken in on every path to some reader: they are computed once.

    Computed again, they would read those operands again; a broadcast is no such operand. A residual connection is one:
    its sum is read by the sum after it, which reads too what a contraction made of it (ComputeGloballyUnfusible in
    instruction_fusion.cc).
    """
    count = len(behaviour)

    def broadcast(maker: int) -> bool:
        return not alike and 0 <= maker < count and behaviour[maker].broadcasts

    asked = (
        index
        for index, how in enumerate(behaviour)
        if not how.unary and sum(not broadcast(maker) for maker in operands[index]) > 1
    )
    bit = {index: 1 << place for place, index in enumerate(asked)}
    once = {index for index in bit if count in users[index]}
    behind, apart = [0] * count, [0] * count  # which of those asked of are behind an op; which not by loops alone
    for reader in range(count):
        how = behaviour[reader]
        takes = how.takes and not (how.exchanges or (alike and how.joins))  # what joins is taken in here and there
        makers = [maker for maker in set(operands[reader]) if 0 <= maker < count]
        large = [maker for maker in operands[reader] if maker in bit]
        if not how.takes:  # it may read thousands; what gives it one in another shape takes in what makes that
            once.update(maker for at, maker in enumerate(operands[reader]) if maker in bit and at not in how.reshaped)
            large = []
        for maker in (*large, None):
            behind[reader] = apart[reader] = 0
            for between in makers:
                paths = behind[between] | bit.get(between, 0)
                behind[reader] |= paths
                fits = takes and between not in once and behaviour[between].loops
                apart[reader] |= apart[between] if fits else paths
            if maker is not None and apart[reader] & bit[maker]:
                once.add(maker)
    return frozenset(once)
