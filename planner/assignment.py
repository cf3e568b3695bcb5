"""A choice of strategies, read as layouts: what each value is, what each use wants, and the way between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from planner.decisions import REPLICATED, Home, Use
from planner.graph import Value
from planner.halves import sent_itemsize
from planner.layout import Layout, replicated
from planner.price import Priced, reshards
from planner.reshard import Step
from planner.strategies import Dims, Strategy

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Assignment:
    """One strategy for every node. Prediction and emission both follow it, so that they cannot differ."""

    priced: Priced
    picks: tuple[int, ...]

    def strategy(self, node: int) -> Strategy:
        return self.priced.strategies[node][self.picks[node]]

    def home(self, value: Value) -> Layout:
        """The layout in which a value is made, one of the whole graph's too."""
        home = self.priced.decisions.homes.get(self.priced.graph.here(value))
        return replicated(value.rank) if home is None else self._layout(home, result=True)

    def wanted(self, use: Use) -> Layout:
        """The layout in which a value is needed."""
        return self._layout(Home(use.node, use.dims), result=False)

    def _layout(self, home: Home, result: bool) -> Layout:
        if home.node == REPLICATED:
            return replicated(len(home.dims))
        key = (home.node, home.dims, result)
        if key not in self._layouts:
            self._layouts[key] = self.strategy(home.node).layout(home.dims, result)
        return self._layouts[key]

    @cached_property
    def _layouts(self) -> dict[tuple[int, Dims, bool], Layout]:
        return {}

    def shared_seconds(self) -> float:
        """What the copies save that several readers of a value share, and the problem counts for each reader."""
        total = 0.0
        for readings in self.priced.readings:
            paid = [one.seconds[self.picks[one.tail], self.picks[one.head]] for one in readings]
            if sum(seconds > 0 for seconds in paid) > 1:
                total += float(sum(paid)) - self._emitted_seconds([one.use for one in readings])
        return total

    def _emitted_seconds(self, uses: Sequence[Use]) -> float:
        """Seconds in the changes of layout that are made for these uses of one value in one body."""
        nodes, value = self.priced.decisions.nodes, uses[0].value
        steps: list[Step] = []
        copies: dict[Layout, None] = {self.home(value): None}
        for use in uses:
            if use.node == REPLICATED or nodes[use.node].kind != "view":  # a view is passed by those who read it
                self.route(use, value, copies, lambda _, step: steps.append(step))
        resharder = self.priced.resharders.of(value)
        itemsize = sent_itemsize(value, self.priced.cost.backend)
        each = (resharder.seconds(step, value.shape, itemsize) for step in steps)
        return reshards(uses[0], self.priced.decisions, self.priced.cost) * sum(each)

    def route(self, use: Use, value: Value, copies: dict[Layout, T], step: Callable[[T, Step], T]) -> T:
        """A value in the layout that the use wants, resharded step by step from a copy that is there.

        Args:
            value: the use's own, or one that it stands for.
            copies: what there is of the value in this scope, by layout, its home at least; what is made is added.
            step: makes the next copy from the last.
        """
        target = self.wanted(use)
        if target in copies:
            return copies[target]
        stops: Sequence[Layout] = (target,) if use.view is None else (self._layout(use.view, result=False), target)
        passed, moves = [self.home(value)], list[Step]()
        path, itemsize = self.priced.resharders.of(value).path, sent_itemsize(value, self.priced.cost.backend)
        for stop, repeats in zip(stops, (value.repeats, ()), strict=False):
            for move in path(value.shape, itemsize, passed[-1], stop, repeats):
                if move.layout in passed:  # back where it was: nobody would read what lies between
                    back = passed.index(move.layout)
                    del passed[back + 1 :], moves[back:]
                else:
                    passed.append(move.layout)
                    moves.append(move)
        start = max(place for place, layout in enumerate(passed) if layout in copies)
        for layout, move in zip(passed[start:], moves[start:], strict=False):
            copies[move.layout] = step(copies[layout], move)
        return copies[target]
