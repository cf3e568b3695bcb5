"""Layers that repeat: where a program does the same again and again, and which of it belongs together.

A network of 96 layers is written out as 96 times the same ops, forwards, backwards and in the optimizer. Each such
*stretch* is found by its ops' labels, which come again after a period; the layers of different stretches are the same
where one reads what the other made.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core as jex_core

from planner.graph import TRANSPARENT, Atom, Body, Op, Value, aval_of

MOST_OFTEN = 16
"""How often the rarest kind of op may come in one layer: kinds are told apart by their shapes too."""


class Where(NamedTuple):
    """A stretch, the place within a layer of it, the layer, and which repetition of the stretch that is."""

    stretch: int
    phase: int
    layer: int
    turn: int


@dataclass(frozen=True, eq=False)
class Layers:
    """Stretches that run through the same layers.

    Attributes:
        where: of the ops by their index.
        index: the other way round, of stretch, place and layer.
        common: the layers that all stretches have.
        outer: those that a stretch begins or ends with, or lacks; with layers in the order of their names, any may be.
    """

    where: Mapping[int, Where]
    index: Mapping[tuple[int, int, int], int]
    common: range
    outer: frozenset[int]

    @cached_property
    def turns(self) -> Mapping[tuple[int, int, int], Where]:
        """By stretch, place and repetition."""
        return {(where.stretch, where.phase, where.turn): where for where in self.where.values()}


def find_layers(ops: Sequence[Op], least: int) -> Layers | None:
    """The layers of the longest stretch, and of those that are linked to it; None if there is no stretch.

    Args:
        least: as many layers there must be.
    """
    if len(ops) < least:
        return None
    labels = _Labels()
    stretches = _stretches(np.array([labels.of(op) for op in ops]), least)
    return _layers(ops, *_aligned(ops, stretches, least), least) if stretches else None


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
    """Ops `[start, end)`, whose labels repeat after `period`, `count` times in all."""

    start: int
    period: int
    count: int

    @property
    def ops(self) -> int:
        return self.count * self.period

    @property
    def end(self) -> int:
        return self.start + self.ops

    def part(self, first: int, count: int) -> _Stretch:
        """Some repetitions of it."""
        return _Stretch(self.start + first * self.period, self.period, count)


class _Run(NamedTuple):
    """Ops `[start, stop)`, whose labels repeat after `period`; the last repetition need not be whole."""

    start: int
    stop: int
    period: int

    def whole(self, start: int, stop: int) -> _Stretch:
        """The whole repetitions between."""
        return _Stretch(start, self.period, (stop - start) // self.period)


def _stretches(labels: np.ndarray, least: int) -> list[_Stretch]:
    """Stretches of many repetitions, apart from each other.

    What may be the end of one or the beginning of the next goes where most ops are in whole repetitions.
    """
    found, free = [], 0
    runs = sorted(_runs(labels, least))
    for run, after in itertools.zip_longest(runs, runs[1:]):
        start, stop = max(run.start, free), run.stop
        if after and after.start < stop:
            parts = [
                (run.whole(start, border), after.whole(border, after.stop)) for border in range(after.start, stop + 1)
            ]
            stop = after.start + max(range(len(parts)), key=lambda at: sum(part.ops for part in parts[at]))
        found.append(run.whole(start, stop))
        free = stop
    return [stretch for stretch in found if stretch.count >= least]


def _runs(labels: np.ndarray, least: int) -> Iterator[_Run]:
    """Runs of many repetitions; two may share what is less than a repetition of each.

    Short periods are looked for first, which long ones are multiples of.
    """
    free = np.ones(labels.size, dtype=bool)
    for period in _periods(labels, least):
        alike = (labels[:-period] == labels[period:]) & free[:-period] & free[period:]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], alike, [False]))))
        for start, end in edges.reshape(-1, 2).tolist():
            if (end - start) // period + 1 >= least:
                free[start + period : end] = False
                yield _Run(start, end + period, period)


def _periods(labels: np.ndarray, least: int) -> list[int]:
    """After how many ops a label often comes again, or comes again for the second time, and so on; ascending."""
    order = np.argsort(labels, kind="stable")
    found: set[int] = set()
    for times in range(1, MOST_OFTEN + 1):
        same = labels[order][times:] == labels[order][:-times]
        apart, of = (order[times:] - order[:-times])[same], labels[order][times:][same]
        pairs, count = np.unique(np.stack([of, apart]), axis=1, return_counts=True)
        found.update(pairs[1, count >= times * (least - 1)].tolist())
    return sorted(found)


Reads = Mapping[tuple[int, int], Mapping[tuple[int, int, int], Mapping[int, int]]]
"""By reader and maker, for each way in which one stretch reads another (place, operand, and place read): which
repetition reads which."""


def _reads(ops: Sequence[Op], stretches: Sequence[_Stretch]) -> Reads:
    within: dict[int, tuple[int, int, int]] = {}
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
    return found


def _aligned(ops: Sequence[Op], stretches: Sequence[_Stretch], least: int) -> tuple[Sequence[_Stretch], Reads]:
    """Several repetitions of a stretch are one where they go with one of another: of an optimizer, all of a layer's.

    Where a stretch comes to the other's repetitions a second time, a second stretch begins.
    """
    while True:
        reads = _reads(ops, stretches)
        for (reader, maker), ways in reads.items():
            pairs = [pair for way in ways.values() for pair in way.items()]
            forth, back = dict(pairs[::-1]), {made: turn for turn, made in pairs[::-1]}
            changed = {
                number: [stretch]
                for number, beside in ((reader, forth), (maker, back))
                if (stretch := _wider(stretches[number], beside, least))
            }
            first, again = stretches[reader], max(map(_second_time, ways.values()))
            if not changed and least <= again <= first.count - least:
                changed = {reader: [first.part(0, again), first.part(again, first.count - again)]}
            if changed:
                stretches = [new for number, old in enumerate(stretches) for new in changed.get(number, [old])]
                break
        else:
            return stretches, reads


def _second_time(way: Mapping[int, int]) -> int:
    """The first repetition that reads what one has read that is not beside it; 0 if there is none."""
    last: dict[int, int] = {}
    for turn, made in sorted(way.items()):
        if last.setdefault(made, turn) < turn - 1:
            return turn
        last[made] = turn
    return 0


def _wider(stretch: _Stretch, beside: Mapping[int, int], least: int) -> _Stretch | None:
    """The stretch with as many of its repetitions as one as go with one of another; None if that is one each.

    Args:
        beside: for its repetitions, the other's that they go with.
    """
    groups = [[*turns] for _, turns in itertools.groupby(sorted(beside), key=beside.__getitem__)]
    size = Counter(map(len, groups)).most_common(1)[0][0]
    rows: list[list[int]] = [[]]
    for turns in groups:
        whole = len(turns) == size == turns[-1] - turns[0] + 1
        if not whole or (rows[-1] and turns[0] != rows[-1][-1] + size):
            rows.append([])
        if whole:
            rows[-1].append(turns[0])
    row = max(rows, key=len)
    if size == 1 or len(row) < least:
        return None
    return _Stretch(stretch.start + row[0] * stretch.period, stretch.period * size, len(row))


def _values(op: Op) -> list[Value]:
    return [atom for atom in op.operands if isinstance(atom, Value)]


def _layers(ops: Sequence[Op], stretches: Sequence[_Stretch], reads: Reads, least: int) -> Layers:
    """The layers of the longest stretch, and of those that go with it one to one.

    Layers follow each other as they read each other; those of an optimizer may be in the order of their names.
    """
    best = {pair: max(ways.values(), key=lambda way: len({*way.values()})) for pair, ways in reads.items()}
    lengths = [(_chained(ops, stretch), stretch.ops) for stretch in stretches]
    longest = lengths.index(max(lengths))
    layer = {longest: {turn: turn for turn in range(stretches[longest].count)}}
    waiting = [longest]
    while waiting:
        known = waiting.pop()
        for (reader, maker), way in best.items():
            new = {reader: maker, maker: reader}.get(known)
            if new is None or new in layer or not least <= len(way) == len({*way.values()}):
                continue
            turns = way if reader == new else {made: read for read, made in way.items()}
            layer[new] = {turn: layer[known][there] for turn, there in turns.items() if there in layer[known]}
            waiting.append(new)
    layer = {number: turns for number, turns in layer.items() if len(turns) >= least}
    first = max(min(turns.values()) for turns in layer.values())
    last = min(max(turns.values()) for turns in layer.values())
    where = {
        stretches[number].start + turn * stretches[number].period + phase: Where(number, phase, its_layer, turn)
        for number, turns in layer.items()
        for turn, its_layer in turns.items()
        for phase in range(stretches[number].period)
    }
    common = range(first, last + 1)
    outer = {turns[end(turns)] for turns in layer.values() for end in (min, max)}
    outer.update(*({*common}.difference(turns.values()) for turns in layer.values()))
    return Layers(where, {place[:3]: index for index, place in where.items()}, common, frozenset(outer))


def _chained(ops: Sequence[Op], stretch: _Stretch) -> bool:
    """Whether its second repetition reads its first."""
    first, second = (ops[stretch.start + turn * stretch.period :][: stretch.period] for turn in (0, 1))
    made = {value for op in first for value in op.results}
    return any(not made.isdisjoint(_values(op)) for op in second)
