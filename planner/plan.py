"""`plan`: the way from a function to a chosen layout, stage by stage."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from costmodel.model import CostModel
from planner.choose import Limits, best_choice
from planner.jaxpr import build_graph
from planner.mesh import AnyMesh, mesh_choices
from planner.planned import Plan
from planner.progress import Stages
from planner.shorten import shorten
from planner.specs import read_request
from planner.trace import trace


def plan(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    mesh: AnyMesh,
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    donate_argnums: int | Sequence[int] = (),
    memory_limit: float | None = None,
    cost_model: CostModel | None = None,
    time_limit: float = 30.0,
    unknown: Literal["replicate", "error"] = "replicate",
    progress: bool = False,
) -> Plan:
    """Chooses how every array of a function is laid out over a mesh.

    Args:
        fn: a JAX function of pytrees of arrays.
        example_args: its arguments, as arrays or `jax.ShapeDtypeStruct`; only shapes and dtypes are looked at, nothing
            is allocated.
        mesh: a `jax.sharding.Mesh` or `AbstractMesh`, taken as it is; or a `costmodel.Topology`, a preset's name such
            as `"h100-dgx:4"` or `"v5e:16x16"`, or a number of the devices at hand, for which the shape is chosen too.
        in_specs, out_specs: pytree prefixes of `PartitionSpec` or None. What is given is kept; what is None is
            planned, and a result that continues an argument (a training state) comes out laid out as that argument.
        donate_argnums: arguments whose memory the results may take over, as in `jax.jit`.
        memory_limit: bytes per device that arguments, results and temporaries must fit in; by default the device's
            memory where it has its own.
        cost_model: prices; by default those of the preset for the devices.
        time_limit: seconds for the search; with 0 the best hand-written layout is returned.
        unknown: whether an op that no rule is known for is replicated, with a warning, or an error.
        progress: show on the terminal what is being done.

    Returns:
        A `Plan`; never worse, under the model, than data-parallel, FSDP and tensor-parallel layouts. Where devices
        share cores it is one of those if it is predicted within 5 % of the best.

    Raises:
        TraceError: `fn` does not trace with these arguments.
        InvalidSpec: a PartitionSpec or mesh that cannot be.
        NoDevices, UnknownPreset: `mesh` names no devices, or no machine.
        Infeasible: nothing fits the memory limit.
        UnknownPrimitive: an op without a rule, if `unknown="error"`.
        ValueError: a limit that is no positive number (`time_limit` may be 0), or `unknown` is something else.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import AbstractMesh
        >>> def layer(x, w): return jax.nn.relu(x @ w)
        >>> x, w = jax.ShapeDtypeStruct((4096, 512), jnp.float32), jax.ShapeDtypeStruct((512, 512), jnp.float32)
        >>> p = plan(layer, (x, w), AbstractMesh((8,), ("x",)))
        >>> p.in_specs
        (P('x',), P())
    """
    limits = Limits(memory_limit, time_limit, unknown)
    begun = time.perf_counter()
    with Stages(progress) as stages, _uncollected():
        stages.enter("tracing")
        traced = trace(fn, tuple(example_args))
        request = read_request(traced, in_specs, out_specs, donate_argnums)
        traced_at = time.perf_counter()
        stages.enter("building the graph")
        graph = shorten(build_graph(traced), request)
        choice = best_choice(graph, request.on(graph), mesh_choices(mesh, cost_model), limits, stages)
    timings = {"trace": traced_at - begun, **choice.timings}
    return Plan(traced, request, choice, timings, choice.strategy)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cyclic garbage, which would go over all that a plan is made of again and again: a third
    of the time for a hundred layers."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
