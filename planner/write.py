"""From a plan to the instructions that the compiler is expected to make of it.

The walk makes the very copies that emission makes, so that what is predicted is what is emitted. Where a backend
makes several instructions of one (the CPU compiler copies what it gathers along a minor dimension), or moves some
elsewhere (out of a loop, what is the same in all rounds), they are as it makes them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from jax.extend.core import primitives as jex_primitives

from costmodel.device import OPERANDS_IN_TILES
from planner._jax_compat import scan_counts
from planner.assignment import Assignment
from planner.fetch import REARRANGED, SLICED, Copies, Fetcher
from planner.graph import TRANSPARENT, Body, Op, Value, aval_of, invariants, root_of
from planner.groups import groups_order, reducer
from planner.halves import computed_wide, is_half, rounded
from planner.layout import shard_count, shard_shape
from planner.lines import Hoisted, Lines
from planner.opcost import compute_seconds, inner_collectives, shard_counts, whole_seconds
from planner.permuted import copied_before_permutations
from planner.program import Array, Collective, Instruction, Program, Written
from planner.rearrange import Turn, rearranged, stride_and_span
from planner.scratch import op_scratch_bytes
from planner.stages import LAST, Shapes, counted, stages
from planner.traits import LIBRARY, MOVES, SLICE, Traits, renames, traits
from planner.updated import Updated, updates_in_place
from planner.work import SLICES, Work, most_elements

STACKED = Traits(takes=True)
"""Writing a round's result into its place among those of all rounds."""


def write(assignment: Assignment) -> Written:
    """The program that the assignment is emitted as."""
    writer = _Writer(assignment)
    body = assignment.priced.graph.body
    program = writer.program(body, [writer.home(value, value.name, "") for value in body.inputs])
    return Written(program, writer.fetches)


class _Writer(Fetcher):
    """Writes the bodies of a graph, each into lines of its own."""

    def __init__(self, assignment: Assignment):
        super().__init__(assignment)
        self.updated = Updated(self.graph)

    def program(self, body: Body, inputs: Sequence[Array]) -> Program:
        lines = Lines()
        return self.closed(inputs, lines, self.run(body, 1.0, lines), "", 1.0)

    def closed(
        self, inputs: Sequence[Array], lines: Lines, outputs: Sequence[Array | None], source: str, count: float
    ) -> Program:
        lines.wanted += lines.kept
        self.append(lines, "return", LIBRARY, [array for array in outputs if array is not None], (), source, count)
        moved = copied_before_permutations(lines.instructions)
        if moved:
            self.fetches = [replace(each, reader=moved.get(each.reader, each.reader)) for each in self.fetches]
        instructions = (moved.get(one, one) for one in lines.instructions)
        return Program(tuple(inputs), tuple(instructions), tuple(outputs))

    def run(self, body: Body, count: float, lines: Lines) -> list[Array | None]:
        """Writes a body that runs `count` times; returns its outputs."""
        copies: Copies = {}
        for op in body.ops:
            each = count * self.times(op, body)
            if op.primitive in TRANSPARENT:
                (inner,) = op.bodies
                self.roots.update(zip(inner.inputs, op.operands, strict=True))
                self.run(inner, each, lines)
                self.roots.update(zip(op.results, inner.outputs, strict=True))
                continue
            uses = self.decisions.operands.get(op, (None,) * len(op.operands))
            outer = self.unchanging(op, body)
            where, often = (lines, count) if outer is None else (outer.before, outer.count)
            wide = self.computes_wide(op)
            fetched = [
                self.fetch(a, use, copies, where, often, op, wide) for a, use in zip(op.operands, uses, strict=True)
            ]
            if op.bodies:
                self.loop(op, fetched, each, lines)
            elif renames(op) and fetched[0] is not None:
                self.arrays[op.results[0]] = fetched[0]
            else:
                self.compute(op, fetched, wide, each if outer is None else outer.count, where)
            if outer is not None:
                for value in op.results:
                    made = {self.assignment.home(value): self.arrays[value]}
                    self.hoisted[value] = replace(outer, made=made, operand=None)
        uses = self.decisions.outputs.get(body, (None,) * len(body.outputs))
        return [self.fetch(a, use, copies, lines, count, None) for a, use in zip(body.outputs, uses, strict=True)]

    def unchanging(self, op: Op, body: Body) -> Hoisted | None:
        """Where an op of a loop is computed if it is the same in all rounds; None if it is not, or not worth it.

        As XLA has it (xla/service/while_loop_invariant_code_motion.cc), which moves what only moves elements with its
        readers; here it stays. What takes no memory of its own goes, lest its readers' collectives stay.
        """
        stays = op.name in MOVES or (op.name == "broadcast_in_dim" and not renames(op))
        if not self.hoisted or stays or op.bodies or op.effects:
            return None
        roots = (root_of(atom, self.roots) for atom in op.operands)
        found = [
            None if (body, root) in self.decisions.barred else self.hoisted.get(root)
            for root in roots
            if isinstance(root, Value) and root in self.arrays and root not in self.decisions.constant
        ]
        return found[0] if found and None not in found else None

    def compute(self, op: Op, fetched: Sequence[Array | None], wide: bool, count: float, lines: Lines) -> None:
        """An op, followed by the collectives that reduce its results; operands that are constants are None.

        Args:
            wide: see `computes_wide`.
        """
        results = [self.home(value, op.name, op.source) for value in op.results]
        work = self.priced.work.get(op)
        seconds, colder = (0.0, 0.0) if work is None else self.priced_and_colder_seconds(op, work, fetched)
        reductions, halos = self.inner(op, count)
        fetched = list(fetched)
        shape = results[0].shape if results else ()
        turned = rearranged(op, shape[-1] if shape else None) if self.cost.backend == "cpu" else {}
        for position, row in turned.items():
            if (array := fetched[position]) is not None:  # the compiler rearranges constants itself
                copied = replace(array, name=f"copy for {op.name}", source=op.source, home=None, shared=False)
                multiplied = work is not None and work.matmul is not None
                turn = self.turn(op, position, row, array.itemsize) if multiplied else None
                copies = SLICED if op.name == "roll" else REARRANGED
                self.append(lines, "copy", copies, (array,), (copied,), op.source, count, turn=turn)
                fetched[position] = copied
        operands = [array for array in fetched if array is not None]
        steps = self.steps(op)
        how = self.behaviour(op).reading(array is not None for array in fetched)
        operands += self.made_before(op, counted(op, shape) if steps else (), lines)
        for shapes in steps:
            arrays = [Array(each, f"part of {op.name}", op.source, op.results[0], widened=wide) for each in shapes]
            self.append(lines, f"part of {op.name}", LIBRARY, operands, arrays, op.source, count)
            operands = arrays
        how = how._replace(exchanges=True) if halos and how.loops else how
        in_place = updates_in_place(op) and fetched[0] is not None
        if in_place and how is LIBRARY and self.cost.backend == "cpu" and self.updated.needed_elsewhere(op):
            copied = replace(operands[0])
            self.append(lines, f"copy for {op.name}", LIBRARY, operands[:1], (copied,), op.source, count)
            operands[0] = copied
        wide = wide and not steps
        made = [
            Array(array.shape, op.name, op.source, array.value, widened=wide and is_half(array.value.dtype))
            for array in results
        ] if reductions or wide else list(results)  # fmt: skip
        self.append(
            lines, op.name, how, operands, made, op.source, count,
            seconds=seconds, colder_seconds=colder, collectives=halos, scratch_bytes=self.scratch_bytes(op), op=op,
            shares=(0,) if in_place else (),
        )  # fmt: skip
        last = len(reductions) - len(results)
        for place, (position, collective) in enumerate(reductions):
            sent = self.sent(made[position], lines, count, op.source)
            after = results[position] if place >= last and not sent.widened else replace(sent, name=collective.kind)
            self.append(
                lines, collective.kind, LIBRARY, (sent,), (after,), op.source, count,
                collectives=(collective,), joins=self.joins(op, collective, sent),
                shares=(None if self.cost.backend == "cpu" else 0,),
            )  # fmt: skip
            made[position] = after
        for array, result in zip(made, results, strict=True):
            if array is not result:
                self.append(lines, "convert", rounded(result.value.dtype), (array,), (result,), op.source, count)

    def computes_wide(self, op: Op) -> bool:
        """Whether an op reads and makes float32 where the program has sixteen bits."""
        return self.cost.backend == "cpu" and computed_wide(op) and self.behaviour(op) in (LIBRARY, LAST)

    def steps(self, op: Op) -> list[Shapes]:
        """The arrays on the way to an op's result."""
        shape = self.local_shape(op.results[0]) if op.results else ()
        return stages(op, shape) if self.cost.backend == "cpu" else []

    def behaviour(self, op: Op) -> Traits:
        """How an op goes into kernels."""
        if self.steps(op):
            return LAST
        shape = self.local_shape(op.results[0]) if op.results else ()
        return traits(op, most_elements(op) / self.shards(op), self.cost.backend, shape[-1] if shape else None)

    def local_shape(self, value: Value) -> tuple[int, ...]:
        return shard_shape(value.shape, self.assignment.home(value), self.sizes)

    def made_before(self, op: Op, shapes: Shapes, lines: Lines) -> list[Array]:
        """Arrays for an op that need nothing, and so are made before the loop that the op is in, if it is in one."""
        if lines.around is None or not shapes:
            return []
        before, entering = lines.around
        if shapes not in lines.counted:
            arrays = [Array(shape, f"counts for {op.name}", op.source, op.results[0]) for shape in shapes]
            self.append(before, "iota", LIBRARY, (), arrays, op.source, 1.0)
            entering += arrays
            lines.counted[shapes] = arrays
        return lines.counted[shapes]

    def inner(self, op: Op, count: float) -> tuple[list[tuple[int, Collective]], tuple[Collective, ...]]:
        """The reductions of an op's results, each with the result's position, and its exchanges of halos."""
        if op not in self.decisions.members or op not in self.priced.work:
            return [], ()
        index, member = self.decisions.members[op]
        found = inner_collectives(member, self.assignment.strategy(index), self.cost)
        made = [self.collective(one, count, op.source) for one in found]
        halos = tuple(one for one in made if one.kind == "collective-permute")
        reductions = [one for one in made if one.kind != "collective-permute"]
        return list(zip(itertools.cycle(range(len(op.results))), reductions, strict=False)), halos

    def joins(self, op: Op, collective: Collective, sent: Array) -> tuple[object, ...]:
        """What an op's all-reduce has to have in common with others to be joined with them."""
        index, member = self.decisions.members[op]
        groups = groups_order(member, self.assignment.strategy(index), collective.axes, self.sizes)
        return reducer(op), "float32" if sent.widened else sent.value.dtype.name, collective.axes, groups

    def scratch_bytes(self, op: Op) -> float:
        if op not in self.decisions.members:
            return 0.0
        index, member = self.decisions.members[op]
        return op_scratch_bytes(member, self.assignment.strategy(index), self.cost)

    def loop(self, op: Op, operands: Sequence[Array | None], count: float, lines: Lines) -> None:
        """A loop or branch; what enters it shares the memory of its operand.

        What goes round and what is stacked goes on in the memory of the operand, or of an array that is empty before.
        """
        each = count * op.trips if op.is_loop else count / len(op.bodies)
        carry = _carry(op, len(operands))
        results = tuple(self.home(value, op.name, op.source) for value in op.results)
        bodies, copies = [], list[Array]()
        for body in op.bodies:
            unchanging = invariants(op, body) if self.cost.hoists and op.trips else []
            inner = Lines((lines, copies) if unchanging else None)  # without, the compiler's pass looks no further
            for position, value in unchanging:
                array = operands[position] or self.home(value, op.name, op.source, shared=True)  # a constant
                made = {self.assignment.home(value): array}
                self.hoisted[value] = Hoisted(lines, count, inner, made, copies, array)
            bodies.append(self.inside(op, body, each, inner))
        stacked = results[len(carry) :] if op.primitive is jex_primitives.scan_p else ()
        empty = [replace(array) for array in stacked]
        lines.instructions += (Instruction("empty", LIBRARY, (), (array,), op.source, count) for array in empty)
        entering = [array for array in (*operands, *empty) if array is not None]
        taken = [*(operands[place] for place in carry), *empty]
        shares = tuple(entering.index(operand) if operand is not None else None for operand in taken)
        self.append(
            lines, op.name, LIBRARY, [*entering, *dict.fromkeys(copies)], results, op.source, count,
            shares=shares, bodies=tuple(bodies), op=op,
        )  # fmt: skip

    def inside(self, op: Op, body: Body, count: float, lines: Lines) -> Program:
        scans = op.primitive is jex_primitives.scan_p
        going_round = _carry(op, len(body.inputs))
        first_slice = going_round.stop if scans else len(body.inputs)
        inputs = [self.home(value, op.name, op.source, shared=True) for value in body.inputs]
        for value, stacked in list(zip(body.inputs, inputs, strict=True))[first_slice:]:
            part = self.home(value, op.name, op.source)
            self.append(lines, "dynamic_slice", SLICE, (stacked,), (part,), op.source, count)
        outputs = self.run(body, count, lines)
        if scans:
            for position, array in enumerate(outputs):
                if array is not None and position >= len(going_round):
                    written = Array((0,), op.name, op.source, array.value)
                    self.append(lines, "dynamic_update_slice", STACKED, (array,), (written,), op.source, count)
                    outputs[position] = written
        program = self.closed(inputs, lines, outputs, op.source, count)
        carry = [inputs[position] for position in going_round] if body is op.bodies[-1] else []
        return replace(program, carried=tuple(zip(outputs, carry, strict=False)))

    def turn(self, op: Op, position: int, row: tuple[int, ...], itemsize: int) -> Turn:
        """How the copy of an operand reads elements that come to lie in a row; it is priced as copied tile by tile."""
        shape = aval_of(op.operands[position]).shape  # its array may be what was reshaped, which takes no memory
        if op in self.decisions.members:
            index, member = self.decisions.members[op]
            layout = self.assignment.strategy(index).layout(member.dims(member.rule.operands[position]))
            shape = shard_shape(shape, layout, self.sizes)
        stride, span = stride_and_span(shape, row, itemsize)
        each = self.cost.device.rearranging_seconds(stride, itemsize, span, True, OPERANDS_IN_TILES)
        return Turn(row, stride, span, math.prod(shape) * float(each))

    def priced_and_colder_seconds(self, op: Op, work: Work, fetched: Sequence[Array | None]) -> tuple[float, float]:
        """Of an op, which is priced as reading arguments where they lie; and what it takes more as it finds them."""
        read = {p: array for p in work.cold_reads if (array := fetched[p]) is not None}
        warm = [p for p, array in read.items() if not self.is_cold(array)]
        if op.name not in SLICES:  # of which the next may take another part
            self.touched.update(read.values())
        priced = self.op_seconds(op, work)
        if not warm:
            return priced, 0.0
        found = work.with_warm(op, warm)
        if op not in self.decisions.members:
            return priced, whole_seconds(self.cost, op, found) - priced
        index, member = self.decisions.members[op]
        counts = shard_counts([self.assignment.strategy(index)], self.sizes)
        return priced, float(compute_seconds(self.cost, member, found, counts)[0]) - priced

    def op_seconds(self, op: Op, work: Work) -> float:
        if op not in self.decisions.members:
            return whole_seconds(self.cost, op, work)
        index, _ = self.decisions.members[op]
        return float(self.priced.seconds[op][self.assignment.picks[index]])

    def shards(self, op: Op) -> int:
        """Into how many parts an op's work is split."""
        if op not in self.decisions.members:
            return 1
        index, member = self.decisions.members[op]
        return shard_count(self.assignment.strategy(index).axes_on(member.factors), self.sizes)


def _carry(op: Op, inputs: int) -> range:
    """Where what goes round is among a loop's operands, or the inputs of its body; of a branch nothing does."""
    if op.primitive is jex_primitives.scan_p:
        first, count = scan_counts(op.params)
        return range(first, first + count)
    return range(inputs - len(op.results), inputs) if op.primitive is jex_primitives.while_p else range(0)
