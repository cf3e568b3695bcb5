"""One run, in a process of its own: plan, compile, time, check; as a row and what has no place in one."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from costmodel import CostModel
from costmodel.cpus import processor
from executor import Audit, CompiledCollective, calibrate, check
from executor.audit import compile_watched, held_against
from executor.calibrate import COLLECTIVE_BYTES as ALL_BYTES
from executor.race import Program, lower
from experiments import arguments
from experiments.arguments import Target
from experiments.baselines import NotApplicable, layout, memory_part
from experiments.results import revision
from experiments.runner import details, turns
from experiments.runner.columns import KINDS, QUANTILES, column_of
from experiments.runner.trial import Trial
from planner import Collective, Infeasible, Plan, ProfileError, plan

CALIBRATION_ROUNDS = 3
COLLECTIVE_BYTES = ALL_BYTES[:-1]
"""Per device; no workload of size `test` communicates more at once."""

REFERENCE_SIZE, REFERENCE_CALLS = 256, 15
"""Rows of the matrices that are multiplied to see how fast the machine is at the moment, and how often."""


@dataclass(frozen=True)
class Findings:
    """What a run has found so far; where it fails, that much is kept."""

    row: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


def measure(trial: Trial) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Runs a trial; on CPU devices, unless JAX was told otherwise.

    Returns:
        the columns that only the run itself knows, and the details.
    """
    start_devices(trial.mesh)
    found = Findings()
    found.row.update(conditions(trial), status="ok")
    try:
        run(trial, found)
    except NotApplicable as error:
        found.row.update(status="not applicable", error=str(error))
    except Infeasible as error:
        found.row.update(status="infeasible", error=str(error))
    except Exception as error:
        spent = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
        found.row.update(status="out of memory" if spent else "error", error=f"{type(error).__name__}: {error}")
    found.row["host_peak_bytes"] = host_peak_bytes()
    return found.row, found.details


def start_devices(mesh: str = "") -> None:
    """To be called before anything touches a device."""
    if not jax.config.values["jax_platforms"]:
        jax.config.update("jax_platforms", "cpu")
    arguments.offer_cpu_devices(mesh)


def run(trial: Trial, found: Findings) -> None:
    """Plans, and where there are devices compiles, times and checks.

    Raises:
        NotApplicable: there is no such layout.
    """
    target = arguments.target(trial.workload, trial.size)
    free, chosen = planned(trial, target)
    other = layout(chosen, trial.strategy, trial.dimensions, trial.seed)
    by_plan = trial.strategy != "xla-propagation"
    found.row.update(about_mesh(other))
    found.details.update({"function": target.description, **details.of_plan(other)} if by_plan else {})
    found.row.update(about_plan(other) if by_plan else {})
    if not isinstance(other.mesh, Mesh):
        found.row["status"] = "predicted" if by_plan else "not applicable"
        return
    lowered = lower(other) if by_plan else lower_propagated(other, target)
    begun = time.perf_counter()
    compiled, rematerializations = compile_watched(lowered)
    found.row.update(compile_seconds=time.perf_counter() - begun, rematerializations=rematerializations)
    held = held_against(other, compiled, rematerializations)
    found.row.update(about_program(held), **({"fidelity": held.fidelity} if by_plan else {}))
    found.details["compiled"] = details.collectives(held.compiled)
    args = target.make_args(jax.random.key(trial.seed))
    program = Program((trial.strategy,), other, compiled, found.row["compile_seconds"])
    reference_seconds = reference(other.mesh)
    before = reference_seconds()
    samples, against_plan = turns.timed(trial, program, lowered, held.compiled_peak_bytes, free, args)
    beside = float(np.mean([before, reference_seconds()]))
    found.row.update(about_samples(samples), reference_seconds=beside, **against_plan)
    found.details["samples"] = list(samples)
    if trial.check:
        checked = check(other, args, program=compiled)
        numerics = "ok" if checked.passed else f"beyond tolerance in {checked.worst}"
        found.row.update(largest_error=checked.error, numerics=numerics)


def reference(mesh: Mesh) -> Callable[[], float]:
    """Compiles a fixed computation on every device of a mesh; what it returns gives the median time of some calls.

    That differs where the machine's speed does.
    """
    shape = (mesh.devices.size, REFERENCE_SIZE, REFERENCE_SIZE)
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    matrices = jax.device_put(np.full(shape, 1 / REFERENCE_SIZE, np.float32), sharding)
    product = jax.jit(lambda x: x @ x @ x).lower(matrices).compile()

    def seconds() -> float:
        times = []
        for _ in range(REFERENCE_CALLS):
            begun = time.perf_counter()
            jax.block_until_ready(product(matrices))
            times.append(time.perf_counter() - begun)
        return float(np.median(times))

    return seconds


def planned(trial: Trial, target: Target) -> tuple[Plan, Plan]:
    """The plan, and the one within a part of its memory where that is wanted, or else the same.

    Where another layout is wanted that no device will run, there is no search.
    """
    sizes = arguments.shape(trial.mesh)
    on = arguments.device_mesh(sizes) if sizes else trial.mesh
    model = CostModel.read(trial.profile) if trial.profile is not None and sizes else None
    part = memory_part(trial.strategy)
    searches = bool(sizes) or part is not None or trial.strategy in ("planned", "xla-propagation")

    def within(memory_limit: float | None) -> Plan:
        return plan(
            target.fn,
            target.example_args,
            on,
            donate_argnums=target.donate_argnums,
            cost_model=model,
            memory_limit=memory_limit,
            time_limit=trial.plan_seconds if searches else 0.0,
        )

    free = within(None)
    return free, free if part is None else within(part * free.prediction.peak_bytes)


def lower_propagated(planned: Plan, target: Target) -> jax.stages.Lowered:
    """The function with the plan's layouts on arguments and state alone; XLA propagates them through all else."""
    results = [
        sharding if tie is not None else None
        for sharding, tie in zip(jax.tree.leaves(planned.out_shardings), planned.request.ties, strict=True)
    ]
    jitted = jax.jit(
        target.fn,
        in_shardings=planned.in_shardings,
        out_shardings=jax.tree.unflatten(planned.traced.out_tree, results),
        donate_argnums=target.donate_argnums,
    )
    return jitted.lower(*target.example_args)


def about_mesh(plan: Plan) -> dict[str, Any]:
    sizes = plan.choice.priced.cost.axis_sizes
    return {
        "mesh_axes": " ".join(f"{axis}={size}" for axis, size in sizes.items()),
        "devices": int(np.prod([*sizes.values()])),
        "device_kind": plan.choice.priced.cost.device.kind,
    }


def about_plan(plan: Plan) -> dict[str, Any]:
    prediction = plan.prediction
    found: dict[str, Any] = {
        "predicted_step_seconds": prediction.step_seconds,
        "predicted_compute_seconds": prediction.compute_seconds,
        "predicted_communication_seconds": prediction.communication_seconds,
        "predicted_overhead_seconds": prediction.overhead_seconds,
        "predicted_peak_bytes": prediction.peak_bytes,
        "predicted_communicated_bytes": prediction.communicated_bytes,
        "solver_status": plan.status,
        **{f"{stage}_seconds": seconds for stage, seconds in plan.timings.items()},
        **bytes_by_kind(prediction.collectives, "predicted"),
    }
    if plan.strategy == "planned":
        found |= {"solver_gap": plan.gap, "solver_lower_bound_seconds": plan.lower_bound_seconds}
    return found


def about_program(held: Audit) -> dict[str, Any]:
    return {
        "compiled_peak_bytes": held.compiled_peak_bytes,
        "compiled_communicated_bytes": held.compiled_bytes,
        **bytes_by_kind(held.compiled, "compiled"),
    }


def about_samples(samples: tuple[float, ...]) -> dict[str, Any]:
    return {
        "measured_step_seconds": float(np.median(samples)),
        "measured_min_seconds": min(samples),
        **{f"measured_p{each:02}_seconds": float(np.percentile(samples, each)) for each in QUANTILES},
        "calls": len(samples),
    }


def bytes_by_kind(collectives: Iterable[Collective | CompiledCollective], side: str) -> dict[str, float]:
    """Bytes per device and call, in the columns for them."""
    found = {column_of(kind, side): 0.0 for kind in KINDS}
    for one in collectives:
        if one.kind in KINDS:
            found[column_of(one.kind, side)] += one.bytes * one.count
    return found


def conditions(trial: Trial) -> dict[str, Any]:
    """On what the run runs, and with which versions."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "cost_model": "preset" if trial.profile is None or not arguments.shape(trial.mesh) else "calibrated",
        "python_version": platform.python_version(),
        "jax_version": jax.__version__,
        "jaxlib_version": version("jaxlib"),
        "ortools_version": version("ortools"),
        "meshwright_version": _own_version(),
        "git_revision": revision(),
    }


def _own_version() -> str:
    try:
        return version("meshwright")
    except PackageNotFoundError:  # a checkout that is not installed
        return ""


def host_peak_bytes() -> float:
    """What this process took of the host's memory at most."""
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def calibrate_into(path: Path) -> None:
    """Measures the devices at hand, and writes the profile; the file is there as a whole or not at all.

    A profile that is there already stays, unless it is another version's.
    """
    with suppress(ProfileError):
        CostModel.read(path)
        return
    start_devices()
    model = calibrate(jax.devices(), rounds=CALIBRATION_ROUNDS, collective_bytes=COLLECTIVE_BYTES)
    draft = path.with_suffix(".new")
    draft.write_text(model.to_json())
    draft.replace(path)
