"""What a plan is held against: layouts as people write them, random ones, and what XLA makes of the inputs alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from experiments.random_plans import random_plan
from experiments.runner.trial import Dimensions
from planner import Plan
from planner.candidates import Recipe, batch_factors, completed, factors_from, follows
from planner.choose import CANDIDATE_SECONDS
from planner.decisions import Node
from planner.strategies import Strategy
from planner.twins import merge, twins

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "planned": "what plan() chooses",
        "planned@75%": "the same within that part of the memory that it would take; any whole per cent",
        "replicated": "every array whole on every device",
        "data-parallel": "every axis splits the batch",
        "fsdp": "every axis splits the batch, parameters and optimiser state, which are gathered where they are used",
        "tensor-parallel": "every axis splits anything but the batch; comes out as Megatron writes it",
        "sequence-parallel": "every axis splits the sequence",
        "data x tensor": "the first axis splits the batch, the others anything else",
        "fsdp x tensor": "the same, the first axis splits parameters and optimiser state too",
        "expert-parallel": "every axis splits experts where there are experts, and the batch elsewhere",
        "xla-propagation": "inputs and state as planned, all else by XLA's own sharding propagation",
        "random": "every decision drawn at random, with the run's seed",
    }
)
"""By name. Within its description a hand-written layout is the best completion that the solver finds."""


DIMENSIONS: Mapping[str, Dimensions] = MappingProxyType(
    {
        "gpt": Dimensions(sequence={"inputs": 1, "targets": 1}),
        "gpt-scan": Dimensions(sequence={"inputs": 1, "targets": 1}),
        "moe": Dimensions(sequence={"inputs": 1, "targets": 1}, experts={"w_up": 0, "w_down": 0}),
    }
)
"""Of the workloads that have such."""


class NotApplicable(Exception):
    """There is no such layout of this function on this mesh; says why."""


def is_strategy(name: str) -> bool:
    return name in STRATEGIES or memory_part(name) is not None


def memory_part(name: str) -> float | None:
    """0.75 of `planned@75%`; None if the strategy's name says nothing of memory."""
    found = re.fullmatch(r"planned@(\d+)%", name)
    return int(found[1]) / 100 if found else None


def layout(planned: Plan, strategy: str, dimensions: Dimensions, seed: int) -> Plan:
    """The same function on the same mesh by another strategy; the plan itself for those that are made of it.

    Raises:
        NotApplicable: there is none.
    """
    match strategy:
        case "sequence-parallel":
            return _sequence_parallel(planned, dimensions)
        case "expert-parallel":
            return _expert_parallel(planned, dimensions)
        case "random":
            return random_plan(planned, seed)
        case name if name in planned.alternatives:
            return planned.alternatives[name]
        case name if name in ("planned", "xla-propagation") or memory_part(name) is not None:
            return planned
    raise NotApplicable(f"there is no {strategy} layout on a mesh of {dict(planned.choice.priced.cost.axis_sizes)}")


def _sequence_parallel(planned: Plan, dimensions: Dimensions) -> Plan:
    sequence = _factors(planned, dimensions.sequence, "sequence")
    sizes = planned.choice.priced.cost.axis_sizes
    recipe = Recipe(data=tuple(sizes))
    return _completed(
        planned, "sequence-parallel", lambda at, node, strategy: follows(recipe, strategy, sequence[at], node, sizes)
    )


def _expert_parallel(planned: Plan, dimensions: Dimensions) -> Plan:
    """As GShard does it: tokens go to where the experts are and come back.

    A node with an array that has experts and no batch splits the experts, one with an array that has the batch and no
    experts the batch, and where neither or both is so either of them.
    """
    experts = _factors(planned, dimensions.experts, "experts")
    priced = planned.choice.priced
    batch = batch_factors(priced.graph, priced.decisions, planned.choice.request.ties)
    sizes = priced.cost.axis_sizes
    recipe = Recipe(data=tuple(sizes))

    def allowed(at: int, node: Node, strategy: Strategy) -> bool:
        arrays = list(_arrays(node))
        experts_alone = any(experts[at] & have and not batch[at] & have for have in arrays)
        batch_alone = any(batch[at] & have and not experts[at] & have for have in arrays)
        on_experts = bool(experts[at]) and follows(recipe, strategy, experts[at], node, sizes)
        on_batch = follows(recipe, strategy, batch[at], node, sizes)
        if experts_alone and not batch_alone:
            return on_experts
        return on_batch or (on_experts and not (batch_alone and not experts_alone))

    return _completed(planned, "expert-parallel", allowed)


def _arrays(node: Node) -> Iterator[frozenset[int]]:
    """The factors of each array that a node lays out or reads."""
    patterns = (member.dims(pattern) for member in node.members for pattern in member.patterns)
    for dims in (*node.values, *patterns):
        yield frozenset(factor for dim in dims for factor in dim)


def _factors(planned: Plan, named: Mapping[str, int], what: str) -> list[frozenset[int]]:
    """For each node, the factors that the named dimensions of the arguments run through.

    Raises:
        NotApplicable: no argument has such a dimension.
    """
    priced = planned.choice.priced
    starts = [
        (position, named[name])
        for position, value in enumerate(priced.graph.body.inputs)
        if (name := value.name.rpartition("/")[2]) in named and named[name] < value.rank
    ]
    if not starts:
        raise NotApplicable(f"nothing says which dimension of which argument is the {what}")
    return factors_from(priced.graph, priced.decisions, starts)


def _completed(planned: Plan, name: str, allowed: Callable[[int, Node, Strategy], bool]) -> Plan:
    """The best plan of allowed strategies.

    Raises:
        NotApplicable: there is none.
    """
    priced = planned.choice.priced
    mask = [
        [allowed(at, node, strategy) for strategy in strategies]
        for at, (node, strategies) in enumerate(zip(priced.decisions.nodes, priced.strategies, strict=True))
    ]
    merged = merge(priced.problem, (*twins(priced.decisions), -1))
    picks = completed(merged, mask, CANDIDATE_SECONDS)
    if picks is None:
        raise NotApplicable(f"no assignment of the problem is {name}")
    return replace(planned, choice=planned.choice.instead(picks), strategy=name)
