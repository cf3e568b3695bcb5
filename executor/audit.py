"""What the compiler made of a plan: its collectives and its memory, held against what the plan expected."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import jax

from executor.compiled import CompiledCollective, collectives
from executor.race import lower
from planner import Collective, Plan
from planner.quantities import bytes_text

Kind = tuple[str, frozenset[str]]
"""A kind of collective and the mesh axes that it runs over."""

T = TypeVar("T")
AnyCollective = TypeVar("AnyCollective", Collective, CompiledCollective)


@dataclass(frozen=True)
class Audit:
    """Planned against compiled.

    Attributes:
        planned, compiled: all collectives of one call.
        predicted_peak_bytes: per device, as the plan says.
        compiled_peak_bytes: per device, as the compiler says: arguments, results and temporaries, a result that takes
            over an argument's memory counted once.
        rematerializations: how often the compiler found no way from one layout to another and gathered the whole array
            ("Involuntary full rematerialization").
    """

    planned: tuple[Collective, ...] = field(repr=False)
    compiled: tuple[CompiledCollective, ...] = field(repr=False)
    predicted_peak_bytes: float
    compiled_peak_bytes: float
    rematerializations: int

    @cached_property
    def unplanned(self) -> tuple[CompiledCollective, ...]:
        """Compiled collectives that nobody planned, the largest first; one that is planned in part, with the rest."""
        return _beyond(self.compiled, self.planned)

    @cached_property
    def missing(self) -> tuple[Collective, ...]:
        """Planned collectives that were not compiled, the largest first."""
        return _beyond(self.planned, self.compiled)

    @property
    def planned_bytes(self) -> float:
        """Per device and call, each collective at its larger side."""
        return _total(self.planned)

    @property
    def compiled_bytes(self) -> float:
        """Per device and call, each collective at its larger side."""
        return _total(self.compiled)

    @property
    def fidelity(self) -> float:
        """How much of the communication is as planned, 0 to 1.

        Bytes that agree per kind of collective and set of mesh axes, over the larger of planned and compiled bytes.
        That the compiler merges several collectives into one instruction makes no difference.
        """
        larger = max(self.planned_bytes, self.compiled_bytes)
        return (self.compiled_bytes - _total(self.unplanned)) / larger if larger else 1.0

    @property
    def memory_ratio(self) -> float:
        """Predicted peak memory over what the compiler needs."""
        return self.predicted_peak_bytes / self.compiled_peak_bytes if self.compiled_peak_bytes else 1.0

    def report(self) -> str:
        """Bytes per kind of collective, what nobody planned, what is missing, and the memory, for people."""
        planned, compiled = _bytes_by_kind(self.planned), _bytes_by_kind(self.compiled)
        kinds = sorted(planned | compiled, key=lambda kind: -max(planned[kind], compiled[kind]))
        lines = [
            f"fidelity {self.fidelity:.3f}",
            f"{'collective':<32}{'planned':>12}{'compiled':>12}",
            *(f"{_label(*kind):<32}{bytes_text(planned[kind]):>12}{bytes_text(compiled[kind]):>12}" for kind in kinds),
            f"{'all':<32}{bytes_text(self.planned_bytes):>12}{bytes_text(self.compiled_bytes):>12}",
            f"{'peak memory':<32}{bytes_text(self.predicted_peak_bytes):>12}{bytes_text(self.compiled_peak_bytes):>12}",
        ]
        lines += [f"unplanned: {_describe(extra)} ({extra.op_name})" for extra in self.unplanned]
        lines += [f"missing: {_describe(lost)}" for lost in self.missing]
        if self.rematerializations:
            lines.append(f"involuntary full rematerializations: {self.rematerializations}")
        return "\n".join(lines)


def audit(plan: Plan) -> Audit:
    """Compiles the planned function, without running it, and compares the program with the plan.

    Raises:
        NoDevices: the plan was made for a mesh without devices.
        NotImplementedError: the backend keeps to itself what it compiled.
    """
    return held_against(plan, *compile_watched(lower(plan)))


def compile_watched(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, int]:
    """Compiles a program, and counts the compiler's warnings of "Involuntary full rematerialization"."""
    program, warnings = _with_stderr(lowered.compile)
    return program, warnings.count(b"Involuntary full rematerialization")


def held_against(plan: Plan, program: jax.stages.Compiled, rematerializations: int) -> Audit:
    """Compares a compiled program of the plan's function with the plan.

    Raises:
        NotImplementedError: the backend keeps to itself what it compiled.
    """
    text, memory = program.as_text(), program.memory_analysis()
    if text is None or memory is None:
        raise NotImplementedError(
            f"cannot audit on {jax.default_backend()}: its compiler shows no program or no memory use; try CPU devices"
        )
    return Audit(
        plan.prediction.collectives,
        collectives(text, dict(plan.mesh.shape)),
        plan.prediction.peak_bytes,
        float(
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            + memory.temp_size_in_bytes
            - memory.alias_size_in_bytes
        ),
        rematerializations,
    )


def _with_stderr(work: Callable[[], T]) -> tuple[T, bytes]:
    """Runs some work; returns its result and what the process wrote to stderr meanwhile, which is passed on at the end.

    XLA writes its warnings to the file descriptor, past `sys.stderr`.
    """
    sys.stderr.flush()
    own = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            result = work()
        finally:
            os.dup2(own, 2)
            os.close(own)
            log.seek(0)
            written = log.read()
            os.write(2, written)
    return result, written


def _beyond(
    these: Sequence[AnyCollective], those: Sequence[Collective | CompiledCollective]
) -> tuple[AnyCollective, ...]:
    """What of these has no counterpart among those, the largest first.

    Counterparts are of one kind. Those of one size are paired first; then bytes are, whatever pieces they come in.
    """
    sizes = Counter((_kind(one), _bytes(one)) for one in those)
    budget = _bytes_by_kind(those)
    odd: list[AnyCollective] = []
    for one in these:
        key = _kind(one), _bytes(one)
        if sizes[key]:
            sizes[key] -= 1
            budget[key[0]] -= key[1]
        else:
            odd.append(one)
    lines = {(_kind(one), one.source) for one in those}
    beyond = []
    for one in sorted(odd, key=lambda one: ((_kind(one), one.source) not in lines, -_bytes(one))):
        covered = min(_bytes(one), budget[_kind(one)])
        budget[_kind(one)] -= covered
        if covered < _bytes(one):
            beyond.append(replace(one, bytes=one.bytes - covered / one.count))
    return tuple(sorted(beyond, key=lambda one: -_bytes(one)))


def _kind(one: Collective | CompiledCollective) -> Kind:
    return one.kind, frozenset(one.axes)


def _bytes(one: Collective | CompiledCollective) -> float:
    return one.bytes * one.count


def _total(those: Sequence[Collective | CompiledCollective]) -> float:
    return sum(map(_bytes, those))


def _bytes_by_kind(those: Sequence[Collective | CompiledCollective]) -> defaultdict[Kind, float]:
    totals: defaultdict[Kind, float] = defaultdict(float)
    for one in those:
        totals[_kind(one)] += _bytes(one)
    return totals


def _describe(one: Collective | CompiledCollective) -> str:
    where = f" at {one.source}" if one.source else ""
    return f"{_label(one.kind, frozenset(one.axes))}, {bytes_text(one.bytes)} × {one.count:g}{where}"


def _label(kind: str, axes: frozenset[str]) -> str:
    return f"{kind} over {', '.join(sorted(axes))}"
