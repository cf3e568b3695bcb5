"""The collectives of a compiled program: what each moves, over which mesh axes, how often, and for which line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from executor.hlo import Instruction, Site, parse, split
from executor.replica_groups import axes_between, device_groups

KINDS: Mapping[str, str] = {
    "all-reduce": "all-reduce",
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "collective-permute",
    "collective-broadcast": "broadcast",
}
"""Opcodes that communicate, and the kind of collective that they are; `-start` may follow, and `-done` then ends it."""

_ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\]")


@dataclass(frozen=True)
class CompiledCollective:
    """A collective in a compiled program; where the compiler merged several into one instruction, one of them.

    Attributes:
        kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute" or "broadcast".
        bytes: per device, of its larger side.
        axes: the mesh axes that it runs over, in the mesh's order.
        count: how often it happens in one call.
        source: the line it came from, `train.py:41`, or empty.
        op_name: the name stack of the operation it came from.
        instruction: its name in the compiled program.
    """

    kind: str
    bytes: float
    axes: tuple[str, ...]
    count: float
    source: str
    op_name: str
    instruction: str


def collectives(text: str, axis_sizes: Mapping[str, int]) -> tuple[CompiledCollective, ...]:
    """Every collective of a compiled program that runs and moves something, in the order of the text.

    The CPU compiler has no bfloat16 collectives: it widens the operands to float32 just before. Those count at their
    bfloat16 bytes, as they would be on other devices and as the plan says.

    Args:
        text: what `compiled.as_text()` returns.
        axis_sizes: of the mesh that the program was compiled for.
    """
    module = parse(text)
    return tuple(
        collective
        for name, computation in module.computations.items()
        if module.executions[name]
        for instruction in computation.instructions.values()
        if _kind(instruction.opcode)
        for collective in _described(Site(module, computation, instruction), module.executions[name], axis_sizes)
    )


def _kind(opcode: str) -> str | None:
    return KINDS.get(opcode.removesuffix("-start"))


def _described(site: Site, count: float, axis_sizes: Mapping[str, int]) -> Iterator[CompiledCollective]:
    kind = _kind(site.instruction.opcode)
    assert kind is not None
    groups = device_groups(site.instruction.attributes, math.prod(axis_sizes.values()))
    axes = axes_between(groups, axis_sizes)
    op_name = re.search(r'op_name="([^"]*)"', site.instruction.attributes)
    for nbytes in _buffers(site, kind):
        if axes and nbytes:
            yield CompiledCollective(
                kind,
                nbytes,
                axes,
                count,
                site.module.source(site.instruction),
                op_name[1] if op_name else "",
                site.instruction.name,
            )


def _buffers(site: Site, kind: str) -> list[float]:
    """Bytes of the larger side of each array that is communicated; the pieces of an all-to-all are one array."""
    operands = [site.operand(position) for position in range(len(site.instruction.operands))]
    if site.instruction.opcode.startswith("ragged"):
        operands = operands[:1]  # what follows is where to put the pieces, and their sizes
    scales = [0.5 if _widened(site, operand) else 1.0 for operand in operands]
    sizes = [sum(_array_bytes(operand.instruction.type)) for operand in operands]
    if kind == "all-to-all":
        return [sum(scale * size for scale, size in zip(scales, sizes, strict=True))]
    results = _array_bytes(_result_type(site.instruction))
    return [scale * max(pair) for scale, *pair in zip(scales, sizes, results, strict=True)]


def _result_type(instruction: Instruction) -> str:
    """The type of the result alone: what starts an asynchronous collective returns its operands before it."""
    if instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start":
        return split(instruction.type[1:-1])[1]
    return instruction.type


def _widened(collective: Site, operand: Site) -> bool:
    """Whether a float32 operand holds bfloat16 numbers: a convert says so, or the name of the widened reduction."""
    if not operand.instruction.type.startswith("f32"):
        return False
    if any(name.endswith("_promoted") for name in collective.instruction.called("to_apply")):
        return True
    origin = operand.origin
    return origin.instruction.opcode == "convert" and origin.operand(0).instruction.type.startswith("bf16")


def _array_bytes(type_text: str) -> list[float]:
    """Bytes of each array in a type, `f32[4,256]{1,0}` or a tuple of such."""
    return [
        math.prod(int(size.removeprefix("<=")) for size in sizes.split(",") if size) * _element_bytes(dtype)
        for dtype, sizes in _ARRAY.findall(type_text)
    ]


def _element_bytes(dtype: str) -> float:
    """By the bits in the name: `f32`, `bf16`, `s4`, `f8e4m3fn`, `c64`; a `pred` takes a byte, a `token` none."""
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) / 8 if bits else float(dtype == "pred")
