"""Memory that XLA's compilers take beside operands and results, as their buffer assignments show it.

Most of it is the one for CPUs; others reduce in place.
"""

from __future__ import annotations

import math

from costmodel.model import MeshCost
from planner.decisions import Member
from planner.graph import Op, Value
from planner.layout import shard_elements, shard_shape
from planner.opcost import inner_collectives
from planner.rearrange import rearranged
from planner.reshard import Step
from planner.stages import STAGED, stages
from planner.strategies import Strategy

INDEX_BYTES = 4
"""Of the positions within a window that the gradient of max pooling writes out."""


def step_scratch_bytes(step: Step, nbytes: float, cost: MeshCost) -> float:
    """Of one step of resharding to an array of `nbytes`: a strided all-gather arrives transposed and is copied."""
    return nbytes if step.kind == "all-gather" and step.strided and cost.backend == "cpu" else 0.0


def op_scratch_bytes(member: Member, strategy: Strategy, cost: MeshCost) -> float:
    """What an op needs while it runs."""
    if cost.backend == "tpu" or member.op.name != "select_and_scatter_add":
        return 0.0
    return _window_gradient_bytes(member, strategy, cost)


def op_beside_bytes(member: Member, strategy: Strategy, cost: MeshCost) -> float:
    """All that there is for an op's sake but its operands and results.

    That is what it needs itself, operands that are copied into another order, what it makes in steps, and what is
    reduced on one device until the all-reduce is through.
    """
    if cost.backend != "cpu":
        return op_scratch_bytes(member, strategy, cost)
    partial = (one.sent_bytes for one in inner_collectives(member, strategy, cost) if one.kind == "all-reduce")
    copied = (
        shard_elements(value.shape, strategy.layout(member.dims(member.rule.operands[position])), cost.axis_sizes)
        * value.itemsize
        for position in rearranged(member.op)
        if isinstance(value := member.op.operands[position], Value)
    )
    made = 0.0
    if member.op.name in STAGED:
        result = member.op.results[0]
        shape = shard_shape(result.shape, strategy.layout(member.dims(member.rule.results[0])), cost.axis_sizes)
        made = sum(math.prod(each) for shapes in stages(member.op, shape) for each in shapes) * result.itemsize
    return max(partial, default=0.0) + sum(copied) + made + op_scratch_bytes(member, strategy, cost)


def _window_gradient_bytes(member: Member, strategy: Strategy, cost: MeshCost) -> float:
    """The gradient of max pooling: two padded copies of the operand, and the indices of both arrays per dimension.

    On a GPU what is added up is scattered (xla/service/select_and_scatter_expander.cc): for each window its largest
    value, in float32, and the indices where it was.
    """
    op = member.op
    pooled, operand = (_local_elements(op, position, member, strategy, cost) for position in (0, 1))
    whole = op.operands[1]
    assert isinstance(whole, Value), "pooling is of arrays"
    indices = whole.rank * INDEX_BYTES
    if cost.backend == "gpu":
        return float(pooled * (indices + 4))
    padded = math.prod(
        1 + (low + high) / size for size, (low, high) in zip(whole.shape, op.params["padding"], strict=True)
    )
    return operand * padded * (indices + 2 * whole.itemsize) + pooled * indices


def _local_elements(op: Op, position: int, member: Member, strategy: Strategy, cost: MeshCost) -> int:
    value = op.operands[position]
    assert isinstance(value, Value), "pooling is of arrays"
    return shard_elements(value.shape, strategy.layout(member.dims(member.rule.operands[position])), cost.axis_sizes)
