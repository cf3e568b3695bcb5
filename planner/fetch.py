"""Values in the layouts that they are read in, and the instructions that bring them there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from jax.extend.core import Literal

from costmodel.compute import cold_seconds
from planner.assignment import Assignment
from planner.decisions import REPLICATED, Home, Use
from planner.graph import Atom, Body, Op, Value, root_of
from planner.halves import WIDENED, is_half, rounded, sent_itemsize, sent_wide
from planner.layout import Layout, shard_count, shard_shape
from planner.lines import Hoisted, Lines
from planner.opcost import Exchange
from planner.program import Array, Collective, Fetch, Instruction
from planner.reshard import Resharder, Step
from planner.traits import LIBRARY, SLICE, Traits

REARRANGED = Traits(loops=True, takes=True, costly=False, moves=True)
"""A copy of an array with its elements in another order."""

SLICED = REARRANGED._replace(places=1)
"""The two parts that a roll puts together again, each a slice."""

PARTED = REARRANGED._replace(parts=True)
"""The parts of an array, each copied by a loop of its own."""

Copies = dict[Value, dict[Layout, Array]]
"""In which layouts each value is there in one body; calls that are seen through have bodies of their own."""


class Fetcher:
    """Keeps the arrays of an assignment's program, and writes what changes their layouts.

    Attributes:
        arrays: each value as it is made.
        roots: what the inputs and outputs of calls stand for.
        hoisted: values that are the same in all rounds of a loop.
        wide: for arrays of sixteen bits, the same in float32.
        touched: arrays as they were made that something has read as a whole.
        fetches: who wants values elsewhere than they are made.
    """

    def __init__(self, assignment: Assignment):
        self.assignment = assignment
        self.priced = assignment.priced
        self.graph = assignment.priced.graph
        self.decisions = assignment.priced.decisions
        self.cost = assignment.priced.cost
        self.sizes = dict(self.cost.axis_sizes)
        self.fetches: list[Fetch] = []
        self.arrays: dict[Value, Array] = {}
        self.roots: dict[Value, Atom] = {}
        self.hoisted: dict[Value, Hoisted] = {}
        self.wide: dict[Array, Array] = {}
        self.touched: set[Array] = set()

    def home(self, value: Value, name: str, source: str, shared: bool = False) -> Array:
        """The value in the layout that it is made in."""
        home = self.decisions.homes.get(value) or Home(REPLICATED, ((),) * value.rank)
        shape = shard_shape(value.shape, self.assignment.home(value), self.sizes)
        self.arrays[value] = Array(shape, name, source, value, home, shared)
        return self.arrays[value]

    def append(
        self,
        lines: Lines,
        name: str,
        how: Traits,
        operands: Sequence[Array],
        results: Sequence[Array],
        source: str,
        count: float,
        **more: object,
    ) -> None:
        made = Instruction(name, how, tuple(operands), tuple(results), source, count, **more)  # type: ignore[arg-type]
        lines.instructions.append(made)
        self.fetches += (Fetch(*wanted, made) for wanted in lines.wanted)
        lines.wanted = []

    def times(self, part: Op | Value, scope: Body) -> int:
        """For how many an op or a value stands; what is inside an op happens as often as that."""
        return self.graph.times(part) if scope is self.graph.body else 1

    def fetch(
        self,
        atom: Atom,
        use: Use | None,
        copies: Copies,
        lines: Lines,
        count: float,
        op: Op | None,
        wide: bool = False,
    ) -> Array | None:
        """The array that an operand is read from, after the instructions that bring it into the layout wanted.

        Args:
            wide: whether it is read in float32 if it is of sixteen bits.
        """
        root = root_of(atom, self.roots)
        if isinstance(root, Literal) or root not in self.arrays:
            return None
        hoisted = self.hoisted.get(root)
        if hoisted is not None and use is not None and (use.scope, root) in self.decisions.barred:
            hoisted.enter(self.arrays[root], lines)
            hoisted = None
        array = self.arrays[root] if use is None else self.laid_out(root, use, copies, lines, count, op, hoisted)
        if wide:
            where, often = (lines, count) if hoisted is None else (hoisted.before, hoisted.count)
            array = self.widened(array, where, often, op.source if op is not None else array.source)
        if hoisted is not None:
            hoisted.enter(array, lines)
        return array

    def laid_out(
        self,
        root: Value,
        use: Use,
        copies: Copies,
        lines: Lines,
        count: float,
        op: Op | None,
        hoisted: Hoisted | None,
    ) -> Array:
        """The value in the layout wanted, by way of copies that are there already.

        Args:
            hoisted: where it changes its layout if that is not here.
        """
        if hoisted is None:
            before, each = lines, count * self.times(root, use.scope)
            available = copies.setdefault(root, {self.assignment.home(root): self.arrays[root]})
        else:
            before, each, available = hoisted.before, hoisted.count, hoisted.made
        source = op.source if op is not None else self.arrays[root].source  # what leaves a body moves where it was made

        def step(array: Array, move: Step) -> Array:
            return self.reshard(root, array, move, before, each, source)

        home = self.decisions.homes.get(root) or Home(REPLICATED, ((),) * root.rank)
        if root not in self.decisions.constant:
            stops = [home, *([use.view] if use.view else []), Home(use.node, use.dims)]
            wanted = [(root, use.scope, *pair) for pair in itertools.pairwise(stops)]
            lines.wanted += wanted
            if hoisted is not None:
                hoisted.inside.kept += wanted
        return self.assignment.route(use, root, available, step)

    def reshard(self, value: Value, array: Array, move: Step, lines: Lines, count: float, source: str) -> Array:
        """One step of a change of layout."""
        name = f"{move.kind} of {value.name or array.name}"
        larger = value.nbytes / move.shards
        resharder, itemsize = self.priced.resharders.of(value), sent_itemsize(value, self.cost.backend)
        made = Array(shard_shape(value.shape, move.layout, self.sizes), name, source, value)
        if move.kind == "slice":
            constant = value in self.decisions.constant  # made where it is needed
            seconds = 0.0 if constant else resharder.seconds(move, value.shape, itemsize)
            self.append(lines, "slice", SLICE, (array,), (made,), source, count, seconds=seconds)
            return made
        cold = self.sent_cold_seconds(array, resharder)
        self.touched.add(array)
        array = self.sent(array, lines, count, source)
        wanted, made = made, replace(made, widened=True) if array.widened else made
        exchange = Exchange.of(value, move.kind, move.axes, larger, self.cost)
        collective = self.collective(exchange, count, source)
        parted = move.kind == "all-to-all"
        if self.cost.backend != "cpu" or not (parted or move.strided):
            met = {"collectives": (collective,), "colder_seconds": cold}
            self.append(lines, move.kind, LIBRARY, (array,), (made,), source, count, **met)
        else:
            pieces = shard_count(move.axes, self.sizes) if parted else 1  # one for each device
            sent = replace(made, shape=array.shape, pieces=pieces)
            arrived = replace(made, pieces=pieces, along=move.along)
            how = PARTED if parted else REARRANGED
            there, back = resharder.copies_seconds(move, value.shape, itemsize)
            again = resharder.again_seconds(move, value.shape, itemsize)
            turn, turn_back = resharder.turns(move, value.shape, itemsize)
            met = {"seconds": there, "colder_seconds": cold, "turn": turn}
            self.append(lines, "copy", how, (array,), (sent,), source, count, **met)
            self.append(lines, move.kind, LIBRARY, (sent,), (arrived,), source, count, collectives=(collective,))
            met = {"seconds": back, "again_seconds": again, "turn": turn_back}
            self.append(lines, "copy", REARRANGED, (arrived,), (made,), source, count, **met)
        if made is not wanted:
            self.append(lines, "convert", rounded(value.dtype), (made,), (wanted,), source, count)
        return wanted

    def is_cold(self, array: Array) -> bool:
        """Whether an argument lies where it came to lie before the call, and nothing has read it yet.

        What it was brought into lies in the caches, what it was converted into is read by what converts it.
        """
        return (array.home is not None or array.widened) and array not in self.touched

    def sent_cold_seconds(self, array: Array, resharder: Resharder) -> float:
        """What it takes beyond a collective's price to send an array that comes once a call."""
        if not resharder.call_bytes or not self.is_cold(array):
            return 0.0
        return float(cold_seconds(self.cost.device, array.nbytes, resharder.crowding(array.nbytes)))

    def collective(self, one: Exchange, count: float, source: str) -> Collective:
        seconds = count * float(self.cost.exposed_seconds(one.kind, one.axes, one.sent_bytes))
        return Collective(one.kind, one.bytes, one.axes, count, seconds, source)

    def sent(self, array: Array, lines: Lines, count: float, source: str) -> Array:
        """The array as devices send it to each other."""
        wide = sent_wide(array.value.dtype, self.cost.backend)
        return self.widened(array, lines, count, source) if wide else array

    def widened(self, array: Array, lines: Lines, count: float, source: str) -> Array:
        """The array in float32, converted once for all readers, if it is of sixteen bits."""
        if array.widened or not is_half(array.value.dtype):
            return array
        if array not in self.wide:
            self.wide[array] = replace(array, name=f"float32 of {array.name}", home=None, shared=False, widened=True)
            self.append(lines, "convert", WIDENED, (array,), (self.wide[array],), source, count)
        return self.wide[array]
