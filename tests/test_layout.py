"""Layouts: to PartitionSpecs and back, and what a device holds of an array."""

from __future__ import annotations

import pytest
from forced import device_mesh
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from test_reshard import layouts_of

from planner import InvalidSpec
from planner.layout import axes_of, divides, from_spec, replicated, shard_count, shard_elements, to_spec

P = PartitionSpec
SIZES = {"x": 2, "y": 4}
SHAPE = (8, 3, 16)
LAYOUTS = sorted(set(layouts_of(SHAPE, SIZES)))


@settings(deadline=None)
@given(st.sampled_from(LAYOUTS))
def test_specs_say_the_same(layout: tuple[tuple[str, ...], ...]) -> None:
    spec = to_spec(layout)
    assert from_spec(spec, SHAPE, SIZES, "array") == layout
    assert not spec or spec[-1] is not None
    shard = NamedSharding(device_mesh(**SIZES), spec).shard_shape(SHAPE)
    assert shard_elements(SHAPE, layout, SIZES) == shard[0] * shard[1] * shard[2]


@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        (P(), ((), (), ())),
        (P("x"), (("x",), (), ())),
        (P(None, None, "y"), ((), (), ("y",))),
        (P(("y", "x")), (("y", "x"), (), ())),
        (P(("x",), None, ("y",)), (("x",), (), ("y",))),
        (P((), None), ((), (), ())),
    ],
)
def test_specs_of_every_form_are_read(spec: PartitionSpec, layout: tuple[tuple[str, ...], ...]) -> None:
    assert from_spec(spec, SHAPE, SIZES, "array") == layout


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (P("x", None, None, None), "weights: .* has 4 entries for an array of shape"),
        (P("z"), "weights: .* names the mesh axis 'z', the mesh has x, y"),
        (P("x", None, "x"), "weights: .* names the mesh axis 'x' twice"),
        (P(None, "x"), "weights: .* splits dimension 1 of size 3 into 2 shards"),
        (("x",), "weights: expected .*PartitionSpec"),
    ],
)
def test_specs_that_cannot_be(spec: PartitionSpec, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        from_spec(spec, SHAPE, SIZES, "weights")


def test_an_open_dimension_is_no_layout() -> None:
    with pytest.raises(InvalidSpec, match=r"weights: .*UNCONSTRAINED"):
        from_spec(P(P.UNCONSTRAINED, None, "x"), SHAPE, SIZES, "weights")


def test_small_facts() -> None:
    assert replicated(2) == ((), ())
    assert axes_of((("x",), (), ("y", "z"))) == ("x", "y", "z")
    assert shard_count(("x", "y"), SIZES) == 8
    assert shard_count((), SIZES) == 1
    assert divides((0, 8), (("x",), ("y",)), SIZES)
    assert not divides((3, 8), (("x",), ()), SIZES)
    assert shard_elements((0, 8), (("x",), ("y",)), SIZES) == 0
