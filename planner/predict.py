"""What a chosen assignment will do: its collectives one by one, its seconds, and its memory over time.

The walk makes the very copies that emission makes, in the same order, so that what is predicted is what is emitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jax.extend.core import Literal
from jax.extend.core import primitives as jex_primitives

from planner.assignment import Assignment
from planner.decisions import REPLICATED, Home, Use
from planner.graph import TRANSPARENT, Atom, Body, Op, Value
from planner.layout import Layout, shard_count, shard_elements
from planner.lifetimes import Copy, Lifetime, Scratch, Stored
from planner.memory import Allocation, Peak, peak
from planner.opcost import compute_seconds, fused_seconds, inner_collectives, shard_counts, whole_seconds
from planner.reshard import Step
from planner.scratch import op_scratch_bytes, step_scratch_bytes
from planner.work import Work, unfused


@dataclass(frozen=True)
class Collective:
    """A collective that the plan expects in the compiled program.

    Attributes:
        kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all" or "collective-permute".
        bytes: per device, of its larger side.
        axes: the mesh axes that it runs over.
        count: how often it happens in one call.
        seconds: what all of them together add to the step; less than they take where some hides behind computation.
        source: the user's line that needs it.
    """

    kind: str
    bytes: float
    axes: tuple[str, ...]
    count: float
    seconds: float
    source: str


@dataclass(frozen=True)
class Prediction:
    """What the model says of one call of the planned function.

    Attributes:
        step_seconds: compute and communication together.
        compute_seconds: the ops' share, on each device.
        communication_seconds: the collectives' share, as far as it does not hide behind computation.
        peak_bytes: per device: arguments, results and temporaries at the worst point.
        collectives: in program order.
        peak: where the peak is and what is alive there.
    """

    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    peak_bytes: float
    collectives: tuple[Collective, ...]
    peak: Peak = field(repr=False)

    @property
    def communicated_bytes(self) -> float:
        """Bytes per device through all collectives of one call, each at its larger side."""
        return sum(collective.bytes * collective.count for collective in self.collectives)


@dataclass
class _Array:
    """One layout of a value in one scope, while the program is walked."""

    nbytes: float
    start: int
    end: int
    name: str
    source: str


def predict(assignment: Assignment, donated: Sequence[bool]) -> Prediction:
    """Walks the program as the assignment lays it out.

    Args:
        donated: for each result, whether it takes over a donated argument's memory.
    """
    walk = _Walk(assignment)
    body = assignment.priced.graph.body
    walk.program(body, donated)
    communication = sum(collective.seconds for collective in walk.collectives)
    highest = peak(walk.allocations(), walk.lines)
    return Prediction(
        walk.compute_seconds + communication,
        walk.compute_seconds,
        communication,
        highest.nbytes,
        tuple(walk.collectives),
        highest,
    )


def lifetimes(assignment: Assignment, donated: Sequence[bool]) -> list[Lifetime]:
    """What is in memory when; that hardly depends on the assignment."""
    walk = _Walk(assignment)
    walk.program(assignment.priced.graph.body, donated)
    return walk.lifetimes()


class _Walk:
    def __init__(self, assignment: Assignment):
        self.assignment = assignment
        self.priced = assignment.priced
        self.decisions = assignment.priced.decisions
        self.cost = assignment.priced.cost
        self.sizes = dict(self.cost.axis_sizes)
        self.collectives: list[Collective] = []
        self.compute_seconds = 0.0
        self.lines: dict[int, str] = {}
        self._arrays: list[_Array] = []
        self._at_home: dict[Value, _Array] = {}
        self._roots: dict[Value, Atom] = {}
        self._time = 0
        self._standing: list[_Array] = []
        self._scratch: list[Scratch] = []
        self._copied: dict[tuple[Value, Body, Home, Home], list[int]] = {}

    def program(self, body: Body, donated: Sequence[bool]) -> None:
        arguments = [self._make(value, self.assignment.home(value), value.name, "") for value in body.inputs]
        self._at_home.update(zip(body.inputs, arguments, strict=True))
        outputs = self._run(body, 1.0)
        end = self._time + 2
        for argument in arguments:
            argument.end = end
        for array, reuses in zip(outputs, donated, strict=True):
            if array is None or array in self._standing:
                continue
            array.end = end
            if reuses:
                array.nbytes = 0.0
            self._standing.append(array)

    def allocations(self) -> list[Allocation]:
        return [Allocation(a.nbytes, a.start, a.end, a.name, a.source) for a in self._arrays if a.nbytes]

    def lifetimes(self) -> list[Lifetime]:
        stored = [
            Stored(value, self._home(value), array.start, array.end)
            for value, array in self._at_home.items()
            if array.nbytes and value not in self._roots
        ]
        copies = [
            copy
            for (value, _, made, wanted), times in self._copied.items()
            for copy in (
                Copy(value, made, wanted, min(times), max(times)),
                Copy(value, made, wanted, min(times) - 1, min(times) - 1, arriving=True),
            )
            if made != wanted
        ]
        return [*stored, *copies, *self._scratch]

    def _home(self, value: Value) -> Home:
        return self.decisions.homes.get(value) or Home(REPLICATED, ((),) * value.rank)

    def _make(self, value: Value, layout: Layout, name: str, source: str) -> _Array:
        nbytes = shard_elements(value.shape, layout, self.sizes) * value.itemsize
        array = _Array(float(nbytes), self._time, self._time, name, source)
        self._arrays.append(array)
        return array

    def _run(self, body: Body, count: float) -> list[_Array | None]:
        """Walks a body that runs `count` times; returns its outputs' arrays."""
        copies: dict[Value, dict[Layout, _Array]] = {}
        for op in body.ops:
            self._time += 3  # before it copies are made, after it results are reduced
            self.lines[self._time - 1] = op.source
            if op.primitive in TRANSPARENT:
                self._see_through(op, count)
                continue
            uses = self.decisions.operands.get(op, (None,) * len(op.operands))
            arrays = [self._fetch(a, use, copies, count, op) for a, use in zip(op.operands, uses, strict=True)]
            if op.bodies:
                self._loop(op, arrays, count)
            else:
                self._compute(op, arrays, count)
        uses = self.decisions.outputs.get(body, (None,) * len(body.outputs))
        return [self._fetch(a, use, copies, count, None) for a, use in zip(body.outputs, uses, strict=True)]

    def _see_through(self, op: Op, count: float) -> None:
        (body,) = op.bodies
        self._roots.update(zip(body.inputs, op.operands, strict=True))
        self._run(body, count)
        self._roots.update(zip(op.results, body.outputs, strict=True))

    def _loop(self, op: Op, operands: list[_Array | None], count: float) -> None:
        """A loop or branch: what enters stays for as long as it runs, and so do the results that it fills."""
        results = [self._make(value, self.assignment.home(value), op.name, op.source) for value in op.results]
        carried = op.primitive in (jex_primitives.scan_p, jex_primitives.while_p)
        each = count * op.trips if carried else count / len(op.bodies)
        for body in op.bodies:
            for value in body.inputs:
                self._at_home[value] = self._make(value, self.assignment.home(value), op.name, op.source)
                if op.primitive is not jex_primitives.scan_p or value in body.inputs[: self._first_slice(op)]:
                    self._at_home[value].nbytes = 0.0  # shares the memory of the loop's operand or result
            self._run(body, each)
        self._time += 2
        for array in operands:
            if array is not None:
                array.end = self._time
        for value, array in zip(op.results, results, strict=True):
            array.end = self._time
            self._at_home[value] = array

    @staticmethod
    def _first_slice(op: Op) -> int:
        return int(op.params["num_consts"] + op.params["num_carry"])

    def _compute(self, op: Op, operands: list[_Array | None], count: float) -> None:
        work = self.priced.work.get(op)
        for position, value in enumerate(op.results):
            array = self._make(value, self.assignment.home(value), op.name, op.source)
            if work is None or position not in work.writes:
                array.nbytes = 0.0
            elif not unfused(op) and any(other and other.nbytes == array.nbytes for other in operands):
                # An elementwise op works in place: its result comes to life after an operand that ends here is gone.
                array.start = array.end = self._time + 1
            self._at_home[value] = array
        if work is None:
            return
        self.compute_seconds += count * self._op_seconds(op, work)
        if op in self.decisions.members:
            self._inside(op, count)

    def _inside(self, op: Op, count: float) -> None:
        """The collectives inside an op, and the memory that it takes while it runs."""
        index, member = self.decisions.members[op]
        strategy = self.assignment.strategy(index)
        for kind, axes, nbytes in inner_collectives(member, strategy, self.cost):
            self._communicate(kind, axes, nbytes, count, op.source)
        time = self._time + bool(member.reduced)  # what is reduced over devices is where the result will be until then
        self._scratch.append(Scratch(op, time))
        nbytes = op_scratch_bytes(member, strategy, self.cost)
        self._arrays.append(_Array(nbytes, time, time, f"scratch of {op.name}", op.source))

    def _op_seconds(self, op: Op, work: Work) -> float:
        if work.fused_into is not None:
            shards = np.maximum(self._shards(op), self._shards(work.fused_into))
            return float(fused_seconds(self.cost, op, work, shards))
        if op not in self.decisions.members:
            return whole_seconds(self.cost, op, work)
        index, member = self.decisions.members[op]
        counts = shard_counts((self.assignment.strategy(index),), self.sizes)
        return float(compute_seconds(self.cost, member, work, counts)[0])

    def _shards(self, op: Op) -> int:
        """Into how many parts an op's work is split."""
        if op not in self.decisions.members:
            return 1
        index, member = self.decisions.members[op]
        return shard_count(self.assignment.strategy(index).axes_on(member.factors), self.sizes)

    def _communicate(self, kind: str, axes: tuple[str, ...], nbytes: float, count: float, source: str) -> float:
        """Notes a collective; returns its seconds."""
        seconds = count * float(self.cost.exposed_seconds(kind, axes, nbytes))
        self.collectives.append(Collective(kind, nbytes, axes, count, seconds, source))
        return seconds

    def _fetch(
        self,
        atom: Atom,
        use: Use | None,
        copies: dict[Value, dict[Layout, _Array]],
        count: float,
        op: Op | None,
    ) -> _Array | None:
        """The array that an operand is read from, kept alive until now; resharding on the way is counted."""
        root = atom
        while isinstance(root, Value) and root in self._roots:
            root = self._roots[root]
        if isinstance(root, Literal) or root not in self._at_home:
            return None
        if use is None or root in self.decisions.constant:
            self._at_home[root].end = self._time
            return self._at_home[root]
        available = copies.setdefault(root, {self.assignment.home(root): self._at_home[root]})

        def step(array: _Array, move: Step) -> _Array:
            array.end = max(array.end, self._time)
            nbytes = root.nbytes / move.shards
            source = op.source if op is not None else array.source  # what leaves a body moves where it was made
            seconds = count * float(self.priced.resharder.seconds(move, nbytes))
            if move.kind != "slice":
                seconds -= self._communicate(move.kind, move.axes, nbytes, count, source)
            self.compute_seconds += seconds  # copies on the device
            name = f"{move.kind} of {root.name or array.name}"
            made = self._make(root, move.layout, name, source)
            if scratch := step_scratch_bytes(move, made.nbytes, self.cost):
                made.start -= 1
                self._arrays.append(_Array(scratch, made.start, made.start, name, source))
            return made

        stops = [self._home(root), *([use.view] if use.view else []), Home(use.node, use.dims)]
        for made, wanted in itertools.pairwise(stops):
            self._copied.setdefault((root, use.scope, made, wanted), []).append(self._time)
        array = self.assignment.route(use, available, step)
        array.end = max(array.end, self._time)
        return array
