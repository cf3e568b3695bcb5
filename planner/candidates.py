"""The layouts that people write by hand, as assignments of the same problem: where the solver starts and what it beats.

They are described by what each mesh axis does. A data-parallel axis splits the batch, and nothing else; in its fully
sharded form it also splits parameters and optimiser state, which are gathered where they are used. A tensor-parallel
axis splits anything but the batch. Within that description the solver picks the best completion, so that a candidate is
as good as its kind can be: tensor parallelism comes out as Megatron writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.decisions import REPLICATED, Decisions, Node
from planner.graph import Graph, aval_of
from planner.layout import shard_count
from planner.price import Priced
from planner.solve import solve
from planner.strategies import Strategy
from planner.twins import Merged

Picks = tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """What each mesh axis does.

    Attributes:
        data: axes that split the batch.
        tensor: axes that split anything else.
        sharded_state: whether the data axes split the state too (FSDP, ZeRO-3).
    """

    data: tuple[str, ...] = ()
    tensor: tuple[str, ...] = ()
    sharded_state: bool = False


def recipes(axes: Sequence[str]) -> Mapping[str, Recipe]:
    """The recipes for a mesh, by the names that people know them by."""
    every = tuple(axes)
    result = {
        "replicated": Recipe(),
        "data-parallel": Recipe(data=every),
        "fsdp": Recipe(data=every, sharded_state=True),
        "tensor-parallel": Recipe(tensor=every),
    }
    if len(every) > 1:
        result["data x tensor"] = Recipe(data=every[:1], tensor=every[1:])
        result["fsdp x tensor"] = Recipe(data=every[:1], tensor=every[1:], sharded_state=True)
    return result


def candidates(priced: Priced, merged: Merged, ties: Sequence[int | None], time_limit: float) -> Mapping[str, Picks]:
    """Each recipe's best completion that the problem allows, as picks of the whole; a recipe with none is left out."""
    batch = batch_factors(priced.graph, priced.decisions, ties)
    axes = tuple(priced.cost.axis_sizes)
    result: dict[str, Picks] = {}
    for name, recipe in recipes(axes).items():
        known: dict[object, list[bool]] = {}
        allowed = []
        for node, strategies, factors in zip(priced.decisions.nodes, priced.strategies, batch, strict=True):
            key = (id(strategies), node.kind, tuple(node.sizes), factors)  # layers repeat
            if key not in known:
                sizes = priced.cost.axis_sizes
                known[key] = [follows(recipe, strategy, factors, node, sizes) for strategy in strategies]
            allowed.append(known[key])
        picks = completed(merged, allowed, time_limit)
        if picks is not None:
            result[name] = picks
    return result


def completed(merged: Merged, allowed: Sequence[list[bool]], time_limit: float) -> Picks | None:
    """The best assignment of allowed strategies; a node for which none is allowed (pinned by the user) is free.

    `allowed` is for the nodes of the whole problem; it has no entry for the last, the replicated ops.
    """
    costs = list(merged.problem.costs)
    masks = {(node, id(mask)): mask for node, mask in zip(merged.of.tolist(), allowed, strict=False)}
    for (node, _), mask in masks.items():
        if any(mask):
            costs[node] = np.where(mask, costs[node], np.inf)
    solution = solve(replace(merged.problem, costs=tuple(costs)), time_limit=time_limit)
    return tuple(merged.lift(solution.picks).tolist()) if solution.picks is not None else None


def batch_factors(graph: Graph, decisions: Decisions, ties: Sequence[int | None]) -> list[frozenset[int]]:
    """For each node, the factors that the leading dimension of the data runs through."""
    return factors_from(graph, decisions, [(position, 0) for position in _data(graph, ties)])


def factors_from(graph: Graph, decisions: Decisions, starts: Iterable[tuple[int, int]]) -> list[frozenset[int]]:
    """For each node, the factors that some dimensions of the arguments run through.

    Args:
        starts: an argument's position and a dimension of it.
    """
    found: list[set[int]] = [set() for _ in decisions.nodes]
    for position, dim in starts:
        argument = decisions.homes[graph.body.inputs[position]]
        if argument.node != REPLICATED and argument.dims[dim]:
            found[argument.node].add(argument.dims[dim][0])
    links = [
        (home.node, have[0], use.node, want[0])
        for use in decisions.edges
        if (home := use.view or decisions.homes.get(use.value)) is not None
        and REPLICATED not in (home.node, use.node)
        and decisions.nodes[use.node].kind != "argument"
        for have, want in zip(home.dims, use.dims, strict=True)
        if have and want
    ]
    changed = True
    while changed:
        changed = False
        for maker, made, reader, read in links:
            if made in found[maker] and read not in found[reader]:
                found[reader].add(read)
                changed = True
    return [frozenset(factors) for factors in found]


def _data(graph: Graph, ties: Sequence[int | None]) -> Iterable[int]:
    """The arguments that carry the batch: those that are no state; of plain arrays, one whose rows come out again."""
    inputs, outputs = graph.body.inputs, graph.body.outputs
    state = {tie for tie in ties if tie is not None}
    rest = [index for index, value in enumerate(inputs) if index not in state and value.rank]
    if not rest:
        return range(len(inputs))
    if state:
        return rest
    rows = {aval.shape[0] for aval in map(aval_of, outputs) if aval.shape}
    return [next((index for index in rest if inputs[index].shape[0] in rows), rest[0])]


def follows(recipe: Recipe, strategy: Strategy, batch: frozenset[int], node: Node, sizes: Mapping[str, int]) -> bool:
    """Whether a strategy does on every axis what the recipe says."""
    if node.kind == "view":  # how a value is handed out follows from who reads it
        return True
    on_batch = set(strategy.axes_on(tuple(batch)))
    used = {axis for axes in strategy.axes for axis in axes}
    if on_batch & set(recipe.tensor) or used - set(recipe.data) - set(recipe.tensor):
        return False
    data = set(recipe.data)
    if batch and _fits(node, batch, recipe.data, sizes):
        return data <= on_batch
    if not recipe.sharded_state:
        return not used & data
    if node.kind != "argument":
        return True
    splittable = [factor for factor in range(len(node.sizes)) if _fits(node, {factor}, recipe.data, sizes)]
    return not splittable or any(data <= set(strategy.axes[factor]) for factor in splittable)


def _fits(node: Node, factors: Iterable[int], axes: Sequence[str], sizes: Mapping[str, int]) -> bool:
    """Whether one of these factors splits evenly over all of the axes."""
    count = shard_count(axes, sizes)
    return any(node.sizes[factor] % count == 0 for factor in factors)
