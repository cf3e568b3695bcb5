"""A program on its way: instructions one after the other, and what moves out of the loop that they are in."""

from __future__ import annotations

from dataclasses import dataclass

from planner.decisions import Home
from planner.graph import Body, Value
from planner.layout import Layout
from planner.program import Array, Instruction
from planner.stages import Shapes


class Lines:
    """Instructions on the way.

    Attributes:
        wanted: what the next of them wants in another layout than it was made in.
        kept: the same of the last one.
        around: of what is in a loop, the instructions before it and what enters it from there beside its operands; None
            if nothing is moved there.
        counted: what is there that needs nothing, by its shapes: all that want as much read the same.
    """

    def __init__(self, around: tuple[Lines, list[Array]] | None = None) -> None:
        self.around = around
        self.counted: dict[Shapes, list[Array]] = {}
        self.instructions: list[Instruction] = []
        self.wanted: list[tuple[Value, Body, Home, Home]] = []
        self.kept: list[tuple[Value, Body, Home, Home]] = []


@dataclass(frozen=True, eq=False)
class Hoisted:
    """Where what is the same in all rounds of a loop is made and resharded: before it.

    Attributes:
        before, count: the instructions around the loop, and how often they run.
        inside: those in it, all of which find the copies there.
        made: the layouts in which it is there.
        entering: what the loop reads beside its operands.
        operand: the array that is an operand of the loop already; None if what is in the loop makes the value.
    """

    before: Lines
    count: float
    inside: Lines
    made: dict[Layout, Array]
    entering: list[Array]
    operand: Array | None

    def enter(self, array: Array, lines: Lines) -> None:
        """Notes that an array is read in these lines."""
        if lines is not self.before and array is not self.operand:
            self.entering.append(array)
