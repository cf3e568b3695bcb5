"""Which results are arguments gone once round: a training loop's state comes out laid out as it went in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax.tree_util import PyTreeDef

from planner.trace import Traced


@dataclass(frozen=True)
class _Subtree:
    """A part of a pytree: its structure and the leaves `[start, start + count)` of the whole."""

    structure: PyTreeDef
    start: int

    @property
    def leaves(self) -> range:
        return range(self.start, self.start + self.structure.num_leaves)

    def children(self) -> list[_Subtree]:
        result, start = [], self.start
        for child in self.structure.children():
            result.append(_Subtree(child, start))
            start += child.num_leaves
        return result


def match_state(traced: Traced) -> tuple[int | None, ...]:
    """For each result's leaf the argument's leaf that it continues, or None.

    A result, or a part of one, continues the first argument (or direct part of one) of the same structure, shapes and
    dtypes that no other result continues: `step(state, batch) -> (state, loss)`, `grad(loss)(params, batch) -> params`,
    `stencil(u) -> u`.
    """
    arguments = _Subtree(traced.in_tree, 0).children()
    parts = arguments + [part for argument in arguments for part in argument.children() if _is_container(part)]
    taken: set[int] = set()
    ties: list[int | None] = [None] * len(traced.out_avals)

    def visit(result: _Subtree) -> None:
        part = next(
            (part for part in parts if _continues(traced, result, part) and taken.isdisjoint(part.leaves)),
            None,
        )
        if part is None:
            for child in result.children():
                visit(child)
            return
        taken.update(part.leaves)
        for leaf, argument in zip(result.leaves, part.leaves, strict=True):
            ties[leaf] = argument

    visit(_Subtree(traced.out_tree, 0))
    return tuple(ties)


def _is_container(part: _Subtree) -> bool:
    return bool(part.structure.children())


def _continues(traced: Traced, result: _Subtree, part: _Subtree) -> bool:
    def signature(avals: Sequence[object], leaves: range) -> list[object]:
        return [(avals[leaf].shape, avals[leaf].dtype) for leaf in leaves]  # type: ignore[attr-defined]

    return (
        bool(len(part.leaves))
        and result.structure == part.structure
        and signature(traced.out_avals, result.leaves) == signature(traced.in_avals, part.leaves)
    )
