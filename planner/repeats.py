"""Layers that repeat: where a program does the same again and again, and which of it belongs together.

A network of 96 layers is written out as 96 times the same ops, forwards, backwards and in the optimizer. Each such
*stretch* is found by its ops' labels, which come again after a period; the layers of different stretches are the same
where one reads what the other made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend import core as jex_core

from planner.graph import TRANSPARENT, Atom, Body, Op, Value, aval_of

Where = tuple[int, int, int]
"""A stretch, the place within a layer of it, and the layer."""


@dataclass(frozen=True, eq=False)
class Layers:
    """Stretches that run through the same layers.

    Attributes:
        where: of the ops by their index.
        index: the other way round.
        common: the layers that all stretches have.
    """

    where: Mapping[int, Where]
    index: Mapping[Where, int]
    common: range


def find_layers(ops: Sequence[Op], least: int) -> Layers | None:
    """The layers of the longest stretch, and of those that are linked to it; None if there is no stretch.

    Args:
        least: as many layers there must be.
    """
    if len(ops) < least:
        return None
    labels = _Labels()
    stretches = _stretches(np.array([labels.of(op) for op in ops]), least)
    return _joined(stretches, _links(ops, stretches, least), least) if stretches else None


class _Labels:
    """Numbers for ops, equal where the planner cannot tell two apart but by what they read."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, op: Op) -> int:
        key = self._key(op)
        try:
            return self._numbers.setdefault(key, len(self._numbers))
        except TypeError:  # a parameter is not hashable
            return self._numbers.setdefault(object(), len(self._numbers))

    def _key(self, op: Op) -> Hashable:
        if op.effects:
            return object()
        params = () if op.primitive in TRANSPARENT else tuple(self._params(op))
        shapes = tuple(_shape(atom) for atom in (*op.operands, *op.results))
        return op.primitive, params, shapes, op.trips, tuple(map(self._body, op.bodies))

    def _params(self, op: Op) -> Iterator[Hashable]:
        """All but what is inside, and where exactly a slice lies in the whole."""
        for name, value in op.params.items():
            if op.name == "slice" and name in ("start_indices", "limit_indices"):
                continue
            if op.name == "pad" and name == "padding_config":
                yield name, tuple((bool(low or high), low + high, between) for low, high, between in value)
            elif not op.bodies or not _holds_jaxpr(value):
                yield name, value

    def _body(self, body: Body) -> Hashable:
        numbers: dict[Atom, int] = {}
        for value in (*body.inputs, *(value for op in body.ops for value in op.results)):
            numbers[value] = len(numbers)

        def read(atoms: Iterable[Atom]) -> tuple[Hashable, ...]:
            return tuple(numbers.get(atom, id(atom)) if isinstance(atom, Value) else _shape(atom) for atom in atoms)

        ops = tuple((self.of(op), read(op.operands)) for op in body.ops)
        return tuple(map(_shape, body.inputs)), ops, read(body.outputs)


def _shape(atom: Atom) -> Hashable:
    aval = aval_of(atom)
    return isinstance(atom, Value), aval.shape, aval.dtype


def _holds_jaxpr(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(part, (jex_core.Jaxpr, jex_core.ClosedJaxpr)) for part in parts)


@dataclass(frozen=True)
class _Stretch:
    """Ops `[start, start + period * count)`, whose labels repeat after `period`."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.count


def _stretches(labels: np.ndarray, least: int) -> list[_Stretch]:
    """Stretches of many repetitions, apart from each other; short periods first, which long ones are multiples of."""
    free = np.ones(labels.size, dtype=bool)
    found = []
    for period in _periods(labels, least):
        alike = (labels[:-period] == labels[period:]) & free[:-period] & free[period:]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], alike, [False]))))
        for begin, end in edges.reshape(-1, 2).tolist():
            stretch = _Stretch(begin, period, (end - begin) // period + 1)
            if stretch.count >= least and free[begin : stretch.end].all():
                found.append(stretch)
                free[begin : stretch.end] = False
    return found


def _periods(labels: np.ndarray, least: int) -> list[int]:
    """After how many ops a label often comes again, ascending."""
    order = np.argsort(labels, kind="stable")
    same = np.diff(labels[order]) == 0
    apart, of = np.diff(order)[same], labels[order][1:][same]
    often = Counter(zip(of.tolist(), apart.tolist(), strict=True))
    return sorted({distance for (_, distance), count in often.items() if count >= least - 1})


Links = Mapping[tuple[int, int], Mapping[int, int]]
"""For each two stretches of which one reads the other, which repetition of it reads which of the other's."""


def _joined(stretches: Sequence[_Stretch], links: Links, least: int) -> Layers:
    longest = max(range(len(stretches)), key=lambda number: stretches[number].period * stretches[number].count)
    layer = {longest: {turn: turn for turn in range(stretches[longest].count)}}
    waiting = [longest]
    while waiting:
        known = waiting.pop()
        for (reader, maker), link in links.items():
            new = {reader: maker, maker: reader}.get(known)
            if new is None or new in layer:
                continue
            turns = link if reader == new else {made: read for read, made in link.items()}
            layer[new] = {turn: layer[known][there] for turn, there in turns.items() if there in layer[known]}
            waiting.append(new)
    layer = {number: turns for number, turns in layer.items() if len(turns) >= least}
    first = max(min(turns.values()) for turns in layer.values())
    last = min(max(turns.values()) for turns in layer.values())
    where = {
        stretches[number].start + turn * stretches[number].period + phase: (number, phase, its_layer)
        for number, turns in layer.items()
        for turn, its_layer in turns.items()
        for phase in range(stretches[number].period)
    }
    return Layers(where, {place: index for index, place in where.items()}, range(first, last + 1))


def _links(ops: Sequence[Op], stretches: Sequence[_Stretch], least: int) -> Links:
    """Those that are one to one."""
    within: dict[int, Where] = {}
    for number, stretch in enumerate(stretches):
        for index in range(stretch.start, stretch.end):
            turn, phase = divmod(index - stretch.start, stretch.period)
            within[index] = number, phase, turn
    made_by = {value: index for index, op in enumerate(ops) for value in op.results}
    found: dict[tuple[int, int], dict[tuple[int, int, int], dict[int, int]]] = {}
    for index, (reader, phase, turn) in within.items():
        for position, atom in enumerate(ops[index].operands):
            made = made_by.get(atom) if isinstance(atom, Value) else None
            maker, made_phase, made_turn = within.get(-1 if made is None else made, (reader, 0, 0))
            if maker != reader:
                between = found.setdefault((reader, maker), {})
                between.setdefault((phase, position, made_phase), {})[turn] = made_turn
    best = {pair: max(links.values(), key=lambda link: len({*link.values()})) for pair, links in found.items()}
    return {pair: link for pair, link in best.items() if len({*link.values()}) == len(link) >= least}
