"""Deep programs made short: of many equal layers a few are planned, and one of them stands for the rest.

Equal layers take the same decisions. It is enough to have some of them: the first and the last few, which have other
neighbours, and one that stands for all that are left out. What is left out must be, op by op and operand by operand,
like what stands for it, and nothing else may read it: else the program is planned whole.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.graph import Atom, Body, Cut, Graph, Op, Part, Value, check
from planner.repeats import Layers, Where, find_layers
from planner.specs import Request

KEPT_BEFORE, KEPT_AFTER = 5, 4
"""Layers that are kept on either side, the one that stands for the others included: what lies at the ends of a program
decides otherwise than what is inside, and nodes look three neighbours far (see `planner.twins`)."""
LEAST_LEFT_OUT = KEPT_BEFORE + KEPT_AFTER
"""Layers: a program that would not be half as long is planned whole."""
LEAST = KEPT_BEFORE + LEAST_LEFT_OUT + KEPT_AFTER


def shorten(graph: Graph, request: Request) -> Graph:
    """The graph with most of its equal layers left out; as it is, if there are not enough of them."""
    layers = find_layers(graph.body.ops, LEAST)
    try:
        return graph if layers is None else _Shortening(graph, request, layers).graph()
    except _Unlike:
        return graph


class _Unlike(Exception):
    """Some layer is not like the others."""


class _Shortening:
    """Leaves the layers between two out; raises `_Unlike` where one of them is not like the one that stands for it."""

    def __init__(self, graph: Graph, request: Request, layers: Layers):
        self._whole, self._request, self._layers = graph, request, layers
        self._ops = graph.body.ops
        inner = _longest(layers.common[KEPT_BEFORE:-KEPT_AFTER], layers.outer)
        self._stands, self._next, self._left_out = inner.start - 1, inner.stop, len(inner)
        self._inputs = {value: position for position, value in enumerate(graph.body.inputs)}
        self._made = {value: index for index, op in enumerate(self._ops) for value in op.results}
        self._results = _numbered(graph.body.outputs)
        self._place: dict[Value, tuple[Hashable, int]] = {}
        """Of each value that belongs to a layer: which one it is in that, and the layer."""
        self._shared: set[Value] = set()
        """What is the same for all layers."""
        self._alike: dict[Value, Value] = {}
        """For each value that is left out what stands for it."""
        self._place_all()
        self._at = {place: value for value, place in self._place.items()}

    def _place_all(self) -> None:
        """A value belongs to the layer of its op; an argument to that of the result that continues it, or to that of
        the first who reads it, as a constant does."""
        read: dict[Hashable, dict[int, Value]] = {}
        for index, (stretch, phase, layer, _) in self._layers.where.items():
            op = self._ops[index]
            self._place.update((value, ((stretch, phase, at), layer)) for at, value in enumerate(op.results))
            for at, atom in enumerate(op.operands):
                if isinstance(atom, Value) and atom not in self._made:
                    read.setdefault(("read", stretch, phase, at), {})[layer] = atom
        for (value, time), tie in zip(self._results, self._request.ties, strict=True):
            if tie is not None and value in self._made and value in self._place:
                source, layer = self._place[value]
                self._place[self._whole.body.inputs[tie]] = ("continued", source, time), layer
        for source, values in read.items():
            if len({*values.values()}) == len(values) and self._place.keys().isdisjoint(values.values()):
                self._place.update((value, (source, layer)) for layer, value in values.items())

    def graph(self) -> Graph:
        if self._left_out < LEAST_LEFT_OUT:
            raise _Unlike
        for index, where in self._layers.where.items():
            if self._stands < where.layer <= self._next:
                self._compare(self._ops[index], where)
        for value, (source, layer) in self._place.items():
            if self._left(layer):
                self._alike[value] = self._value(source, self._stands)
        stand_ins = set(self._alike.values())
        if not self._shared.isdisjoint({*self._alike, *stand_ins}) or not stand_ins.isdisjoint(self._alike):
            raise _Unlike
        return self._cut({i: where for i, where in self._layers.where.items() if self._left(where.layer)})

    def _index(self, stretch: int, phase: int, layer: int) -> int:
        if (stretch, phase, layer) not in self._layers.index:
            raise _Unlike
        return self._layers.index[stretch, phase, layer]

    def _value(self, source: Hashable, layer: int) -> Value:
        if (source, layer) not in self._at:
            raise _Unlike
        return self._at[source, layer]

    def _compare(self, op: Op, where: Where) -> None:
        """An op must read in its layer what its stand-in reads in its own."""
        index = self._index(where.stretch, where.phase, self._stands)
        stands_at = self._layers.where[index]
        for atom, other in zip(op.operands, self._ops[index].operands, strict=True):
            if not isinstance(atom, Value) or not isinstance(other, Value):
                continue  # literals of one shape
            if atom is other and atom not in self._alike:
                self._shared.add(atom)
                continue
            if atom not in self._place or other not in self._place or self._kind(atom) != self._kind(other):
                raise _Unlike
            if self._place[atom][0] != self._place[other][0]:
                raise _Unlike
            if self._ahead(atom, where) != self._ahead(other, stands_at):
                raise _Unlike

    def _ahead(self, atom: Value, reader: Where) -> int:
        """By how many layers what an op reads is ahead of it; in the op's own stretch, by how many repetitions."""
        made = self._maker(atom)
        if made is not None and made.stretch == reader.stretch:
            return made.turn - reader.turn
        return self._place[atom][1] - reader.layer

    def _maker(self, value: Value) -> Where | None:
        """Where a value is made, if in a layer."""
        return self._layers.where.get(self._made.get(value, -1))

    def _kind(self, value: Value) -> object:
        """What is to be the same of two arguments, beside their shapes."""
        return self._request.in_specs[self._inputs[value]] if value in self._inputs else value in self._made

    def _cut(self, gone: Mapping[int, Where]) -> Graph:
        kept = {index: self._joined(index) for index in range(len(self._ops)) if index not in gone}
        body = self._whole.body
        inputs = tuple(value for value in body.inputs if value not in self._alike)
        outputs = self._outputs()
        short = Body(inputs, tuple(body.outputs[position] for position in sorted({*outputs})), tuple(kept.values()))
        stand_ins: dict[Part, Part] = dict(self._alike.items())
        for index, op in kept.items():
            stand_ins[self._ops[index]] = op
        for index, (stretch, phase, _, _) in gone.items():
            stand_in = kept[self._layers.index[stretch, phase, self._stands]]
            stand_ins.update(_pairs(self._ops[index], stand_in))
        rest = [layer for layer in self._layers.common if not self._left(layer)]
        alike: dict[Part, tuple[Part, ...]] = {}
        for value in self._alike.values():
            same = (self._at.get((self._place[value][0], layer)) for layer in rest)
            alike[value] = tuple(one for one in same if one is not None)
        for (stretch, phase, layer), index in self._layers.index.items():
            if layer == self._stands:
                others = (self._layers.index.get((stretch, phase, one)) for one in rest)
                rows = [_pairs(kept[index], kept[other]) for other in others if other is not None]
                alike.update((row[0][0], tuple(part for _, part in row)) for row in zip(*rows, strict=True))
        places = {value: place for place, value in enumerate(inputs)}
        order = {position: place for place, position in enumerate(sorted({*outputs}))}
        cut = Cut(
            self._whole,
            stand_ins,
            alike,
            1 + self._left_out,
            tuple(places[self._alike.get(value, value)] for value in body.inputs),
            tuple(order[position] for position in outputs),
        )
        constants = {value: array for value, array in self._whole.constants.items() if value not in self._alike}
        graph = Graph(short, constants, cut)
        check(graph)
        return graph

    def _left(self, layer: int) -> bool:
        """Whether a layer is left out."""
        return self._stands < layer < self._next

    def _joined(self, index: int) -> Op:
        """An op that is kept; where it reads a layer that is left out, it reads that which is there instead."""
        op, where = self._ops[index], self._layers.where.get(index)
        if not any(isinstance(atom, Value) and atom in self._alike for atom in op.operands):
            return op
        if where is None:
            raise _Unlike
        self._compare(op, where)
        return replace(op, operands=tuple(self._instead(atom, where) for atom in op.operands))

    def _instead(self, atom: Atom, reader: Where) -> Atom:
        """What an op reads that is kept: in its own stretch that of the next repetition that is there on that side."""
        if not isinstance(atom, Value) or atom not in self._alike:
            return atom
        source, layer = self._place[atom]
        ahead = self._ahead(atom, reader)
        made = self._maker(atom)
        if made is not None and made.stretch == reader.stretch and abs(ahead) == 1:
            while self._left(layer):
                made = self._turn(made.stretch, made.phase, made.turn + ahead)
                layer = made.layer
        elif reader.layer in (self._stands, self._next):
            layer += self._left_out if reader.layer == self._stands else -self._left_out
        value = self._value(source, layer)
        if value in self._alike:
            raise _Unlike
        return value

    def _turn(self, stretch: int, phase: int, turn: int) -> Where:
        where = self._layers.turns.get((stretch, phase, turn))
        if where is None:
            raise _Unlike
        return where

    def _outputs(self) -> list[int]:
        """For each of the outputs, which one of those that are kept stands for it."""
        position_of = {result: position for position, result in enumerate(self._results)}
        found = []
        for position, (atom, time) in enumerate(self._results):
            standing = position_of.get((self._alike.get(atom, atom), time), -1)
            if standing < 0 or self._asked(position) != self._asked(standing):
                raise _Unlike
            found.append(standing)
        return found

    def _asked(self, position: int) -> object:
        """What is asked of a result, in terms of what is kept."""
        request, inputs = self._request, self._whole.body.inputs
        ties = (
            None if tie is None else self._alike.get(inputs[tie], inputs[tie])
            for tie in (request.ties[position], request.donors[position])
        )
        return request.out_specs[position], *ties


def _longest(numbers: range, without: frozenset[int]) -> range:
    """The longest row of numbers between those that it is to be without."""
    borders = [numbers.start - 1, *sorted(without.intersection(numbers)), numbers.stop]
    return max((range(low + 1, high) for low, high in itertools.pairwise(borders)), key=len)


def _numbered(outputs: Iterable[Atom]) -> list[tuple[Any, int]]:
    """Each output, and how often it was one before; literals by where they are."""
    seen: Counter[Any] = Counter()
    found = []
    for position, atom in enumerate(outputs):
        output = atom if isinstance(atom, Value) else position
        found.append((output, seen[output]))
        seen[output] += 1
    return found


def _pairs(op: Op, other: Op) -> Iterator[tuple[Part, Part]]:
    """The parts of an op with those of one like it."""
    yield op, other
    yield from zip(op.results, other.results, strict=True)
    for body, other_body in zip(op.bodies, other.bodies, strict=True):
        yield body, other_body
        yield from zip(body.inputs, other_body.inputs, strict=True)
        for inner, other_inner in zip(body.ops, other_body.ops, strict=True):
            yield from _pairs(inner, other_inner)
