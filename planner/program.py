"""The emitted program as data: every instruction that the compiler is expected to make of a plan, in order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from planner.decisions import Home
from planner.graph import Body, Op, Value
from planner.rearrange import Turn
from planner.traits import Traits

ALIGNED_BYTES = 64
"""XLA's buffers begin at multiples of so many (`MinAlign` in its cpu_function_runtime.h)."""


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


@dataclass(frozen=True, eq=False)
class Array:
    """One layout of a value, as a device holds it.

    Attributes:
        shape: on one device.
        value: what it is a layout of.
        home: where the value is laid out, if this is the layout that it was made in.
        shared: whether it lies in the memory of another array.
        pieces: how many arrays, all alike, it is for the compiler.
        along: the dimension along which pieces that have arrived lie side by side.
        widened: whether it holds float32 for numbers of sixteen bits.
    """

    shape: tuple[int, ...]
    name: str
    source: str
    value: Value
    home: Home | None = None
    shared: bool = False
    pieces: int = 1
    along: int = 0
    widened: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 4 if self.widened else self.value.itemsize

    @property
    def nbytes(self) -> float:
        """On one device."""
        return float(math.prod(self.shape) * self.itemsize)

    @property
    def own_bytes(self) -> float:
        """Of memory that is no other array's; of several pieces each is aligned, one alone would hardly be larger."""
        if self.shared:
            return 0.0
        if self.pieces == 1:
            return self.nbytes
        return float(self.pieces * math.ceil(self.nbytes / self.pieces / ALIGNED_BYTES) * ALIGNED_BYTES)


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction of the program of a device.

    Attributes:
        name: the primitive's, or the kind of step of a change of layout.
        traits: how it fuses.
        count: how often it runs in one call of the program.
        seconds: on the device itself, each time that it runs.
        again_seconds: for each further kernel that computes it too; of what no kernel computes, what that saves.
        colder_seconds: beside, for what it reads that this call has not touched before; negative where it has, and the
            price is of what it has not.
        turn: of a copy that has elements in another order, how it reads them; None of all else.
        collectives: what it communicates, all times together.
        joins: what all-reduces that the compiler joins have in common; empty for all else.
        scratch_bytes: what it needs beside operands and results while it runs.
        shares: for each result, the position of the operand whose memory it takes over if that ends here, or None.
        bodies: the insides of a loop or branch.
        op: None for a change of layout.
    """

    name: str
    traits: Traits
    operands: tuple[Array, ...]
    results: tuple[Array, ...]
    source: str
    count: float
    seconds: float = 0.0
    again_seconds: float = 0.0
    colder_seconds: float = 0.0
    turn: Turn | None = None
    collectives: tuple[Collective, ...] = ()
    joins: tuple[object, ...] = ()
    scratch_bytes: float = 0.0
    shares: tuple[int | None, ...] = ()
    bodies: tuple[Program, ...] = ()
    op: Op | None = None

    @property
    def is_loop(self) -> bool:
        return self.op is not None and self.op.is_loop


@dataclass(frozen=True, eq=False)
class Program:
    """A straight line of instructions, the last of which returns the outputs; literals among those are None.

    Attributes:
        carried: for the inside of a loop each output that the next round goes on from, with the input that it is then.
    """

    inputs: tuple[Array, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Array | None, ...]
    carried: tuple[tuple[Array | None, Array], ...] = ()

    def walk(self) -> Iterator[Instruction]:
        """Every instruction, those inside loops after the loop."""
        for instruction in self.instructions:
            yield instruction
            for body in instruction.bodies:
                yield from body.walk()


@dataclass(frozen=True)
class Fetch:
    """A value wanted in the layout of another home than it was made in, by the instruction of that position."""

    value: Value
    scope: Body
    made: Home
    wanted: Home
    reader: Instruction


@dataclass
class Written:
    """A program with what its parts stand for."""

    program: Program
    fetches: list[Fetch] = field(default_factory=list)
