"""`Plan`: a chosen layout, what it will cost, and how to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from costmodel import CostModel
from planner.choose import Choice, build, given
from planner.emit import emit
from planner.errors import NoDevices
from planner.explain import explain
from planner.jitted import PlannedFunction, check_arguments, place
from planner.layout import Layout, to_spec
from planner.memory import MemoryCurve
from planner.mesh import auto_mesh, mesh_choices
from planner.perfetto import memory_curve, trace_json
from planner.predict import Prediction
from planner.problem import Problem
from planner.serialize import from_json, to_json
from planner.solve import Progress
from planner.specs import Request
from planner.trace import Traced


@dataclass(frozen=True, eq=False)
class Plan:
    """How a function is laid out over a mesh; `planner.plan` makes it.

    Attributes:
        timings: seconds in "trace", "build" and "solve".
        strategy: "planned", or the name of the hand-written layout that this is.
    """

    traced: Traced = field(repr=False)
    request: Request = field(repr=False)
    choice: Choice = field(repr=False)
    timings: Mapping[str, float]
    strategy: str

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh planned for, as given or as chosen."""
        return self.choice.mesh.mesh

    @property
    def prediction(self) -> Prediction:
        """The seconds, bytes per device and collectives that the model expects of one call."""
        return self.choice.prediction

    @property
    def status(self) -> str:
        """How the plan was found.

        "optimal": proven to be the best within the model. "feasible": time was up first, or devices share cores and a
        hand-written layout is predicted within 5 % of the best. "baseline": there was no time to search, this is the
        best of the hand-written layouts. "given": this is one that was asked for.
        """
        return self.choice.status

    @property
    def objective_seconds(self) -> float:
        """What the optimisation problem says the plan costs; `lower_bound_seconds` bounds this."""
        return self.choice.solution.cost

    @property
    def lower_bound_seconds(self) -> float:
        """No assignment of the optimisation problem costs less."""
        return self.choice.solution.lower_bound

    @property
    def gap(self) -> float:
        """How much of the plan's cost is not proven necessary, relative to it."""
        return self.choice.solution.gap

    @property
    def progress(self) -> tuple[Progress, ...]:
        """How the search went: each better plan and each better bound, with the seconds since it began."""
        return self.choice.progress

    @property
    def problem(self) -> Problem:
        """The optimisation problem, in the form of the IOPDDL contest (`.to_json()`)."""
        return self.choice.problem

    @cached_property
    def in_specs(self) -> Any:
        """PartitionSpecs, a pytree like the argument tuple."""
        return jax.tree.unflatten(self.traced.in_tree, [to_spec(layout) for layout in self._in_layouts])

    @cached_property
    def out_specs(self) -> Any:
        """PartitionSpecs, a pytree like the result."""
        return jax.tree.unflatten(self.traced.out_tree, [to_spec(layout) for layout in self._out_layouts])

    @property
    def in_shardings(self) -> Any:
        """NamedShardings on the plan's mesh, a pytree like the argument tuple."""
        return self._shardings(self.in_specs)

    @property
    def out_shardings(self) -> Any:
        """NamedShardings on the plan's mesh, a pytree like the result."""
        return self._shardings(self.out_specs)

    def _shardings(self, specs: Any) -> Any:
        return jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec),
            specs,
            is_leaf=lambda node: isinstance(node, PartitionSpec),
        )

    @cached_property
    def _in_layouts(self) -> list[Layout]:
        return [self.choice.assignment.home(value) for value in self.choice.priced.graph.whole.body.inputs]

    @cached_property
    def _out_layouts(self) -> list[Layout]:
        uses = self.choice.priced.output_uses
        return [() if use is None else self.choice.assignment.wanted(use) for use in uses]

    def jit(self) -> PlannedFunction:
        """The function compiled as planned; call it like `jax.jit(fn)`, or `.lower(...)` it.

        Raises:
            NoDevices: the plan was made for a mesh without devices.
        """
        mesh = self._device_mesh("run")
        return PlannedFunction(
            emit(self.choice.assignment, auto_mesh(mesh)),
            self.traced,
            mesh,
            [to_spec(layout) for layout in self._in_layouts],
            [to_spec(layout) for layout in self._out_layouts],
            self.request.donate_argnums,
        )

    def place(self, *args: Any) -> Any:
        """The arguments laid out as planned; those that are already stay where they are.

        Returns:
            the argument itself if there is one, else a tuple.

        Raises:
            PlanMismatch: the arguments are not of the example's shapes.
            NoDevices: the plan was made for a mesh without devices.
        """
        mesh = self._device_mesh("place arrays")
        check_arguments(self.traced, args)
        placed = [
            place(leaf, NamedSharding(mesh, to_spec(layout)))
            for leaf, layout in zip(jax.tree.leaves(args), self._in_layouts, strict=True)
        ]
        result = jax.tree.unflatten(self.traced.in_tree, placed)
        return result[0] if len(args) == 1 else tuple(result)

    def _device_mesh(self, what: str) -> Mesh:
        if not isinstance(self.mesh, Mesh):
            raise NoDevices(
                f"cannot {what}: the plan is for {self.mesh}, which has no devices here; plan for a "
                f"jax.sharding.Mesh of attached devices, or use plan.in_specs there"
            )
        return self.mesh

    @cached_property
    def alternatives(self) -> Mapping[str, Plan]:
        """The hand-written layouts as plans of their own, by name; those that the user's specs rule out are missing."""
        return {
            name: replace(self, choice=self.choice.instead(picks), strategy=name)
            for name, picks in self.choice.candidates.items()
        }

    def repriced(self, cost_model: CostModel) -> Plan:
        """The same program at another profile's prices: what the plan takes on other devices, or by newer figures.

        Raises:
            ValueError: the profile has fewer devices than the mesh.
        """
        mesh = next(mesh_choices(self.mesh, cost_model))
        priced = build(self.choice.priced.graph, self.choice.request, mesh)
        priced = replace(priced, resharders=priced.resharders.guided(self.choice.priced.resharders))
        choice = given(priced, self.choice.assignment.picks, self.choice.request, "given", 0.0, mesh)
        return replace(self, choice=choice)

    def explain(self) -> str:
        """What was chosen, what it costs, and what the runner-up costs, for people."""
        return explain(self)

    def to_trace(self, path: str | Path) -> None:
        """Writes the timeline that the model expects of one call, for Perfetto or chrome://tracing, as JSON.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(trace_json(self.choice.assignment, self.choice.request.donors, self.prediction))

    @cached_property
    def memory_over_time(self) -> MemoryCurve:
        """What the model expects in the memory of a device, from program point to program point."""
        return memory_curve(self.choice.assignment, self.choice.request.donors)

    def to_json(self) -> str:
        """The plan's choices; `Plan.from_json` makes it a plan again without searching."""
        return to_json(self.traced, self.request, self.choice)

    @staticmethod
    def from_json(
        text: str,
        fn: Callable[..., Any],
        example_args: Sequence[Any],
        mesh: Mesh | AbstractMesh,
        *,
        cost_model: CostModel | None = None,
    ) -> Plan:
        """The plan that `to_json` wrote, for the same function, argument shapes and mesh.

        Args:
            cost_model: what it is priced with, by default the mesh's devices' preset.

        Raises:
            PlanMismatch: the text is no plan, or was written for another function, other shapes or another mesh.
        """
        return Plan(*from_json(text, fn, example_args, mesh, cost_model), timings={}, strategy="planned")
