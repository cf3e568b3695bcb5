"""What `calibrate` times: operations in a loop on the devices, and whole calls.

A `LoopProbe` is repeated on the device and timed at two loop lengths; the difference leaves dispatch out. A `CallProbe`
is a compiled function that is called as a plan is, with arrays that are as cold as in a program of some size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from costmodel.topology import REARRANGING

Arrays = tuple[jax.Array, ...]

LAYERS = (
    (64, 64, 64), (128, 512, 128), (256, 256, 256), (512, 512, 512), (16, 512, 512), (32, 512, 1024), (64, 1024, 256),
    (32, 1024, 1024), (1024, 128, 128), (512, 128, 64),
)  # fmt: skip
"""Rows, inputs and outputs of the linear layers whose products are timed: square, flat and thin ones."""
WAITED_AFTER = (2, 4, 16, 48)
"""How many small products are computed before devices wait for each other: from one to some twenty milliseconds."""
TRANSPOSED = "gradient of weights"
PRODUCTS = ("results", "gradient of inputs", TRANSPOSED)
"""Of a layer in training; in the last the left operand is transposed."""
MATRIX_TYPES = ("float32", "bfloat16")
KEPT_BYTES, MOST_KEPT = 2**24, 16
"""Of the operands, on each device, that a product's probe goes through, and at most how many they are."""

MANY_ARRAYS = 64
"""Arguments, or results, of the calls that tell what one more takes."""
ARRAY_BYTES = (2**14, 2**16, 2**18, 2**20, 2**22, 2**24)
"""Of the arrays, on each device, that tell the rates of caches and memory."""
TURNED = dict(zip(REARRANGING, ((64, 64, 64), (800, 320), (1024, 256), (512, 512), (256, 1024)), strict=True))
"""For each class of rearranging, the shape of an array of about a megabyte that is turned round."""
STREAMED, ROWS, COLUMNS = 4, 256, 1024
"""How many arrays a call goes through, and their shape on each device: 4 MiB together."""
FRESH_BYTES = 40 * 2**20
"""More than the C library keeps for the next call."""
IMAGES, SIDE, CHANNELS = 4, 16, 32
"""Of the convolution and the pooling."""


@dataclass(frozen=True)
class LoopProbe:
    """`step` maps a device's arrays, of these shapes and this type and first value, to arrays like them.

    Collectives join groups of `group_size` devices along the mesh axis "group"; in a `partitioned` step the arrays are
    a whole group's, along their first dimension, and the compiler makes the collectives out of its constraints. What is
    timed is in it so many `repetitions`.
    """

    step: Callable[..., Arrays]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"
    value: float = 1.0
    group_size: int = 1
    repetitions: int = 1
    partitioned: bool = False


@dataclass(frozen=True)
class CallProbe:
    """A function of a list of a device's arrays.

    Attributes:
        shape: of each array.
        arrays: how many.
        elements: how many elements count, on one device in one call.
        kept: whether the arrays stay the caller's; else the results take their memory.
    """

    fn: Callable[[Sequence[jax.Array]], Any]
    shape: tuple[int, ...]
    arrays: int
    elements: float = 0.0
    kept: bool = False

    @property
    def moved_bytes(self) -> float:
        """That go through a device's memory: the arrays, and results where they are as large."""
        return (4.0 if self.kept else 8.0) * self.arrays * math.prod(self.shape)


def product_probe(product: str, layer: tuple[int, int, int], dtype: str) -> LoopProbe:
    """One of the `PRODUCTS` of a layer; an element of it goes into an operand, so that it is done each time.

    The other operand is a different one each time, and cold: in a program, weights and what was kept for the gradient
    were last read a step, or many layers, ago.
    """
    rows, inputs, outputs = layer
    multiply: Callable[[jax.Array, jax.Array], jax.Array]
    multiply, new, kept = {
        "results": (lambda x, weights: x @ weights, (rows, inputs), (inputs, outputs)),
        "gradient of inputs": (lambda dy, weights: dy @ weights.T, (rows, outputs), (inputs, outputs)),
        TRANSPOSED: (lambda dy, x: x.T @ dy, (rows, outputs), (rows, inputs)),
    }[product]
    inner = product_sizes(product, layer)[1]
    count = max(1, min(MOST_KEPT, KEPT_BYTES // (math.prod(kept) * jnp.dtype(dtype).itemsize)))

    def step(y: jax.Array, *arrays: jax.Array) -> Arrays:
        for array in arrays:
            y = y.at[0, 0].set(multiply(y, array)[opaque_zero(y[0]), 0] / inner)
        return y, *arrays

    return LoopProbe(step, (new, *[kept] * count), dtype, repetitions=count)


def product_sizes(product: str, layer: tuple[int, int, int]) -> tuple[int, int, int]:
    """Rows, contracted size and columns."""
    rows, inputs, outputs = layer
    return {
        "results": (rows, inputs, outputs),
        "gradient of inputs": (rows, outputs, inputs),
        TRANSPOSED: (inputs, rows, outputs),
    }[product]


def launch_probe() -> LoopProbe:
    """A product so small that nothing but starting it counts."""
    return LoopProbe(lambda x: (x @ x,), ((8, 8),), value=1 / 8)


def memory_probe(nbytes: int) -> LoopProbe:
    """One array of so many bytes on each device read, and written in its place."""
    return LoopProbe(lambda x: (0.5 * x + 0.5,), ((nbytes // 4,),))


def turning_probe(shape: tuple[int, ...]) -> LoopProbe:
    """An array read with its first two dimensions the other way round, and written: of two, elements that lie a row
    apart become neighbours."""
    return LoopProbe(lambda x: ((0.5 * x.swapaxes(0, 1) + 0.5).reshape(shape),), (shape,))


def collective_probe(kind: str, group_size: int, nbytes: int) -> LoopProbe:
    """The collective, followed by what little brings its result back to the shape of its operand.

    All-to-alls are those that resharding makes, there and back, with the rearranging of what is sent and what arrives.

    Args:
        nbytes: of the larger side, per device.
    """

    def all_gather(x: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(lax.all_gather(x, "group", tiled=True), opaque_zero(x), len(x))

    def reduce_scatter(x: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(x, lax.psum_scatter(x, "group", tiled=True), opaque_zero(x), 0)

    def all_to_all(x: jax.Array) -> jax.Array:
        turned = x.reshape(2 ** (x.size.bit_length() // 2), -1)  # about square
        for spec in (PartitionSpec("group"), PartitionSpec(None, "group"), PartitionSpec("group")):
            turned = lax.with_sharding_constraint(turned, spec)
        return turned.reshape(x.shape)

    ring = [(place, (place + 1) % group_size) for place in range(group_size)]
    steps: Mapping[str, Callable[[jax.Array], jax.Array]] = {
        "all-reduce": lambda x: lax.psum(x, "group"),
        "all-gather": all_gather,
        "reduce-scatter": reduce_scatter,
        "all-to-all": all_to_all,
        "collective-permute": lambda x: lax.ppermute(x, "group", ring),
    }
    operand_bytes = nbytes // group_size if kind == "all-gather" else nbytes
    resharded = kind == "all-to-all"
    return LoopProbe(
        lambda x: (steps[kind](x),),
        ((operand_bytes // 4,),),
        group_size=group_size,
        repetitions=2 if resharded else 1,
        partitioned=resharded,
    )


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


def call_probes() -> dict[str, CallProbe]:
    """Calls of nothing, of many arrays, of fresh memory; and one for each class of elements but `TURNED`."""
    # The smallest is large enough to be handed to the devices' threads, as whole programs are.
    tiny, stream = (4096,), (ROWS, COLUMNS)
    count = STREAMED * ROWS * COLUMNS
    fresh = (FRESH_BYTES // 4,)
    image = (IMAGES, SIDE, SIDE, CHANNELS)
    pixels = IMAGES * SIDE * SIDE * CHANNELS
    window, stride = (1, 3, 3, 1), (1, 2, 2, 1)

    def each(fn: Callable[[jax.Array], jax.Array]) -> Callable[[Sequence[jax.Array]], Any]:
        return lambda arrays: [fn(array) for array in arrays]

    def pool(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, window, stride, "SAME")

    def looked_up(x: jax.Array) -> jax.Array:
        return x[(jnp.arange(ROWS) * 7 + opaque_zero(x[0])) % ROWS]

    def added_to(x: jax.Array) -> jax.Array:
        return x.at[(jnp.arange(ROWS) * 7 + opaque_zero(x[0])) % ROWS].add(0.5 * x)

    def joined(x: jax.Array) -> jax.Array:
        return 0.5 * (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0))

    def padded(x: jax.Array) -> jax.Array:
        return jnp.pad(x[1:], ((0, 1), (0, 0))) + jnp.pad(x[:1], ((ROWS - 1, 0), (0, 0)))

    def drawn(x: jax.Array) -> jax.Array:
        return x + jax.random.uniform(jax.random.key(0), x.shape)

    return {
        "call": CallProbe(each(lambda x: x + 1), tiny, 1),
        "arguments": CallProbe(lambda arrays: arrays[0] + 1, tiny, MANY_ARRAYS, kept=True),
        "results": CallProbe(each(lambda x: x + 1), tiny, MANY_ARRAYS),
        "fresh": CallProbe(each(lambda x: 0.5 * x + 0.5), fresh, 1, FRESH_BYTES // 4, kept=True),
        "reused": CallProbe(each(lambda x: 0.5 * x + 0.5), fresh, 1, FRESH_BYTES // 4),
        "exponential": CallProbe(each(lambda x: jnp.exp(-x)), stream, STREAMED, count),
        "sine": CallProbe(each(jnp.sin), stream, STREAMED, count),
        "power": CallProbe(each(lambda x: (1 + x * x) ** 0.3), stream, STREAMED, count),
        "sum along rows": CallProbe(each(lambda x: x.sum(1)), stream, STREAMED, count, kept=True),
        "sum along columns": CallProbe(each(lambda x: x.sum(0)), stream, STREAMED, count, kept=True),
        "concatenate": CallProbe(each(joined), stream, STREAMED, 2 * count),
        "pad": CallProbe(each(padded), stream, STREAMED, 2 * count),
        "gather": CallProbe(each(looked_up), stream, STREAMED, count),
        "scatter": CallProbe(each(added_to), stream, STREAMED, count),
        "sort": CallProbe(each(lambda x: jnp.sort(x, axis=1)), (8, COLUMNS), 1, 8 * COLUMNS * 10),
        "cumulative": CallProbe(each(lambda x: jnp.cumsum(x, axis=1)), (32, COLUMNS), 1, 32 * COLUMNS),
        "window": CallProbe(each(pool), image, STREAMED, STREAMED * pixels / 4 * 9, kept=True),
        "window gradient": CallProbe(each(jax.grad(lambda x: pool(x).sum())), image, 1, pixels / 4 * 9),
        "random": CallProbe(each(drawn), stream, 1, count / STREAMED),
        "convolution": CallProbe(_convolutions, image, STREAMED, STREAMED * 3, kept=True),
    }  # fmt: skip


def convolution_sizes() -> tuple[float, float, float]:
    """Rows, contracted size and columns of the product that is as large as one of the timed convolutions."""
    return IMAGES * SIDE * SIDE, 9 * CHANNELS, CHANNELS


def _convolutions(images: Sequence[jax.Array]) -> Any:
    """As in training: the results, and the gradients of kernel and images; three products each."""

    def apply(image: jax.Array, kernel: jax.Array) -> jax.Array:
        dims = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=dims)

    def loss(image: jax.Array, kernel: jax.Array) -> jax.Array:
        return (apply(image, kernel) ** 2).sum()

    kernel = jnp.full((3, 3, CHANNELS, CHANNELS), 0.01) * images[0][0, 0, 0, 0]
    return [jax.grad(loss, argnums=(0, 1))(image, kernel) for image in images]
