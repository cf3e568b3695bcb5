"""Compiled programs as XLA prints them: computations of instructions, how often each runs, and what feeds what.

The text of `compiled.as_text()` is the optimised program of one device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from planner.jaxpr import UNKNOWN_TRIPS

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{\s*$")
_NAMED = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_MOVES = frozenset({"bitcast", "copy", "reshape", "transpose", "slice", "dynamic-slice", "broadcast"})
"""Opcodes whose result holds elements of their first operand and nothing else."""


@dataclass(frozen=True)
class Instruction:
    """One line: `%name = type opcode(operands), attributes`.

    Attributes:
        operands: the names of other instructions of the computation; a constant's or parameter's own text.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    def called(self, attribute: str) -> tuple[str, ...]:
        """The computations that an attribute names, as `calls=%a` or `branch_computations={%a, %b}`."""
        found = re.search(rf"\b{attribute}=(?:\{{([^}}]*)\}}|(%?[\w.\-]+))", self.attributes)
        return tuple(re.findall(r"[\w.\-]+", found[1] or found[2] or "")) if found else ()


@dataclass(frozen=True)
class Computation:
    """A function of the program; `root` names the instruction that it returns."""

    instructions: Mapping[str, Instruction]
    root: str


@dataclass(frozen=True)
class Site:
    """An instruction where it stands, inside the fusions it stands in."""

    module: Module
    computation: Computation
    instruction: Instruction
    caller: Site | None = None

    def operand(self, position: int) -> Site:
        name = self.instruction.operands[position]
        return Site(self.module, self.computation, self.computation.instructions[name], self.caller)

    @property
    def origin(self) -> Site:
        """The instruction that computes what this one only passes on: through copies, tuples and fusions."""
        match self.instruction.opcode:
            case "fusion":
                (name,) = self.instruction.called("calls")
                inner = self.module.computations[name]
                return Site(self.module, inner, inner.instructions[inner.root], self).origin
            case "parameter" if self.caller is not None:
                return self.caller.operand(int(self.instruction.operands[0])).origin
            case "get-tuple-element":
                whole = self.operand(0).origin
                return whole.operand(self.element).origin if whole.instruction.opcode == "tuple" else self
            case opcode if opcode in _MOVES:
                return self.operand(0).origin
        return self

    @property
    def element(self) -> int:
        """Which element a get-tuple-element gets."""
        found = re.search(r"\bindex=(\d+)", self.instruction.attributes)
        assert found is not None, f"{self.instruction} gets no element"
        return int(found[1])


@dataclass(frozen=True)
class Module:
    """A program.

    Attributes:
        computations: by name.
        entry: the name of the one that is called.
        frames: lines of source, as `train.py:41`, by the number that instructions know them by.
    """

    computations: Mapping[str, Computation]
    entry: str
    frames: Mapping[int, str]

    def source(self, instruction: Instruction) -> str:
        """The line that an instruction came from, empty where the compiler recorded none."""
        if found := re.search(r"stack_frame_id=(\d+)", instruction.attributes):
            return self.frames.get(int(found[1]), "")
        if found := re.search(r'source_file="([^"]*)" source_line=(\d+)', instruction.attributes):
            return f"{_basename(found[1])}:{found[2]}"
        return ""

    @cached_property
    def executions(self) -> Mapping[str, float]:
        """How often each computation runs in one call of the program.

        A loop whose rounds are not written in it runs as often as the planner assumes; of branches each runs its share.
        """
        totals = dict.fromkeys(self.computations, 0.0)

        def run(name: str, count: float) -> None:
            totals[name] += count
            for instruction in self.computations[name].instructions.values():
                for callee, times in self._calls(name, instruction):
                    run(callee, count * times)

        run(self.entry, 1.0)
        return totals

    def _calls(self, computation: str, instruction: Instruction) -> Iterator[tuple[str, float]]:
        match instruction.opcode:
            case "while":
                trips = float(self._trips(computation, instruction))
                yield from ((name, trips) for key in ("condition", "body") for name in instruction.called(key))
            case "conditional":
                branches = [
                    name
                    for key in ("branch_computations", "true_computation", "false_computation")
                    for name in instruction.called(key)
                ]
                yield from ((name, 1 / len(branches)) for name in branches)
            case "call":
                yield from ((name, 1.0) for name in instruction.called("to_apply"))
            case "fusion" | "async-start" | "custom-call":
                for key in ("calls", "called_computations"):
                    yield from ((name, 1.0) for name in instruction.called(key))

    def _trips(self, computation: str, loop: Instruction) -> int:
        """As the compiler counted them, or as `while i < constant` says for a counter that goes up by one."""
        if found := re.search(r'"known_trip_count":\{"n":"?(\d+)', loop.attributes):
            return int(found[1])
        (name,) = loop.called("condition")
        inside = self.computations[name]
        test = Site(self, inside, inside.instructions[inside.root]).origin
        if test.instruction.opcode != "compare" or "direction=LT" not in test.instruction.attributes:
            return UNKNOWN_TRIPS
        counter, bound = test.operand(0).origin, _constant(test.operand(1).origin)
        entry = Site(self, self.computations[computation], loop).operand(0).origin
        if counter.instruction.opcode != "get-tuple-element" or entry.instruction.opcode != "tuple":
            return UNKNOWN_TRIPS
        start = _constant(entry.operand(counter.element).origin)
        return UNKNOWN_TRIPS if start is None or bound is None else max(0, bound - start)


def parse(text: str) -> Module:
    """Reads a program as XLA prints it.

    Raises:
        ValueError: the text is no HLO module.
    """
    computations: dict[str, Computation] = {}
    entry, name, root = "", "", ""
    inside: dict[str, Instruction] | None = None
    for line in text.splitlines():
        if inside is None:
            if header := _HEADER.match(line):
                name, root, inside = header[2], "", {}
                entry = name if header[1] else entry
        elif line.startswith("}"):
            computations[name] = Computation(inside, root)
            inside = None
        elif named := _NAMED.match(line):
            inside[named[2]] = _instruction(named[2], named[3])
            root = named[2] if named[1] else root
    if not entry:
        raise ValueError(f"no ENTRY computation in {text[:60]!r}…: pass the text of compiled.as_text(), an HLO module")
    return Module(computations, entry, _frames(text))


def _instruction(name: str, text: str) -> Instruction:
    """Reads what stands behind `%name = `."""
    text = re.sub(r"/\*.*?\*/", "", text)
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    opening = text.index("(", end)
    closing = _closing(text, opening)
    opcode = text[end:opening].strip()
    operands = split(text[opening + 1 : closing])
    if opcode not in ("constant", "parameter"):
        operands = [operand.split(" ")[-1].removeprefix("%") for operand in operands]
    return Instruction(name, text[:end], opcode, tuple(operands), text[closing + 1 :])


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis that opens at `opening` closes."""
    depth = 0
    for found in re.compile(r"[()]").finditer(text, opening):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.start()
    raise ValueError(f"a parenthesis is left open in {text!r}")


def split(text: str) -> list[str]:
    """At the commas that stand in no brackets."""
    parts, depth, start = [], 0, 0
    for found in re.finditer(r"[(){}\[\],]", text):
        if found[0] == "," and depth == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
        elif found[0] != ",":
            depth += 1 if found[0] in "({[" else -1
    return [part for part in (*parts, text[start:].strip()) if part]


def _constant(site: Site) -> int | None:
    text = site.instruction.operands[0] if site.instruction.opcode == "constant" else ""
    return int(text) if text.lstrip("-").isdigit() else None


def _frames(text: str) -> dict[int, str]:
    """The tables in front of a program, from a frame's number to its file and line."""
    files = dict(re.findall(r'^(\d+) "(.*)"$', _section(text, "FileNames"), re.MULTILINE))
    lines = {
        number: f"{_basename(files[file])}:{line}"
        for number, file, line in re.findall(
            r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", _section(text, "FileLocations"), re.MULTILINE
        )
    }
    frames = re.findall(r"^(\d+) \{file_location_id=(\d+)", _section(text, "StackFrames"), re.MULTILINE)
    return {int(number): lines[location] for number, location in frames}


def _section(text: str, title: str) -> str:
    """What stands under a title, until the next empty line."""
    found = re.search(rf"^{title}\n((?:.+\n)*)", text, re.MULTILINE)
    return found[1] if found else ""


def _basename(path: str) -> str:
    return path.rsplit("/", 1)[-1]
