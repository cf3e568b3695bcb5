"""Slices of what was put together, which read no more of it than they cover.

concatenate(a, x, b)[:n]      a slice of concatenate(a, x), if that is as long
concatenate(a, x, b)[1:-1]    x, if the others have one element

Stencils that lengthen an array at both ends to slice its neighbours out of it are this. XLA's simplifier does the
same, each slice with a concatenation of its own, wherever no collective comes between.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from jax.extend.core import primitives as jex_primitives

from planner.graph import Atom, Op, Value, aval_of


def fold_slices(ops: Sequence[Op], outputs: Sequence[Atom]) -> tuple[list[Op], tuple[Atom, ...]]:
    """The ops of a body and its outputs, where slices read the parts of concatenations that they cover.

    The concatenations are there still, perhaps for nobody.
    """
    folding = _Folding()
    for op in ops:
        folding.add(op)
    return folding.ops, tuple(folding.named(atom) for atom in outputs)


class _Folding:
    """Goes through the ops of a body.

    Attributes:
        ops: what they have become.
        handed_on: what slices of exactly one part, or of exactly several, are.
        together: each concatenation, of what others along its dimension have put together, with its parts.
        made: concatenations of some of these parts.
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.handed_on: dict[Value, Atom] = {}
        self.together: dict[Atom, tuple[Op, tuple[Atom, ...]]] = {}
        self.made: dict[tuple[int, tuple[Atom, ...]], Value] = {}

    def named(self, atom: Atom) -> Atom:
        return self.handed_on.get(atom, atom) if isinstance(atom, Value) else atom

    def add(self, op: Op) -> None:
        operands = tuple(map(self.named, op.operands))
        if any(new is not old for new, old in zip(operands, op.operands, strict=True)):
            op = replace(op, operands=operands)
        if op.primitive is jex_primitives.concatenate_p:
            self.together[op.results[0]] = op, tuple(itertools.chain(*(self.parts(atom, op) for atom in op.operands)))
        elif op.primitive is jex_primitives.slice_p and set(op.params["strides"] or (1,)) == {1}:
            self.slice(op)
            return
        self.ops.append(op)

    def parts(self, atom: Atom, outer: Op) -> tuple[Atom, ...]:
        """What an operand of a concatenation consists of."""
        inner, parts = self.together.get(atom, (None, (atom,)))
        return parts if inner is not None and inner.params["dimension"] == outer.params["dimension"] else (atom,)

    def slice(self, op: Op) -> None:
        """A slice, of as little as it covers."""
        (atom,), starts, limits = op.operands, list(op.params["start_indices"]), list(op.params["limit_indices"])
        while atom in self.together:
            whole, parts = self.together[atom]
            dimension = whole.params["dimension"]
            ends = list(itertools.accumulate(aval_of(part).shape[dimension] for part in parts))
            covered = [
                place
                for place, (begin, end) in enumerate(itertools.pairwise([0, *ends]))
                if max(begin, starts[dimension]) < min(end, limits[dimension])
            ]
            between = parts[covered[0] : covered[-1] + 1] if covered else parts  # with parts that have no elements
            if len(between) == len(parts):
                break
            before = ends[covered[0] - 1] if covered[0] else 0
            starts[dimension] -= before
            limits[dimension] -= before
            atom = self.joined(whole, between)
        if atom is op.operands[0]:
            self.ops.append(op)
        elif aval_of(atom).shape == op.results[0].shape:
            self.handed_on[op.results[0]] = atom
        else:
            params = {**op.params, "start_indices": tuple(starts), "limit_indices": tuple(limits)}
            self.ops.append(replace(op, operands=(atom,), params=params))

    def joined(self, whole: Op, parts: tuple[Atom, ...]) -> Atom:
        """Neighbouring parts of a concatenation."""
        if len(parts) == 1:
            return parts[0]
        dimension, result = whole.params["dimension"], whole.results[0]
        key = dimension, parts
        if key not in self.made:
            shape = list(result.shape)
            shape[dimension] = sum(aval_of(part).shape[dimension] for part in parts)
            self.made[key] = replace(result, shape=tuple(shape))
            self.ops.append(replace(whole, operands=parts, results=(self.made[key],)))
            self.together[self.made[key]] = self.ops[-1], parts
        return self.made[key]
