"""What one op costs on one device under any strategy: its work, and the collectives that the compiler puts in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from costmodel.device import OPERANDS_IN_TILES
from costmodel.model import MeshCost
from planner.decisions import Member
from planner.graph import Atom, Op, Value, aval_of
from planner.halves import sent_itemsize
from planner.layout import Layout, shard_count
from planner.rearrange import stride_and_span
from planner.rules.rule import Halo
from planner.strategies import Dims, Strategy
from planner.work import SLICES, Work, read_bytes, written_bytes

Amount = float | np.ndarray
"""One for all strategies, or `[S]`, one for each."""


def shard_counts(strategies: Sequence[Strategy], sizes: Mapping[str, int]) -> np.ndarray:
    """`[S, factors]` into how many shards each strategy splits each factor."""
    return np.array([[shard_count(axes, sizes) for axes in strategy.axes] for strategy in strategies], dtype=float)


def compute_seconds(cost: MeshCost, member: Member, work: Work, counts: np.ndarray) -> np.ndarray:
    """`[S]` seconds of an op on one device.

    Args:
        counts: `[S, factors]` shards of each factor of its node.
    """
    op, rule = member.op, member.rule
    shards = counts[:, list(member.factors)].prod(axis=1)
    read, written = partial(_read_by_a_device, member, counts), partial(_written_by_a_device, member, work, counts)
    moved, cold_written = read(work.reads) + written(work.writes), written(work.cold_writes)
    cold = read(work.cold_reads) + cold_written
    if work.matmul is not None:
        split = (counts[:, factors].prod(axis=1) for factors in _sides(member))
        rows, inner, columns = (size / parts for size, parts in zip(work.matmul, split, strict=True))
        seconds = _product_seconds(cost, work, rows, inner, columns, work.flops / shards, moved)
        seconds = seconds + cost.product_fetch_seconds(cold, work.crowding, cold_written)
        for position, row in work.rearranged.items():
            operand, dims = op.operands[position], member.dims(rule.operands[position])
            nbytes, (stride, span) = _local_bytes(operand, dims, counts), _local_stride(operand, dims, row, counts)
            itemsize = aval_of(operand).dtype.itemsize
            seconds = seconds + _copied_seconds(cost, nbytes, itemsize, stride, span)
        return seconds
    elements = _divided(work.elements, shards)
    seconds = cost.compute_seconds(work.flops / shards, moved, work.dtype, elements, cold, work.crowding, cold_written)
    if work.turned:
        lying = _local_stride(op.operands[0], member.dims(rule.operands[0]), work.turned, counts)
        seconds = seconds + _turning_seconds(cost, op, *lying) / shards
    return seconds + _launch_seconds(cost, work)


def member_work(member: Member, work: Work) -> tuple[object, ...]:
    """What the seconds of an op follow from, beside its node's strategies: ops for which it is equal cost alike."""
    op, rule = member.op, member.rule
    turned = (0,) if work.turned else ()
    update = () if work.update is None else (work.update,)
    operands = [(p, op.operands[p], rule.operands[p]) for p in (*work.reads, *work.rearranged, *turned, *update)]
    results = [(p, op.results[p], rule.results[p]) for p in ((0,) if op.name in SLICES else work.writes)]
    arrays = tuple(
        (position, value.shape, value.itemsize, member.dims(dims))
        for position, value, dims in (*operands, *results)
        if isinstance(value, Value)
    )
    sides = None if work.matmul is None else tuple(map(tuple, _sides(member)))
    cold = work.cold_reads, work.cold_writes, work.crowding
    counts = (len(work.reads), work.writes, work.update, *work.rearranged.values(), work.turned, work.flops, cold)
    product = work.matmul, work.window, work.transposed_itemsize, sides
    return op.name, work.dtype, member.factors, arrays, product, counts, *sorted(work.elements.items())


def whole_seconds(cost: MeshCost, op: Op, work: Work) -> float:
    """Seconds of one op that a device runs on whole arrays."""
    moved = _bytes_moved(op, work)
    written = sum(written_bytes(op, position, work.update) for position in work.cold_writes)
    cold = sum(read_bytes(op, position) for position in work.cold_reads) + written
    if work.matmul is not None:
        seconds = float(_product_seconds(cost, work, *work.matmul, work.flops, moved))
        seconds += float(cost.product_fetch_seconds(cold, work.crowding, written))
        for position, row in work.rearranged.items():
            if isinstance(atom := op.operands[position], Value):
                stride, span = _stride(atom, row)
                seconds += float(_copied_seconds(cost, atom.nbytes, atom.itemsize, stride, span))
        return seconds
    total = cost.compute_seconds(work.flops, moved, work.dtype, work.elements, cold, work.crowding, written)
    if work.turned:
        total = total + _turning_seconds(cost, op, *_stride(op.operands[0], work.turned))
    return float(total) + _launch_seconds(cost, work)


def _copied_seconds(cost: MeshCost, nbytes: Amount, itemsize: int, stride: Amount, span: Amount) -> np.ndarray:
    """Seconds of an operand's copy in another order, tile by tile as far as only this is known."""
    return cost.rearrange_seconds(nbytes, itemsize, stride, span, in_tiles=True, near_share=OPERANDS_IN_TILES)


def _turning_seconds(cost: MeshCost, op: Op, stride: Amount, span: Amount) -> Amount:
    """Seconds of the whole of a transposition, beside moving its elements."""
    result = op.results[0]
    return math.prod(result.shape) * cost.device.rearranging_seconds(stride, result.itemsize, span)


def _divided(elements: Mapping[str, float], shards: np.ndarray) -> Mapping[str, np.ndarray]:
    return {name: count / shards for name, count in elements.items()}


def _product_seconds(
    cost: MeshCost,
    work: Work,
    rows: Amount,
    inner: Amount,
    columns: Amount,
    flops: Amount,
    nbytes: Amount,
) -> np.ndarray:
    """Seconds of a contraction or convolution of these sizes, as many of them as make the flops."""
    batch = flops / np.maximum(1.0, 2.0 * rows * inner * columns)
    return cost.matmul_seconds(work.dtype, rows, inner, columns, batch, nbytes, work.transposed_itemsize, work.window)


def _launch_seconds(cost: MeshCost, work: Work) -> float:
    """An op inside a fused loop is not launched on its own."""
    return cost.device.launch_seconds if work.writes else 0.0


def _bytes_moved(op: Op, work: Work) -> float:
    read = sum(read_bytes(op, position) for position in work.reads)
    return read + sum(written_bytes(op, position, work.update) for position in work.writes)


def _sides(member: Member) -> tuple[list[int], list[int], list[int]]:
    """The factors of a contraction's rows, of what it sums over, and of its columns."""
    left, right, result = (
        {name for dim in pattern for name in dim} for pattern in (*member.rule.operands[:2], member.rule.results[0])
    )
    return tuple(  # type: ignore[return-value]
        [factor for name, factor in member.factor.items() if name in names]
        for names in ((left & result) - right, (left & right) - result, (right & result) - left)
    )


def calls(around: Sequence[Op]) -> float:
    """How often an op inside these ops runs in one call of the program."""
    return math.prod(op.trips / (len(op.bodies) if op.name == "cond" else 1) for op in around)


def halo_factors(member: Member) -> tuple[tuple[int, Halo], ...]:
    """The factors over which neighbours exchange elements, with how many from before and from after."""
    return tuple((member.factor[name], halo) for name, halo in member.rule.permutation.items() if name in member.factor)


class Exchange(NamedTuple):
    """A collective on a value, once.

    Attributes:
        bytes: per device, of the larger side.
        sent_bytes: the same as devices send it to each other.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: float
    sent_bytes: float

    @classmethod
    def of(cls, value: Value, kind: str, axes: tuple[str, ...], nbytes: float, cost: MeshCost) -> Exchange:
        return cls(kind, axes, nbytes, nbytes * sent_itemsize(value, cost.backend) / value.itemsize)


def inner_collectives(member: Member, strategy: Strategy, cost: MeshCost) -> list[Exchange]:
    """The collectives that the compiler puts inside an op.

    The CPU partitioner makes an all-reduce per contracted factor, the others one for all.
    """
    found: list[Exchange] = []
    if not member.rule.reduction and not member.rule.permutation:
        return found
    sizes = cost.axis_sizes
    groups = [(factor,) for factor in member.reduced] if cost.backend == "cpu" else [member.reduced]
    for factors in groups:
        axes = strategy.axes_on(factors)
        if not axes:
            continue
        kind = "all-reduce" if strategy.scatter is None else "reduce-scatter"
        for result, pattern in zip(member.op.results, member.rule.results, strict=True):
            nbytes = _shard_bytes(result, strategy.layout(member.dims(pattern)), sizes)
            found.append(Exchange.of(result, kind, axes, nbytes, cost))
    for factor, halo in halo_factors(member):
        axes = strategy.axes[factor]
        if not axes:
            continue
        for value, pattern in zip(member.op.operands, member.rule.operands, strict=True):
            dims = member.dims(pattern)
            for dim, factors in enumerate(dims):
                if isinstance(value, Value) and factor in factors:
                    layout = strategy.layout(dims)
                    rows = value.shape[dim] // shard_count(layout[dim], sizes)
                    row_bytes = _shard_bytes(value, layout, sizes) / rows
                    found += [
                        Exchange.of(value, "collective-permute", axes, row_bytes * count, cost)
                        for count in halo
                        if count
                    ]
    return found


def _shard_bytes(value: Value, layout: Layout, sizes: Mapping[str, int]) -> float:
    return value.nbytes / shard_count([axis for dim in layout for axis in dim], sizes)


def _read_by_a_device(member: Member, counts: np.ndarray, reads: Sequence[int]) -> np.ndarray:
    """`[S]` bytes of an op's operands at these positions."""
    op, rule = member.op, member.rule
    nbytes = np.zeros(len(counts))
    for position in reads:
        held = _local_bytes(op.operands[position], member.dims(rule.operands[position]), counts)
        if op.name in SLICES:
            held = np.minimum(held, _local_bytes(op.results[0], member.dims(rule.results[0]), counts))
        nbytes += held
    return nbytes


def _written_by_a_device(member: Member, work: Work, counts: np.ndarray, writes: Sequence[int]) -> np.ndarray:
    """`[S]` bytes of an op's results at these positions; see `Work.update`."""
    op, rule = member.op, member.rule
    nbytes = np.zeros(len(counts))
    for position in writes:
        if work.update is None:
            nbytes += _local_bytes(op.results[position], member.dims(rule.results[position]), counts)
        else:
            nbytes += _local_bytes(op.operands[work.update], member.dims(rule.operands[work.update]), counts)
    return nbytes


def _local_bytes(value: object, dims: Dims, counts: np.ndarray) -> np.ndarray:
    assert isinstance(value, Value)
    factors = [factor for dim in dims for factor in dim]
    return value.nbytes / counts[:, factors].prod(axis=1)


def _local_stride(atom: Atom, dims: Dims, row: Sequence[int], counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`[S]` bytes from one element to the next along the last of the dimensions, and over all of them."""
    stride, span = _stride(atom, row)
    behind = [factor for each in dims[row[-1] + 1 :] for factor in each]
    along = [factor for dim in row for factor in dims[dim]]
    return stride / counts[:, behind].prod(axis=1), span / counts[:, [*along, *behind]].prod(axis=1)


def _stride(atom: Atom, row: Sequence[int]) -> tuple[float, float]:
    """The same of the whole array."""
    itemsize = atom.itemsize if isinstance(atom, Value) else aval_of(atom).dtype.itemsize
    return stride_and_span(aval_of(atom).shape, row, itemsize)
