"""What the user asked for: PartitionSpecs on arguments and results, constraints inside, donation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import primitives as jex_primitives
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import PyTreeDef

from planner._jax_compat import shard_map_p
from planner.errors import InvalidSpec
from planner.graph import Atom, Graph, Op, aval_of
from planner.layout import Layout, PartialLayout, from_spec
from planner.state import match_state
from planner.trace import Traced


@dataclass(frozen=True)
class Request:
    """What is asked for, per leaf.

    Attributes:
        in_specs, out_specs: PartitionSpecs, None where the planner chooses.
        donate_argnums: positions of arguments whose memory may be reused.
        ties: for each result the argument whose layout it takes, or None.
        donors: for each result, the donated argument whose memory it takes over, or None.
        out_paths: a readable name for each result.
    """

    in_specs: tuple[PartitionSpec | None, ...]
    out_specs: tuple[PartitionSpec | None, ...]
    donate_argnums: tuple[int, ...]
    ties: tuple[int | None, ...]
    donors: tuple[int | None, ...]
    out_paths: tuple[str, ...]

    def on(self, graph: Graph) -> Request:
        """What of it concerns the arguments and results that a graph has."""
        if (cut := graph.cut) is None:
            return self
        ins = [cut.inputs.index(place) for place in range(len(graph.body.inputs))]
        outs = [cut.outputs.index(place) for place in range(len(graph.body.outputs))]

        def here(positions: Sequence[int | None]) -> tuple[int | None, ...]:
            return tuple(None if (at := positions[out]) is None else cut.inputs[at] for out in outs)

        return replace(
            self,
            in_specs=tuple(self.in_specs[position] for position in ins),
            out_specs=tuple(self.out_specs[position] for position in outs),
            ties=here(self.ties),
            donors=here(self.donors),
            out_paths=tuple(self.out_paths[position] for position in outs),
        )


def read_request(traced: Traced, in_specs: Any, out_specs: Any, donate_argnums: int | Sequence[int]) -> Request:
    """Spreads pytree prefixes over the leaves and finds the state that goes round.

    Raises:
        InvalidSpec: a prefix does not fit the arguments or results, or a donated position does not exist.
    """
    argnums = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    ins, outs = spread(in_specs, traced.in_tree, "in_specs"), spread(out_specs, traced.out_tree, "out_specs")
    return make_request(traced, ins, outs, argnums)


def make_request(
    traced: Traced,
    in_specs: Sequence[PartitionSpec | None],
    out_specs: Sequence[PartitionSpec | None],
    argnums: Sequence[int],
) -> Request:
    """A request from a spec for each leaf; raises as `read_request`."""
    children = traced.in_tree.children()
    for argnum in argnums:
        if not -len(children) <= argnum < len(children):
            raise InvalidSpec(f"donate_argnums names argument {argnum}, {traced.name} takes {len(children)}")
    argnums = tuple(argnum % len(children) for argnum in argnums)
    argument_of = [position for position, child in enumerate(children) for _ in range(child.num_leaves)]
    continued = match_state(traced)
    donors = (
        tie if tie is not None and argument_of[tie] in argnums and spec in (None, in_specs[tie]) else None
        for spec, tie in zip(out_specs, continued, strict=True)
    )
    return Request(
        tuple(in_specs),
        tuple(out_specs),
        argnums,
        tuple(None if spec is not None else tie for spec, tie in zip(out_specs, continued, strict=True)),
        tuple(donors),
        traced.out_paths,
    )


def spread(prefix: Any, tree: PyTreeDef, what: str) -> tuple[PartitionSpec | None, ...]:
    """A pytree prefix of PartitionSpecs and None, as one per leaf."""
    if isinstance(prefix, list) and len(tree.children()) > 0:
        prefix = tuple(prefix)

    def is_spec(node: Any) -> bool:
        return node is None or isinstance(node, PartitionSpec)

    leaves: list[PartitionSpec | None] = []

    def cover(spec: Any, part: Any) -> None:
        if not is_spec(spec):
            raise InvalidSpec(f"{what} holds {spec!r}; give a jax.sharding.PartitionSpec, or None to let it be planned")
        leaves.extend([spec] * len(jax.tree.leaves(part)))

    try:
        jax.tree.map(cover, prefix, jax.tree.unflatten(tree, range(tree.num_leaves)), is_leaf=is_spec)
    except ValueError as error:
        raise InvalidSpec(f"{what} is no pytree prefix of what it describes, {tree}: {error}") from error
    return tuple(leaves)


def pins(
    specs: Sequence[PartitionSpec | None],
    atoms: Sequence[Atom],
    names: Sequence[str],
    mesh: Mapping[str, int],
) -> list[Layout | None]:
    """The layouts that the specs ask for on one mesh."""
    return [
        None if spec is None else from_spec(spec, aval_of(atom).shape, mesh, name)
        for spec, atom, name in zip(specs, atoms, names, strict=True)
    ]


Border = tuple[tuple[Layout, ...], tuple[Layout, ...]]
"""The layouts in which a call takes its operands and gives its results."""


def mapped(graph: Graph, mesh: Mapping[str, int]) -> dict[Op, Border]:
    """The calls of `shard_map` in the program, laid out as their specs say.

    One that is written for another mesh than this is not among them.
    """
    found: dict[Op, Border] = {}
    for op, _ in graph.walk():
        if op.primitive is shard_map_p and dict(op.params["mesh"].shape) == dict(mesh):
            sides = zip((op.operands, op.results), (op.params["in_specs"], op.params["out_specs"]), strict=True)
            operands, results = (
                tuple(
                    from_spec(spec, aval_of(atom).shape, mesh, f"shard_map at {op.source}")
                    for atom, spec in zip(atoms, specs, strict=True)
                )
                for atoms, specs in sides
            )
            found[op] = operands, results
    return found


def constraints(graph: Graph, mesh: Mapping[str, int]) -> dict[Op, PartialLayout]:
    """The layouts of `with_sharding_constraint` in the program; None in dimensions left unconstrained.

    Raises:
        InvalidSpec: a constraint names an axis that the mesh does not have, or does not divide.
    """
    found: dict[Op, PartialLayout] = {}
    for op, _ in graph.walk():
        if op.primitive is not jex_primitives.sharding_constraint_p:
            continue
        sharding, free = op.params["sharding"], op.params["unconstrained_dims"]
        if not isinstance(sharding, NamedSharding):
            raise InvalidSpec(
                f"with_sharding_constraint at {op.source} uses {sharding}; use a PartitionSpec or NamedSharding"
            )
        spec = PartitionSpec(*(None if entry is PartitionSpec.UNCONSTRAINED else entry for entry in sharding.spec))
        layout = from_spec(spec, op.results[0].shape, mesh, f"with_sharding_constraint at {op.source}")
        found[op] = tuple(None if dim in free else axes for dim, axes in enumerate(layout))
    return found
