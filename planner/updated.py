"""Arrays of which an op updates a part in place, and who else needs them as they were."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from planner.graph import Graph, Op, Value
from planner.traits import LOOPS


def updates_in_place(op: Op) -> bool:
    """Whether the result takes the first operand's memory, where nobody needs that any more."""
    return op.name == "dynamic_update_slice" or op.name.startswith("scatter")


def update_position(op: Op) -> int:
    """Of the operand that is written into the first one."""
    return 1 if op.name == "dynamic_update_slice" else 2


class Updated:
    """What the ops of a graph update in place."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def needed_elsewhere(self, op: Op) -> bool:
        """Whether others read too what an op updates, another op having made it.

        The compiler then has a copy updated, which it makes as soon as it can. Of those others, loops make a broadcast
        anew, and what the op itself waits for has read it by then.
        """
        updated = op.operands[0]
        if not isinstance(updated, Value) or updated not in self._makers:
            return False
        anew = self._makers[updated].name == "broadcast_in_dim"
        others = [one for one in self._readers[updated] if one is not op and not (anew and one and one.name in LOOPS)]
        return any(one is None or not self._waits_for(op, one) for one in others)

    def _waits_for(self, op: Op, other: Op) -> bool:
        """Whether an op needs what comes of another one in the same body."""
        seen, waiting = {op}, [op]
        while waiting:
            values = (atom for atom in waiting.pop().operands if isinstance(atom, Value))
            makers = {self._makers[value] for value in values if value in self._makers} - seen
            waiting += makers
            seen |= makers
        return other in seen

    @cached_property
    def _makers(self) -> dict[Value, Op]:
        return {value: op for op, _ in self.graph.walk() for value in op.results}

    @cached_property
    def _readers(self) -> dict[Value, list[Op | None]]:
        """Once for each op that reads a value; None for results of the program or of a body."""
        found: dict[Value, list[Op | None]] = defaultdict(list)
        bodies = [self.graph.body]
        for op, _ in self.graph.walk():
            bodies += op.bodies
            for atom in {atom for atom in op.operands if isinstance(atom, Value)}:
                found[atom].append(op)
        for body in bodies:
            for atom in {atom for atom in body.outputs if isinstance(atom, Value)}:
                found[atom].append(None)
        return found
