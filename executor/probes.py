"""What `calibrate` times: operations in a loop on the devices, and whole calls.

A `LoopProbe` is repeated on the device and timed at two loop lengths; the difference leaves dispatch out. A `CallProbe`
is a compiled function that is called as a plan is, with arrays that are as cold as in a program of some size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from costmodel.compute import selection_comparisons
from executor.probe_sizes import Layer, ProbeSizes

Arrays = tuple[jax.Array, ...]

WAITED_AFTER = (1, 4, 16, 48)
"""How many small products are computed before devices wait for each other: from a third to some twenty milliseconds."""
PARTED_BYTES = 2**14
"""Of the all-gathers that tell what groups wait that have come apart."""
TRANSPOSED = "gradient of weights"
PRODUCTS = ("results", "gradient of inputs", TRANSPOSED)
"""Of a layer in training; in the last the left operand is transposed."""
MATRIX_TYPES = ("float32", "bfloat16")
SHORT_LOOP, MET_ROUNDS = 4, 80
"""Rounds of a long loop at least, and of one that tells what arrays take after devices have met."""

MANY_ARRAYS = 64
"""Arguments, or results, of the calls that tell what one more takes."""
STREAMED = 4
"""How many such arrays a call goes through."""
ROUNDS = 256
"""Of a loop around next to nothing."""
ELSEWHERE = "written elsewhere"
"""The name of the probe of an array that is read, and written to other memory."""
SELECTED = 8
"""Of each row, the largest."""
WINDOW = 3
"""Of the convolution and the pooling: as high as wide."""


@dataclass(frozen=True)
class LoopProbe:
    """`step` maps a device's arrays, of these shapes and this type, to arrays like them; at first they are around one.

    Collectives are along the mesh axis "group" of so many devices; in a `partitioned` step the arrays are those of all
    devices, along their first dimension, and the compiler makes the collectives out of its constraints. What is timed
    is in it so many `repetitions`; its long loop has so many `rounds` at least. What tells of a class of elements works
    on so many `elements` of that class, and moves so many bytes; of a collective those are what the kernel writes that
    makes its operand.
    """

    step: Callable[..., Arrays]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"
    group_size: int = 1
    repetitions: int = 1
    partitioned: bool = False
    elements: float = 1.0
    moved_bytes: float = 0.0
    rounds: int = SHORT_LOOP


@dataclass(frozen=True)
class CallProbe:
    """A function of a list of a device's arrays.

    Attributes:
        shape: of each array.
        arrays: how many.
        elements: how many elements count, on one device in one call.
        kept: whether the arrays stay the caller's; else the results take their memory.
        read: whether they are read alone, for results that are smaller.
    """

    fn: Callable[[Sequence[jax.Array]], Any]
    shape: tuple[int, ...]
    arrays: int
    elements: float = 0.0
    kept: bool = False
    read: bool = False

    @property
    def moved_bytes(self) -> float:
        """That go through a device's memory: the arrays, and results where they are as large."""
        return (4.0 if self.read else 8.0) * self.arrays * math.prod(self.shape)

    @property
    def cold_bytes(self) -> float:
        """Of them, those that a call touches first: the arrays, and results that are not in their place."""
        return 4.0 * self.arrays * math.prod(self.shape) + self.cold_written

    @property
    def cold_written(self) -> float:
        """Of them, those that are written and not read."""
        return 4.0 * self.arrays * math.prod(self.shape) if self.kept and not self.read else 0.0


def product_probe(product: str, layer: Layer, dtype: str, sizes: ProbeSizes) -> LoopProbe:
    """One of the `PRODUCTS` of a layer; an element of it goes into an operand, so that it is done each time.

    On devices with a curve of cold memory its operands and its result are the same ones each time, and warm as far as
    caches hold them: what they take when they come from memory is priced apart (`planner.reuse`). On others, one
    operand is a different one each time: in a program, weights and what was kept for the gradient were last read a
    step, or many layers, ago.
    """
    rows, inputs, outputs = layer
    multiply: Callable[[jax.Array, jax.Array], jax.Array]
    multiply, new, kept = {
        "results": (lambda x, weights: x @ weights, (rows, inputs), (inputs, outputs)),
        "gradient of inputs": (lambda dy, weights: dy @ weights.T, (rows, outputs), (inputs, outputs)),
        TRANSPOSED: (lambda dy, x: x.T @ dy, (rows, outputs), (rows, inputs)),
    }[product]
    height, inner, width = product_sizes(product, layer)
    count = 1
    if not sizes.cold_bytes:
        count = max(1, min(sizes.most_kept, sizes.kept_bytes // (math.prod(kept) * jnp.dtype(dtype).itemsize)))

    def step(result: jax.Array, x: jax.Array, *arrays: jax.Array) -> Arrays:
        for array in arrays:
            x = x.at[0, 0].set(result[opaque_zero(x[0]), 0] / inner)
            result = multiply(x, array)
        return result, x, *arrays

    return LoopProbe(step, ((height, width), new, *[kept] * count), dtype, repetitions=count)


def product_sizes(product: str, layer: Layer) -> tuple[int, int, int]:
    """Rows, contracted size and columns."""
    rows, inputs, outputs = layer
    return {
        "results": (rows, inputs, outputs),
        "gradient of inputs": (rows, outputs, inputs),
        TRANSPOSED: (inputs, rows, outputs),
    }[product]


def launch_probe(sizes: ProbeSizes) -> LoopProbe:
    """A loop over so few elements that starting it is what counts, of which a product takes more."""
    return memory_probe(sizes.launched_bytes)


def memory_probe(nbytes: int) -> LoopProbe:
    """One array of so many bytes on each device read, and written in its place."""
    return LoopProbe(lambda x: (0.5 * x + 0.5,), ((nbytes // 4,),))


def met_probe(nbytes: int, device_count: int) -> LoopProbe:
    """The same, but that all devices meet before, so that another core may go on with each.

    Over arrays that caches hold, the first ten rounds take up to twice as long as later ones: in loops of twenty that
    is more than what meeting adds.
    """

    def step(x: jax.Array) -> Arrays:
        return (lax.psum(x[0], "group") / (2 * device_count) * x + 0.5,)

    return LoopProbe(step, ((nbytes // 4,),), group_size=device_count, rounds=MET_ROUNDS)


def element_probes(sizes: ProbeSizes) -> dict[str, LoopProbe]:
    """Of the classes of elements that are as slow in a loop over one array as in a program."""
    rows, columns = sizes.elements
    # Where elements are read at other places they cannot be written over: each round copies its result to its home.
    elsewhere = 2.0 + 2.0 / sizes.repeated

    def turned(shape: tuple[int, ...]) -> LoopProbe:
        """Read with its first two dimensions the other way round: of two, elements a row apart become neighbours."""
        return once(lambda x: (0.5 * x.swapaxes(0, 1) + 0.5).reshape(shape), shape, elsewhere)

    def once(
        step: Callable[[jax.Array], jax.Array], shape: tuple[int, ...] = sizes.elements, arrays: float = 2.0
    ) -> LoopProbe:
        """Of each element, `arrays` read and written."""
        size = math.prod(shape)
        return LoopProbe(lambda x: (step(x),), (shape,), elements=size, moved_bytes=4.0 * arrays * size)

    def twice(step: Callable[[jax.Array], jax.Array]) -> LoopProbe:
        """Of two for each element of the array."""
        return replace(once(step, arrays=elsewhere), elements=2.0 * math.prod(sizes.elements))

    def padded(x: jax.Array) -> jax.Array:
        return 0.5 + 0.5 * (jnp.pad(x[1:], ((0, 1), (0, 0))) + jnp.pad(x[:1], ((rows - 1, 0), (0, 0))))

    return {name: turned(shape) for name, shape in sizes.turned.items()} | {
        "sum along rows": once(lambda x: 0.5 * x + x.sum(1, keepdims=True) / columns / 2, arrays=3),
        "sum along columns": once(lambda x: 0.5 * x + x.sum(0, keepdims=True) / rows / 2, arrays=3),
        "concatenate": twice(lambda x: 0.5 * (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0))),
        "pad": twice(padded),
    }


def collective_probe(
    kind: str, group_size: int, nbytes: int, device_count: int, sizes: ProbeSizes, alternate: bool = True
) -> LoopProbe:
    """The collective, of what a kernel has just written, into one array after the other, more than caches hold.

    So it goes in programs: what is sent was made by the device itself, what arrives comes to lie where something else
    was. All-to-alls are those that resharding makes, there and back in one array, with the rearranging of what is sent
    and what arrives.

    All the ways in which groups lie along an axis of a mesh take turns; see `placements`. Devices that share cores and
    meet the same ones again and again are handed a core of their group's own sooner or later, and take a half or a
    third as long then, which happens in no program of several axes. Of eight devices, pairs of neighbours and pairs as
    far apart as can be do not suffice: two of each are four devices that never meet the others.

    Args:
        nbytes: of the larger side, per device; rounded to what can be split.
        device_count: of all groups together.
        alternate: whether they take turns; else, but for all-to-alls, neighbours alone meet.
    """
    size = nbytes // 4 // group_size
    if kind == "all-to-all":
        return _resharding_probe(group_size, size, device_count)
    turns = placements(group_size, device_count if alternate else group_size)
    grid = np.arange(device_count).reshape
    in_turn = [grid(-1, group_size, apart).swapaxes(1, 2).reshape(-1, group_size) for apart in turns]
    given = size if kind == "all-gather" else size * group_size
    brought = size if kind == "reduce-scatter" else size * group_size
    arrays_wanted = max(2, min(sizes.most_kept, sizes.kept_bytes // (4 * brought)))
    in_turn *= max(1, arrays_wanted // len(in_turn))

    def step(*arrays: jax.Array) -> Arrays:
        results = [arrays[-1]]
        for groups in in_turn:
            # One number: where a processor converts integers one by one, an iota takes longer than many a collective.
            operand = jnp.full(given, 0.5, jnp.float32) + opaque_zero(results[-1]).astype(jnp.float32)
            results.append(_communicated(kind, operand, groups))
        return tuple(results[1:])

    shapes = ((brought,),) * len(in_turn)
    return LoopProbe(step, shapes, group_size=device_count, repetitions=len(in_turn), moved_bytes=4.0 * given)


def placements(group_size: int, device_count: int) -> list[int]:
    """How far apart the devices of a group can be along an axis of a mesh, from neighbours on.

    >>> placements(2, 8), placements(4, 8), placements(8, 8)
    ([1, 2, 4], [1, 2], [1])
    """
    return [apart for apart in range(1, device_count // group_size + 1) if device_count // group_size % apart == 0]


def _communicated(kind: str, x: jax.Array, groups: np.ndarray) -> jax.Array:
    """What one collective of these groups of devices brings."""
    among = groups.tolist()
    match kind:
        case "all-gather":
            return lax.all_gather(x, "group", axis_index_groups=among, tiled=True)
        case "all-reduce":
            return lax.psum(x, "group", axis_index_groups=among)
        case "reduce-scatter":
            return lax.psum_scatter(x, "group", axis_index_groups=among, tiled=True)
        case "collective-permute":
            onward = np.roll(groups, -1, axis=1)
            return lax.ppermute(x, "group", list(zip(groups.flat, onward.flat, strict=True)))
    raise ValueError(f"no probe times {kind!r}")


def _resharding_probe(group_size: int, size: int, device_count: int) -> LoopProbe:
    """From the first dimension of each group's matrix to its second and back; a device sends so many elements to each.

    The matrices are about square. The groups are those of an axis of as many meshes as there are `placements`.
    """
    rows = max(1, 2 ** ((size * group_size**2).bit_length() // 2) // group_size)
    columns = group_size * max(1, size // rows)
    turns = placements(group_size, device_count)
    names, kinds = ("outer", "group", "inner"), (AxisType.Auto,) * 3

    def step(x: jax.Array) -> Arrays:
        for apart in turns:
            mesh = AbstractMesh((device_count // group_size // apart, group_size, apart), names, axis_types=kinds)
            parts = x.reshape(*mesh.axis_sizes, rows, columns)
            by_rows, by_columns = PartitionSpec(*names), PartitionSpec("outer", None, "inner", None, "group")
            for spec in (by_rows, by_columns, by_rows):
                parts = lax.with_sharding_constraint(parts, NamedSharding(mesh, spec))
            x = parts.reshape(x.shape)
        return (x,)

    repetitions = 2 * len(turns)
    shapes = ((rows * columns,),)
    return LoopProbe(step, shapes, group_size=device_count, repetitions=repetitions, partitioned=True)


def wait_probe(products: int, group_size: int) -> LoopProbe:
    """So many small products, after which groups of devices wait for each other; in groups of one for nobody."""
    rows, width = 64, 256

    def step(x: jax.Array, weights: jax.Array) -> Arrays:
        for _ in range(products):
            x = x @ weights / width
        met = lax.psum(x[0, 0], "group") / group_size if group_size > 1 else x[0, 0]
        return x.at[0, 0].set(met), weights

    return LoopProbe(step, ((rows, width), (width, width)), group_size=group_size)


def opaque_zero(x: jax.Array) -> jax.Array:
    """Zero, which the compiler cannot know, so that it keeps the whole of what it is an index into."""
    return (x[0] < 0).astype(jnp.int32)


def call_probes(sizes: ProbeSizes) -> dict[str, CallProbe]:
    """Calls of nothing, of many arrays, of fresh memory; and one for each class of elements that no loop tells of."""
    # The smallest is large enough to be handed to the devices' threads, as whole programs are.
    tiny, stream = (4096,), sizes.elements
    rows, columns = stream
    single = rows * columns
    count = STREAMED * single
    fresh = (sizes.fresh_bytes // 4,)
    image, channels = sizes.image, sizes.image[-1]
    under_windows = math.prod(image) / 4 * WINDOW**2
    patches = math.prod(image[:-1]) * WINDOW**2
    window, stride = (1, WINDOW, WINDOW, 1), (1, 2, 2, 1)

    def each(fn: Callable[[jax.Array], jax.Array]) -> Callable[[Sequence[jax.Array]], Any]:
        return lambda arrays: [fn(array) for array in arrays]

    def pool(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, window, stride, "SAME")

    def pool_gradient(x: jax.Array) -> jax.Array:
        return jax.vjp(pool, x)[1](x[:, ::2, ::2])[0]

    def convolved(x: jax.Array) -> jax.Array:
        kernel = jnp.full((WINDOW, WINDOW, channels, channels), 0.01) * x[0, 0, 0, 0]
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def looked_up(x: jax.Array) -> jax.Array:
        return x[(jnp.arange(rows) * 7 + opaque_zero(x[0])) % rows]

    def added_to(x: jax.Array) -> jax.Array:
        return x.at[(jnp.arange(rows) * 7 + opaque_zero(x[0])) % rows].add(0.5 * x)

    def drawn(x: jax.Array) -> jax.Array:
        return x + jax.random.uniform(jax.random.key(0), x.shape)

    def halved(shape: tuple[int, ...], kept: bool = False) -> CallProbe:
        """Of one array, read and written, by default in its place."""
        return CallProbe(each(lambda x: 0.5 * x + 0.5), shape, 1, math.prod(shape), kept=kept)

    def looped(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, ROUNDS, lambda _, x: 0.5 * x + 0.5, x)

    few, fewer = (rows // 8, columns), (rows // 32, columns)
    comparisons = math.prod(fewer) * math.log2(columns)
    selected = few[0] * selection_comparisons(columns, SELECTED)
    convolution = CallProbe(each(convolved), image, STREAMED, STREAMED * patches, kept=True)
    streams = {cold(nbytes): halved((nbytes // 4,)) for nbytes in sizes.cold_bytes}
    if sizes.cold_bytes:
        streams[ELSEWHERE] = halved((sizes.written_bytes // 4,), kept=True)
    return streams | {
        "call": CallProbe(each(lambda x: x + 1), tiny, 1, kept=True),
        "arguments": CallProbe(lambda arrays: arrays[0] + 1, tiny, MANY_ARRAYS, kept=True),
        "results": CallProbe(each(lambda x: x + 1), tiny, MANY_ARRAYS),
        "rounds": CallProbe(each(looped), tiny, 1),
        "fresh": halved(fresh, kept=True),
        "reused": halved(fresh),
        # Of more than caches hold, an exponential takes three times as long on some hosts; mostly programs have
        # it of what the kernel itself, or the one before, has computed.
        "exponential": CallProbe(each(lambda x: jnp.exp(-x)), stream, 1, single),
        "sine": CallProbe(each(jnp.sin), stream, 1, single),
        "power": CallProbe(each(lambda x: (1 + x * x) ** 0.3), stream, 1, single),
        "gather": CallProbe(each(looked_up), stream, STREAMED, count, kept=True),
        "scatter": CallProbe(each(added_to), stream, STREAMED, count),
        "sort": CallProbe(each(lambda x: jnp.sort(x, axis=1)), fewer, 1, comparisons),
        "selection": CallProbe(each(lambda x: lax.top_k(x, SELECTED)[0]), few, 1, selected, kept=True, read=True),
        "cumulative": CallProbe(each(lambda x: jnp.cumsum(x, axis=1)), few, 1, math.prod(few)),
        "window": CallProbe(each(pool), image, STREAMED, STREAMED * under_windows, kept=True, read=True),
        "window gradient": CallProbe(each(pool_gradient), image, STREAMED, STREAMED * under_windows, kept=True),
        "random": CallProbe(each(drawn), stream, 1, single),
    } | ({"patch": convolution} if sizes.gathers_patches else {})  # fmt: skip


def cold(nbytes: int) -> str:
    """The name of the probe of an array of so many bytes that was last moved a call before."""
    return f"{nbytes} cold bytes"


def convolution_sizes(sizes: ProbeSizes) -> tuple[int, int, int, int]:
    """Rows, inner size, columns and window of the timed convolution; see `costmodel.compute.matmul_seconds`."""
    *positions, channels = sizes.image
    return math.prod(positions), channels * WINDOW**2, channels, WINDOW**2
