"""Which operands of products are copied tile by tile: as XLA's CPU compiler emits their loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax
from jax.sharding import AbstractMesh

from costmodel import CostModel, preset
from costmodel.device import FAR, OPERANDS_IN_TILES, REARRANGING
from costmodel.strides import spread_bytes
from planner import plan

SHAPE = (8, 64, 1024)
MESH = AbstractMesh((8,), ("x",))
SECONDS = dict(zip((*REARRANGING, *FAR), (0.0, 3e-9, 4e-9, 5e-9, 6e-9, 12e-9, 40e-9), strict=True))


@pytest.mark.parametrize(
    ("operand", "tiled", "arrays"),
    [
        (lambda x, y: x, True, 1),
        (lambda x, y: x * y, True, 2),
        (lambda x, y: jnp.tanh(x.reshape(512, 1024)).reshape(SHAPE), True, 1),
        (lambda x, y: 2 * x, False, 1),
        (lambda x, y: 2 * x * y, False, 2),
        (lambda x, y: x + y[0, 0], False, 1),
        (lambda x, y: jnp.concatenate([x[:4], y[:4]]), False, 1),
        (lambda x, y: x[:, ::2].repeat(2, 1), False, 1),
    ],
    ids=["as it is", "product", "function", "scalar", "two and a scalar", "row", "joined", "repeated"],
)
def test_a_copy_is_made_in_tiles_where_nothing_in_its_loop_is_repeated_or_sliced(
    operand: Callable[[Array, Array], Array], tiled: bool, arrays: int, tmp_path: Path
) -> None:
    """The compiler's modules bear the name of the emitter; a plan pays more for what has none, and only then.

    The lines of all arrays that are read so want places in the cache at once.
    """

    def fn(x: Array, y: Array, z: Array) -> Array:
        return lax.dot_general(operand(x, y), z, (((0, 1), (0, 1)), ((), ())))

    args = (*[jax.ShapeDtypeStruct(SHAPE, jnp.float32)] * 2, jax.ShapeDtypeStruct((*SHAPE[:2], 32), jnp.float32))
    jax.jit(fn).lower(*args).compile({"xla_dump_to": str(tmp_path), "xla_cpu_use_fusion_emitters": True})
    copies = [path.name for path in tmp_path.glob("*copy*no-opt.ll")]
    assert ["__compute_module_" in name for name in copies] == [tiled]

    topology = replace(preset("cpu:8"), waits=None)  # no waiting, which depends on what is computed
    others = {name: each for name, each in topology.device.element_seconds.items() if name not in SECONDS}
    device = replace(topology.device, element_seconds=others | SECONDS)
    overheads = [
        plan(fn, args, MESH, cost_model=CostModel(one)).alternatives["replicated"].prediction.overhead_seconds
        for one in (
            replace(topology, device=replace(device, element_seconds=each)) for each in (device.element_seconds, others)
        )
    ]
    stride = 4 * SHAPE[-1]
    span = math.prod(SHAPE[:-1]) * stride
    in_tiles = float(device.rearranging_seconds(stride, 4, span, True, OPERANDS_IN_TILES))
    beside = (arrays - 1) * float(spread_bytes(stride, span))
    near = float(device.rearranging_seconds(stride, 4, 0.0))
    far = float(device.rearranging_seconds(stride, 4, span, beside_bytes=beside)) - near
    more = 0.0 if tiled else math.prod(SHAPE) * (near + arrays * far - in_tiles)
    assert overheads[0] - overheads[1] == pytest.approx(more, abs=1e-9)
