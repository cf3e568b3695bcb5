"""What is in memory when: the program's kernels in the order in which they run, and the arrays alive between them."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace

from costmodel.topology import Backend
from planner.assignment import Assignment
from planner.collapse import Shapes, behaviour
from planner.fusion import Kernel
from planner.graph import Graph, Value
from planner.join import joined, operands_first
from planner.memory import Peak, peak
from planner.packing import Allocation, Role
from planner.priority_fusion import kernels
from planner.program import Array, Instruction, Program
from planner.traits import LIBRARY


@dataclass
class Timeline:
    """The program over time.

    Attributes:
        arrays: every array that exists, with when it is alive.
        scratch: what ops need beside.
        starts: when each instruction runs; those of one kernel at the same time.
        orders: the instructions of each program, all-reduces joined, in the order in which they run.
        kernels: the same by kernels, each of which writes what its last makes; cheap ones are in several.
        copied: what is copied lest a result in its memory come before readers, and how often: arguments once, before
            all else, and what loops go on from in each of their rounds.
        begun: the results of loops in whose memory they do not begin, and how often what they go on from is copied
            there.
        parts: how much of what an instruction makes is computed, if not all of it once: less where less is needed, more
            where several kernels compute it.
        lines: the user's line that is reached at a time, ascending.
        paces: for values that stand for those of other layers too, and for each array of theirs, how many they are in
            all, and how much later than one the next is made.
    """

    arrays: dict[Array, Allocation] = field(default_factory=dict)
    scratch: list[Allocation] = field(default_factory=list)
    starts: dict[Instruction, int] = field(default_factory=dict)
    orders: dict[Program, tuple[Instruction, ...]] = field(default_factory=dict)
    kernels: dict[Program, list[tuple[Instruction, ...]]] = field(default_factory=dict)
    copied: dict[Array, float] = field(default_factory=dict)
    begun: dict[Array, float] = field(default_factory=dict)
    parts: dict[Instruction, float] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)
    paces: dict[Value | Array, tuple[int, int]] = field(default_factory=dict)

    def seconds(self, one: Instruction) -> float:
        """That an instruction takes on the device itself, each time that it runs."""
        return min(1.0, self.parts.get(one, 1.0)) * one.seconds

    def again_seconds(self, one: Instruction) -> float:
        """That it takes in the kernels after the first that compute it, each time that it runs."""
        return max(0.0, self.parts.get(one, 1.0) - 1.0) * one.again_seconds

    def alike(self, what: Value | Array, alive: Allocation) -> int:
        """How many arrays of layers that were left out are alive together with one of the layer that stands for them.

        All of them, if it is alive for longer than it takes to get from layer to layer and on to the next; if not, it
        goes with its own layer.
        """
        times, pace = self.paces.get(what, (1, 0))
        return times if alive.role != "temporary" or alive.end - alive.start > 2 * pace else 1

    @property
    def allocations(self) -> list[Allocation]:
        return [one for one in (*self.arrays.values(), *self.scratch) if one.nbytes]

    @functools.cached_property
    def peak(self) -> Peak:
        """Of the finished program."""
        return peak(self.allocations, self.lines)


def timeline(assignment: Assignment, program: Program, donors: Sequence[int | None]) -> Timeline:
    """Runs an assignment's program on paper.

    XLA's CPU compiler runs each kernel as early as it can, the others keep to the order of the program. Which of an
    array's readers come first depends there on passes that nothing here follows; of first to last and last to first it
    is the one that takes more memory.

    Args:
        donors: for each result, the argument whose memory it takes over, or None.
    """
    graph, backend = assignment.priced.graph, assignment.priced.cost.backend
    orders = (breadth_first, functools.partial(breadth_first, backwards=True)) if backend == "cpu" else (list,)
    together = functools.cache(lambda program: joined(program.instructions))
    clocks = [_Clock(order, graph, backend, together) for order in orders]
    for clock in clocks:
        clock.run(program)
    return max((clock.finish(program, donors) for clock in clocks), key=lambda found: found.peak.nbytes)


class _Clock:
    """Runs programs in some order, and notes what is alive when.

    Args:
        backend: whose compiler to follow in what it fuses, copies and collapses.
        together: gives the instructions of a program with all-reduces joined.
    """

    def __init__(
        self,
        order: Callable[[list[Kernel]], list[Kernel]],
        graph: Graph,
        backend: Backend,
        together: Callable[[Program], tuple[Instruction, ...]],
    ):
        self.together = together
        self.order, self.graph, self.backend, self.cpu = order, graph, backend, backend == "cpu"
        self.time = 0
        self.found = Timeline()
        self.born: dict[Array, int] = {}
        self.ends: dict[Array, int] = {}
        self.places: defaultdict[Array, int] = defaultdict(itertools.count().__next__)
        self.kernels: dict[Program, list[tuple[Instruction, Mapping[Array, bool]]]] = {}

    def run(self, program: Program) -> None:
        instructions = self.together(program)
        maker = {array: index for index, one in enumerate(instructions) for array in one.results}
        outside: dict[Array, int] = {array: -1 - place for place, array in enumerate(program.inputs)}
        operands = [
            [maker[a] if a in maker else outside.setdefault(a, -1 - len(outside)) for a in one.operands]
            for one in instructions
        ]
        kept = [index for index, one in enumerate(instructions) if one.name == "return" or (one.op and one.op.effects)]
        inputs = {number: array for array, number in outside.items()}

        def nbytes(number: int) -> float:
            return sum(array.nbytes for array in instructions[number].results) if number >= 0 else inputs[number].nbytes

        order = self.order(kernels(self.backend, [*map(behaviour, instructions)], operands, kept, nbytes))
        members = dict.fromkeys(index for kernel in order for index in kernel.members)
        self.found.orders[program] = tuple(instructions[index] for index in members)
        self.found.kernels[program] = [tuple(instructions[i] for i in sorted(kernel.members)) for kernel in order]
        self.found.parts.update(_parts(order, instructions, operands))
        shapes = Shapes(instructions if self.cpu else ())
        reads = [
            {
                array: number in kernel.in_place
                and all(shapes.allow(array, one) for one in instructions[kernel.root].results)
                for index in kernel.members
                for array, number in zip(instructions[index].operands, operands[index], strict=True)
                if number not in kernel.members
            }
            for kernel in order
        ]
        self.kernels[program] = [(instructions[kernel.root], read) for kernel, read in zip(order, reads, strict=True)]
        last = {array: place for place, arrays in enumerate(reads) for array in arrays}
        home = {result: carried for result, carried in program.carried if result is not None}
        copied = self.copied(program, home, ordered=not self.cpu)
        self.found.copied.update(dict.fromkeys(copied, instructions[-1].count))
        stays = home.keys() - copied if self.cpu else set[Array]()
        for place, kernel in enumerate(order):
            goes_on = set() if self.cpu else {home.get(result) for result in instructions[kernel.root].results}
            free = {
                array: alike
                for array, alike in reads[place].items()
                if last[array] == place and (array in maker or array in goes_on)
            }
            self.execute(kernel, instructions, reads[place], free, stays)

    def execute(
        self,
        kernel: Kernel,
        instructions: Sequence[Instruction],
        reads: Iterable[Array],
        free: dict[Array, bool],
        stays: Collection[Array],
    ) -> None:
        """Runs a kernel.

        Args:
            free: what it is the last to read, and whether element by element.
            stays: results that are written where the loop keeps what they take the place of.
        """
        self.time += 2
        found, root = self.found, instructions[kernel.root]
        found.lines[self.time] = root.source
        for index in kernel.members:
            found.starts.setdefault(instructions[index], self.time)
        alive = dict.fromkeys((*reads, *root.results))
        for position, result in enumerate(root.results):
            if result in stays:
                continue
            shared = taken_over(root, position, result, free)
            if shared is not None:
                del free[shared], alive[shared]  # its memory is the result's as soon as a loop begins
                self.ends[shared] = max(self.time, self.born.get(shared, 0))
                if shared.shared:  # what a loop goes on from stays where it is
                    continue
                self.places[result] = self.places[shared]
            elif _goes_round(root, position, result):
                found.begun[result] = root.count
            self.born[result] = self.time + (shared is not None)
        if root.scratch_bytes:
            name = f"scratch of {root.name}"
            found.scratch.append(Allocation(root.scratch_bytes, self.time, self.time, name, root.source))
        for body in root.bodies:
            self.run(body)
        self.time += 2 * bool(root.bodies)
        for array in alive:
            self.ends[array] = max(self.ends.get(array, 0), self.time, self.born.get(array, 0))

    def finish(self, program: Program, donors: Sequence[int | None]) -> Timeline:
        end = self.time + 2
        for array, born in self.born.items():
            self.found.arrays[array] = self.allocation(array, born, self.ends[array])
        for argument in program.inputs:
            self.found.arrays[argument] = self.allocation(argument, 0, end, "argument")
        homes = {
            result: program.inputs[donor]
            for result, donor in zip(program.outputs, donors, strict=True)
            if result is not None and donor is not None
        }
        copied = self.copied(program, homes)
        onward = {one for one, at in homes.items() if one not in copied and self.goes_on(program, one, at)}
        for result, donor in zip(program.outputs, donors, strict=True):
            if result is None or result in program.inputs:
                continue
            born = self.born.get(result, 0)
            if donor is None:
                self.found.arrays[result] = self.allocation(result, born, end, "result", range(born))
                continue
            argument = program.inputs[donor]
            needed = self.ends.get(argument, 0)
            self.found.arrays.pop(result, None)
            if result in copied and self.cpu:
                self.found.copied[argument] = 1.0
                name = f"copy of {argument.name}"
                self.found.arrays[result] = Allocation(argument.own_bytes, 1, needed, name, argument.source)
                needed = 1
            elif needed > born and result not in onward:  # elsewhere, until the argument goes
                self.found.arrays[result] = self.allocation(result, born, needed)
            self.found.arrays[argument] = self.allocation(argument, 0, end, "argument", range(needed + 1, born))
        for result in onward:
            self.found.begun.pop(result, None)
        self.found.paces.update(_paces(self.graph, self.born))
        roots = itertools.chain.from_iterable(map(operands_first, self.kernels.values()))
        made = (array for root in roots for array in root.results)
        places = {array: place for place, array in enumerate(made)}
        self.found.arrays = dict(sorted(self.found.arrays.items(), key=lambda item: places.get(item[0], -1)))
        for array, alive in self.found.arrays.items():
            alike = self.found.alike(array if array in self.born else array.value, alive)
            if alike > 1:
                name = f"{alive.name} and {alike - 1} like it"
                all_alike = alike * alive.alike
                self.found.arrays[array] = replace(alive, nbytes=alike * alive.nbytes, name=name, alike=all_alike)
        return self.found

    def copied(self, program: Program, homes: Mapping[Array, Array], ordered: bool = False) -> KeysView[Array]:
        """The results that take over the memory of an input which is copied before, in their order.

        XLA puts kernels in order later. If nothing but their order sees to it that all others have read the input when
        the result is written, it copies the input (openxla/xla: xla/service/copy_insertion.cc): weights, where the
        gradient of what came in does not go into that of the weights.

        Args:
            homes: for results, the inputs whose memory they are to take.
            ordered: whether others have read the input by then whatever the flow of data says, as in a GPU's loops;
                what is copied is then only what a kernel makes that reads the input elsewhere than it writes.
        """
        found: dict[Array, None] = {}
        if not homes:
            return found.keys()
        before: dict[Array, int] = {}  # by what it makes: the kernels that a kernel needs, and itself, as bits
        readers = dict.fromkeys(program.inputs, 0)
        makers: dict[Array, tuple[Instruction, Mapping[Array, bool]]] = {}
        for place, (root, reads) in enumerate(self.kernels[program]):
            needed = 1 << place
            for array in reads:
                needed |= before.get(array, 0)
                if array in readers:
                    readers[array] |= 1 << place
            before.update(dict.fromkeys(root.results, needed))
            makers.update(dict.fromkeys(root.results, (root, reads)))
        for result, at in homes.items():
            if result in makers:
                root, reads = makers[result]
                last = {at: reads[at]} if at in reads else {}
                written_over = last and taken_over(root, root.results.index(result), result, last) is None
                if written_over or (not ordered and readers[at] & ~before[result]):
                    found[result] = None
        return found.keys()

    def goes_on(self, program: Program, result: Array, argument: Array) -> bool:
        """Whether a result is made by a loop that runs in the argument's memory."""
        root = next((root for root, _ in self.kernels[program] if result in root.results), None)
        if root is None or not root.bodies:
            return False
        return taken_over(root, root.results.index(result), result, {argument: True}) is argument

    def allocation(
        self, array: Array, start: int, end: int, role: Role = "temporary", idle: range = range(0)
    ) -> Allocation:
        name, source, place = array.name, array.source, self.places[array]
        return Allocation(array.own_bytes, start, end, name, source, role, array.pieces, idle, place)


def _paces(graph: Graph, born: Mapping[Array, int]) -> Iterator[tuple[Value | Array, tuple[int, int]]]:
    """See `Timeline.paces`."""
    if graph.cut is None:
        return
    made: dict[Value, list[Array]] = {}
    for array in born:
        made.setdefault(array.value, []).append(array)
    for part, alike in graph.cut.kept.items():
        if isinstance(part, Value):
            pace = 0
            for place, array in reversed([*enumerate(made.get(part, ()))]):
                rows = (made.get(value, ()) for value in alike if isinstance(value, Value))
                births = sorted(born[row[place]] for row in rows if place < len(row))
                gaps = [later - one for one, later in itertools.pairwise(births)]
                pace = statistics.median_low(gaps or [0])
                yield array, (graph.cut.times, pace)
            yield part, (graph.cut.times, pace)


def _parts(
    kernels: Iterable[Kernel], instructions: Sequence[Instruction], operands: Sequence[Sequence[int]]
) -> dict[Instruction, float]:
    """How much is computed by all kernels together: of what is read in slices, nobody computes the rest.

    A kernel may stand for those of layers that were left out, each of which computes its own part. What such a layer
    makes is computed by the next, which the same kernels stand for, though one outside of them may be its only reader.
    """
    total: dict[int, float] = {}
    for kernel in kernels:
        parts = dict.fromkeys(kernel.members, 0.0) | {kernel.root: 1.0}
        times = instructions[kernel.root].count
        for index in sorted(kernel.members, reverse=True):
            one, part = instructions[index], min(1.0, parts[index])
            total[index] = total.get(index, 0.0) + part * (max(1.0, times / one.count) if one.count else 1.0)
            if one.name in ("slice", "dynamic_slice") and one.operands and (whole := one.operands[0].nbytes):
                part *= one.results[0].nbytes / whole
            for number in operands[index]:
                if number in parts:
                    parts[number] += part
    return {instructions[index]: part for index, part in total.items() if part != 1.0}


def taken_over(root: Instruction, position: int, result: Array, free: Mapping[Array, bool]) -> Array | None:
    """The operand whose memory the result takes."""
    if position < len(root.shares):
        place = root.shares[position]
        return root.operands[place] if place is not None and root.operands[place] in free else None
    if root.traits is LIBRARY:
        return None
    fitting = (array for array, alike in free.items() if alike and array.nbytes == result.nbytes)
    return next(fitting, None)


def _goes_round(root: Instruction, position: int, result: Array) -> bool:
    """Whether a result is what the rounds of a loop hand on, each changed."""
    carried = root.bodies[-1].carried if root.bodies else ()
    return position < len(carried) and carried[position][0] is not carried[position][1] and bool(result.shape)


def breadth_first(kernels: Sequence[Kernel], backwards: bool = False) -> list[Kernel]:
    """The kernels, each as soon as what it reads is there; of several that could run the one that could first.

    Args:
        backwards: whether the last of an array's readers comes first, where the program itself made the array.
    """
    makers = {kernel.root for kernel in kernels}
    waiting = [len(kernel.reads) for kernel in kernels]
    readers: dict[int, list[int]] = {}
    for place, kernel in enumerate(kernels):
        for index in kernel.reads:
            readers.setdefault(index, []).append(place)
    if backwards:
        readers = {index: places[::-1] if index in makers else places for index, places in readers.items()}
    ready = deque(place for place, count in enumerate(waiting) if not count)

    def arrived(index: int) -> None:
        for place in readers.get(index, ()):
            waiting[place] -= 1
            if not waiting[place]:
                ready.append(place)

    order: list[Kernel] = []
    for index in sorted(readers.keys() - makers, reverse=True):
        arrived(index)
    while ready:
        kernel = kernels[ready.popleft()]
        order.append(kernel)
        arrived(kernel.root)
    return order
