"""Which devices talk to each other in a collective, in every notation of compiled HLO, and over which mesh axes.

The notations, for eight devices on a mesh (x=2, y=4):

    {{0,1,2,3},{4,5,6,7}}                                     groups, listed: over y
    {}                                                        one group of all devices
    [2,4]<=[8]                                                2 groups of 4, from 0…7 in order: over y
    [4,2]<=[2,4]T(1,0)                                        4 groups of 2, from 0…7 as 2×4 transposed: over x
    mesh['a'=2,'b'=4] {'b'}                                   along b of a mesh of the compiler's own: over y
    mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}         the same, with its devices in another order: over x
    mesh['a'=8] {'a':(2)4}                                    along 4 of an axis, inside the 2 before it: over y
    source_target_pairs={{0,1},{1,2},{2,3},{3,0}}             of a collective-permute: over y

Devices are numbered as they stand in the mesh, whatever their own ids are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import cast

import numpy as np

Groups = Sequence[Sequence[int]]

_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d, ]*\},? ?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[(?P<axes>[^\]]*)\]"
    r"(?:, *device_ids=\((?:\[(?P<shape>[\d,]+)\]T\((?P<order>[\d,]+)\)|(?P<ids>[\d,]+))\))?"
    r" *\{(?P<along>[^}]*)\}"
)
_AXIS_SIZE = re.compile(r"'([^']*)'=(\d+)")
_AXIS_PART = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")


def device_groups(attributes: str, device_count: int) -> Groups:
    """The groups of devices in a collective's attributes; for a collective-permute its pairs.

    Raises:
        ValueError: the attributes hold no groups in a notation known here.
    """
    if found := _LISTED.search(attributes):
        groups = [_integers(group) for group in re.findall(r"\{([\d, ]*)\}", found[1])]
        return groups or [range(device_count)]
    if found := _IOTA.search(attributes):
        return cast(Groups, _transposed(found[2], found[3]).reshape(_integers(found[1])).tolist())
    if found := _MESH.search(attributes):
        return _mesh_groups(found)
    raise ValueError(
        f"cannot read which devices a collective joins from {attributes!r}: "
        f"no replica_groups or source_target_pairs in a known notation"
    )


def axes_between(groups: Groups, axis_sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which devices of one group differ, in the mesh's order.

    Args:
        axis_sizes: of the mesh whose devices the groups number.
    """
    differs = np.zeros(len(axis_sizes), dtype=bool)
    for group in groups:
        places = np.array(np.unravel_index(list(group), tuple(axis_sizes.values())))
        differs |= (places != places[:, :1]).any(axis=1)
    return tuple(axis for axis, varies in zip(axis_sizes, differs, strict=True) if varies)


def _mesh_groups(found: re.Match[str]) -> Groups:
    """Cuts the compiler's mesh where parts of axes begin and end; groups run along the pieces inside those parts."""
    sizes = {axis: int(size) for axis, size in _AXIS_SIZE.findall(found["axes"])}
    spans: dict[str, list[tuple[int, int]]] = {axis: [] for axis in sizes}
    for axis, before, size in _AXIS_PART.findall(found["along"]):
        start = int(before or 1)
        spans[axis].append((start, start * int(size or sizes[axis])))
    pieces: list[int] = []
    joined: list[bool] = []
    for axis, size in sizes.items():
        for start, stop in pairwise(sorted({1, size, *chain(*spans[axis])})):
            pieces.append(stop // start)
            joined.append(any(low <= start and stop <= high for low, high in spans[axis]))
    order = sorted(range(len(pieces)), key=lambda piece: joined[piece])
    group_size = math.prod(piece for piece, along in zip(pieces, joined, strict=True) if along)
    groups = _mesh_devices(found, math.prod(pieces)).reshape(pieces).transpose(order).reshape(-1, group_size)
    return cast(Groups, groups.tolist())


def _mesh_devices(found: re.Match[str], count: int) -> np.ndarray:
    """The devices of the compiler's mesh, as they stand in it."""
    if found["shape"]:
        return _transposed(found["shape"], found["order"])
    return np.array(_integers(found["ids"])) if found["ids"] else np.arange(count)


def _transposed(shape: str, order: str | None) -> np.ndarray:
    """0, 1, 2, … as an array of this shape, its dimensions reordered, flat."""
    sizes = _integers(shape)
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return numbers.transpose(_integers(order) if order else None).reshape(-1)


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.replace(" ", "").split(",") if number]
