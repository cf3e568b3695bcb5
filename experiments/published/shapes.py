"""What a published run trained, and how it was laid out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jax.sharding import AbstractMesh, PartitionSpec

Params = dict[str, Any]
Axes = tuple[str | None, ...]
Remat = Literal["full", "save_qkv", "none"]
Precision = Literal["bfloat16", "float16", "float32", "float8_e4m3fn"]
AXES = ("data", "expert", "fsdp", "context", "tensor")
APART = ("data", "expert", "fsdp", "context")
"""Along these each device has tokens of its own, and exchanges with the others what the program says and no more."""


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder.

    Attributes:
        heads, kv_heads, head_width: of the attention.
        gated: whether the MLP has two inner products (SwiGLU, GEGLU) or one.
        experts, chosen: of a mixture, and how many each token goes to; 0 and 0 for none.
        moe_every: a mixture in every so many layers, a plain MLP in the others.
        tied: whether the vocabulary's embedding is also its last product.
    """

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    sequence: int
    gated: bool = False
    experts: int = 0
    chosen: int = 0
    moe_every: int = 1
    tied: bool = False


@dataclass(frozen=True)
class Layout:
    """How a run used its devices, and what its framework did.

    Attributes:
        sizes: of the mesh's axes.
        batch: sequences in one pass through all devices.
        passes: how many passes make a step (gradient accumulation).
        precision: what matrix products are done in.
        remat: which activations are computed again: "full", of each layer all but its input; "save_qkv", all but that
            and what goes into attention; "none".
        flash: whether scores stay on the chip.
        sequence_parallel: whether activations between layers are split along the sequence over "tensor".
        sharded_optimizer: whether replicas along "data" split the optimiser state (ZeRO-1).
        grouped: tokens in a group that goes to experts by products with one-hot masks (GShard); 0 where tokens are
            copied to where they go.
    """

    sizes: Mapping[str, int]
    batch: int
    passes: int
    precision: Precision
    remat: Remat
    flash: bool
    sequence_parallel: bool
    sharded_optimizer: bool
    grouped: int = 0

    @property
    def dtype(self) -> str:
        """What activations are in."""
        return "bfloat16" if self.precision.startswith("float8") else self.precision

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that are there; an axis of one device only makes more to choose from."""
        return tuple(axis for axis in AXES if self.sizes[axis] > 1) or AXES[:1]

    @property
    def separate(self) -> tuple[str, ...]:
        """The axes along which devices keep apart within a pass, outermost first."""
        return tuple(axis for axis in APART if self.sizes[axis] > 1)

    @property
    def mesh(self) -> AbstractMesh:
        return AbstractMesh(tuple(self.sizes[axis] for axis in self.axes), self.axes)

    def spec(self, *entries: str | Sequence[str] | None) -> PartitionSpec:
        """A PartitionSpec less the axes that are not there."""
        found = []
        for entry in entries:
            names = (entry,) if isinstance(entry, str) else tuple(entry or ())
            found.append(tuple(name for name in names if name in self.axes))
        return PartitionSpec(*found)


@dataclass(frozen=True)
class Weight:
    """A weight's shape and the mesh axes that split its dimensions.

    Those that devices have apart, shards of FSDP and experts, lead with a dimension of the devices; `fsdp` is then the
    dimension, from the end, along which the shards are put together where they are used.
    """

    shape: tuple[int, ...]
    axes: Axes
    fsdp: int | None = None

    def stacked(self, count: int, axis: str | None = None) -> Weight:
        """So many of them, in layers or on the devices of an axis."""
        return Weight((count, *self.shape), (axis, *self.axes), self.fsdp)

    def apart(self, ways: int) -> Weight:
        """Split by FSDP along the dimension that says so."""
        if "fsdp" not in self.axes or ways == 1:
            return Weight(self.shape, tuple(None if axis == "fsdp" else axis for axis in self.axes))
        place = self.axes.index("fsdp")
        shape = (*self.shape[:place], self.shape[place] // ways, *self.shape[place + 1 :])
        axes = (*self.axes[:place], None, *self.axes[place + 1 :])
        return Weight((ways, *shape), ("fsdp", *axes), place - len(self.shape))
