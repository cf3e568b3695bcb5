"""Plans as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from costmodel import CostModel
from planner.choose import Choice, build, given
from planner.errors import PlanMismatch
from planner.jaxpr import build_graph
from planner.mesh import mesh_choices
from planner.price import Priced
from planner.shorten import shorten
from planner.specs import Request, make_request
from planner.strategies import Strategy
from planner.trace import Traced, trace

FORMAT = 1
"""Of the JSON written here; a reader refuses others."""


def to_json(traced: Traced, request: Request, choice: Choice) -> str:
    """What was chosen, and what it was chosen for."""
    strategies = [choice.assignment.strategy(node) for node in range(len(choice.priced.strategies))]
    document = {
        "format": FORMAT,
        **_about_function(traced),
        **_about_nodes(choice.priced),
        "in_specs": [_plain(spec) for spec in request.in_specs],
        "out_specs": [_plain(spec) for spec in request.out_specs],
        "donate_argnums": list(request.donate_argnums),
        "status": choice.status,
        "lower_bound_seconds": choice.solution.lower_bound,
        "strategies": [[strategy.axes, strategy.scatter] for strategy in strategies],
    }
    return json.dumps(document)


def from_json(
    text: str,
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    mesh: Mesh | AbstractMesh,
    cost_model: CostModel | None = None,
) -> tuple[Traced, Request, Choice]:
    """What `to_json` wrote, for the same function, shapes and mesh.

    Raises:
        PlanMismatch: the text is no plan, or one for something else; says what differs.
    """
    document = _read(text)
    traced = trace(fn, tuple(example_args))
    _compare(document, _about_function(traced))
    request = make_request(traced, document["in_specs"], document["out_specs"], document["donate_argnums"])
    choice = next(mesh_choices(mesh, cost_model))
    graph = shorten(build_graph(traced), request)
    here = request.on(graph)
    priced = build(graph, here, choice)
    _compare(document, _about_nodes(priced))
    picks = (*_picks(priced, document["strategies"]), 0)
    return traced, request, given(priced, picks, here, document["status"], document["lower_bound_seconds"], choice)


def _read(text: str) -> dict[str, Any]:
    """The document, its specs and strategies as Python has them."""
    try:
        document = json.loads(text)
        found = document["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise PlanMismatch(f"this is no plan that Plan.to_json wrote: {error!r}") from error
    if found != FORMAT:
        raise PlanMismatch(f"the plan has format {found!r}, this version reads {FORMAT}; plan again")
    try:
        specs = {side: tuple(map(_spec, document[side])) for side in ("in_specs", "out_specs")}
        strategies = [_strategy(*plain) for plain in document["strategies"]]
        return {**document, **specs, "strategies": strategies, "status": str(document["status"])}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PlanMismatch(f"the plan was changed after Plan.to_json wrote it: {error!r}; plan again") from error


def _picks(priced: Priced, written: Sequence[Strategy]) -> list[int]:
    """Which of each node's strategies were written down."""
    if len(written) != len(priced.strategies):
        raise PlanMismatch(f"the plan has {len(written)} strategies for {len(priced.strategies)} ops; plan again")
    for node, strategies, strategy in zip(priced.decisions.nodes, priced.strategies, written, strict=True):
        if strategy not in strategies:
            raise PlanMismatch(f"the plan's strategy for {node.name}, {strategy}, is not known here; plan again")
    return [strategies.index(strategy) for strategies, strategy in zip(priced.strategies, written, strict=True)]


def _compare(document: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    for what, value in json.loads(json.dumps(here)).items():
        if document.get(what) != value:
            raise PlanMismatch(
                f"the plan was made for other {what}: {_short(document.get(what))}, here they are {_short(value)}; "
                f"plan again"
            )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 200 else text[:200] + "…"


def _about_function(traced: Traced) -> Mapping[str, Any]:
    arguments = zip(traced.in_paths, traced.in_avals, strict=True)
    return {
        "functions": traced.name,
        "arguments": [[path, list(aval.shape), str(aval.dtype)] for path, aval in arguments],
    }


def _about_nodes(priced: Priced) -> Mapping[str, Any]:
    return {
        "mesh axes": dict(priced.cost.axis_sizes),
        "ops": [[node.kind, node.name, list(node.sizes)] for node in priced.decisions.nodes],
    }


def _plain(spec: PartitionSpec | None) -> Any:
    return None if spec is None else list(spec)


def _spec(plain: Any) -> PartitionSpec | None:
    return None if plain is None else PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in plain))


def _strategy(axes: Any, scatter: Any) -> Strategy:
    return Strategy(tuple(map(tuple, axes)), scatter and (scatter[0], tuple(scatter[1])))
