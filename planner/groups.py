"""In which order the compiler lists the groups of devices of an all-reduce, which decides what goes with what as one.

XLA joins all-reduces that list the same groups alike (xla/service/all_reduce_key.cc). Over one axis of a mesh of two
that is always so; of three, `{{0,4},{1,5},{2,6},{3,7}}` and `{{0,4},{2,6},{1,5},{3,7}}` are the same groups in two
orders.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from planner.decisions import Member
from planner.graph import Op, aval_of
from planner.halves import PRODUCTS
from planner.layout import Layout, shard_elements
from planner.strategies import Strategy

_REDUCERS = {"prod": "product", "mul": "product", "max": "maximum", "min": "minimum", "and": "and", "or": "or"}


def reducer(op: Op) -> str:
    """What an op's all-reduce makes of the parts: their sum, unless the op's name ends otherwise."""
    return _REDUCERS.get(op.name.replace("-", "_").rpartition("_")[2], "sum")


def groups_order(member: Member, strategy: Strategy, axes: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes that an op's all-reduce over `axes` does not run over, that of the last groups listed first.

    The partitioner lists groups as the tiles of what is summed over: dimension by dimension, then the devices that hold
    the same. Of a product it takes first what both operands share, then what only the one has of which less would have
    to be brought to all, then the other's (`PartitionDot` in xla/service/spmd/dot_handler.cc).

    Args:
        sizes: of the mesh axes.
    """
    operands = list(zip(member.op.operands, map(member.dims, member.rule.operands), strict=True))
    summed = [(atom, dims) for atom, dims in operands if set(member.reduced) & set(itertools.chain(*dims))]
    layouts: list[Layout] = [strategy.layout(dims) for _, dims in summed]
    found = [axis for layout in layouts[-1:] for axis in itertools.chain(*layout)]
    if member.op.name in PRODUCTS and len(layouts) == 2:
        left, right = (set(itertools.chain(*layout)) for layout in layouts)
        shared = left & right
        parts = [math.prod(sizes[axis] for axis in own - shared) for own in (left, right)]
        nbytes = [
            shard_elements((aval := aval_of(atom)).shape, layout, sizes) * aval.dtype.itemsize
            for (atom, _), layout in zip(summed, layouts, strict=True)
        ]
        ordered = layouts if parts[0] * nbytes[1] < parts[1] * nbytes[0] else layouts[::-1]
        found = [axis for axis in itertools.chain(*layouts[0]) if axis in shared]
        found += itertools.chain(*ordered[0], *ordered[1])
    return tuple(axis for axis in dict.fromkeys([*found, *sizes]) if axis not in axes and sizes[axis] > 1)
