"""Compiled programs are read right: notations of groups, loops, branches, asynchronous pairs, merged collectives."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from executor.compiled import CompiledCollective, collectives
from executor.hlo import parse
from executor.replica_groups import axes_between, device_groups
from planner.jaxpr import UNKNOWN_TRIPS

MESH = {"x": 2, "y": 4}
CUBE = {"x": 2, "y": 2, "z": 2}

ALONG_X = [[0, 4], [1, 5], [2, 6], [3, 7]]
ALONG_Y = [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("attributes", "groups"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", ALONG_Y),
        ("replica_groups={{0,4}, {1,5}, {2,6}, {3,7}}, dimensions={0}", ALONG_X),
        ("replica_groups={}, to_apply=%add", [list(range(8))]),
        ("channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}", ALONG_Y),
        ("replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", ALONG_X),
        ("replica_groups=[1,8]<=[8]", [list(range(8))]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, dimensions={0}", ALONG_Y),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=1,'axis_2'=4] {'axis_0'}", ALONG_X),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", [list(range(8))]),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ALONG_X),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=(0,4,1,5,2,6,3,7) {'b'}", ALONG_X),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", ALONG_X),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", ALONG_Y),
        ("replica_groups=mesh['a'=8] {'a':(1)2,'a':(4)2}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("source_target_pairs={{0,1},{1,2}}, metadata={}", [[0, 1], [1, 2]]),
    ],
)
def test_groups_are_read_in_every_notation(attributes: str, groups: list[list[int]]) -> None:
    assert [sorted(group) for group in device_groups(attributes, 8)] == groups


def test_unknown_notation_is_an_error() -> None:
    with pytest.raises(ValueError, match="no replica_groups or source_target_pairs in a known notation"):
        device_groups("replica_groups=by_the_moon", 8)


@pytest.mark.parametrize(
    ("groups", "mesh", "axes"),
    [
        (ALONG_X, MESH, ("x",)),
        (ALONG_Y, MESH, ("y",)),
        ([range(8)], MESH, ("x", "y")),
        ([[device] for device in range(8)], MESH, ()),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], CUBE, ("y", "z")),
        ([[0, 5], [1, 4], [2, 7], [3, 6]], CUBE, ("x", "z")),
        ([(0, 1), (1, 2), (2, 3), (3, 0)], MESH, ("y",)),
        ([(0, 4), (1, 1)], MESH, ("x",)),
    ],
)
def test_axes_are_those_along_which_a_group_varies(
    groups: list[list[int]], mesh: dict[str, int], axes: tuple[str, ...]
) -> None:
    assert axes_between(groups, mesh) == axes


def program(body: str, before: str = "") -> str:
    """An HLO module whose entry computation has a float32[8,16] argument `%p` and these instructions."""
    return f"""HloModule jit_f, is_scheduled=true

FileNames
1 "/somewhere/train.py"
2 "/somewhere/loss.py"

FunctionNames
1 "step"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=41 end_line=41 column=2 end_column=2}}
2 {{file_name_id=2 function_name_id=1 line=7 end_line=9 column=2 end_column=2}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}


%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

{before}
ENTRY %main (p: f32[8,16]) -> f32[8,16] {{
  %p = f32[8,16]{{1,0}} parameter(0)
{body}
}}
"""


def only(text: str) -> CompiledCollective:
    (found,) = collectives(text, MESH)
    return found


def found_in(body: str, before: str = "") -> list[tuple[str, float, tuple[str, ...], float]]:
    return [(c.kind, c.bytes, c.axes, c.count) for c in collectives(program(body, before), MESH)]


def test_bytes_are_those_of_the_larger_side() -> None:
    body = """
  %ag = f32[32,16]{1,0} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
  %rs = f32[8,4]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={1}, to_apply=%add
  %ar = f32[8,16]{1,0:T(8,128)S(1)} all-reduce(f32[8,16]{1,0} %p), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add
  %aa = (f32[4,16]{1,0}, /*index=1*/f32[4,16]{1,0}) all-to-all(%ar, %ar), replica_groups={{0,4},{1,5},{2,6},{3,7}}
  ROOT %cp = f32[8,16]{1,0} collective-permute(%p), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"""
    assert found_in(body) == [
        ("all-gather", 2048, ("y",), 1),
        ("reduce-scatter", 512, ("y",), 1),
        ("all-reduce", 512, ("x",), 1),
        ("all-to-all", 1024, ("x",), 1),
        ("collective-permute", 512, ("y",), 1),
    ]


def test_a_group_of_one_device_does_not_communicate() -> None:
    assert not found_in("  ROOT %ar = f32[8,16] all-reduce(%p), replica_groups=[8,1]<=[8], to_apply=%add")


def test_merged_collectives_count_one_by_one() -> None:
    body = """  %half = f32[4,16] slice(%p), slice={[0:4], [0:16]}
  %both = (f32[8,16], f32[4,16]) all-reduce(%p, %half), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %r = f32[8,16] get-tuple-element(%both), index=0"""
    assert found_in(body) == [("all-reduce", 512, ("y",), 1), ("all-reduce", 256, ("y",), 1)]
    assert {c.instruction for c in collectives(program(body), MESH)} == {"both"}


@pytest.mark.parametrize(
    ("start", "kind", "nbytes"),
    [
        ("(f32[8,16], f32[32,16]) all-gather-start(%p), replica_groups=[2,4]<=[8]", "all-gather", 2048),
        ("f32[8,16] all-reduce-start(%p), replica_groups=[2,4]<=[8], to_apply=%add", "all-reduce", 512),
        (
            "(f32[8,16], f32[8,16], u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}",
            "collective-permute",
            512,
        ),
        (
            "((f32[8,16]), f32[8,4], s32[]) reduce-scatter-start(%p), replica_groups=[2,4]<=[8], to_apply=%add",
            "reduce-scatter",
            512,
        ),
    ],
)
def test_what_is_started_and_done_counts_once(start: str, kind: str, nbytes: float) -> None:
    body = f"  %start = {start}\n  ROOT %done = f32[8,16] {kind}-done(%start)"
    assert found_in(body) == [(kind, nbytes, ("y",), 1)]


def test_an_asynchronous_call_counts_once() -> None:
    wrapped = """%wrapped (q: f32[8,16]) -> f32[8,16] {
  %q = f32[8,16] parameter(0)
  ROOT %aa = f32[8,16] all-to-all(%q), replica_groups=[2,4]<=[8], dimensions={0}
}
"""
    body = """  %start = ((f32[8,16]), f32[8,16], s32[]) async-start(%p), calls=%wrapped
  %update = ((f32[8,16]), f32[8,16], s32[]) async-update(%start), calls=%wrapped
  ROOT %done = f32[8,16] async-done(%update), calls=%wrapped"""
    assert found_in(body, wrapped) == [("all-to-all", 512, ("y",), 1)]


LOOP = """%body (s: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %s = (s32[], f32[8,16]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8,16] get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %ar = f32[8,16] all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %t = (s32[], f32[8,16]) tuple(%next, %ar)
}

%less (i.1: s32[], n: s32[]) -> pred[] {
  %i.1 = s32[] parameter(0)
  %n = s32[] parameter(1)
  ROOT %lt.1 = pred[] compare(%i.1, %n), direction=LT
}

%condition (s.1: (s32[], f32[8,16])) -> pred[] {
  %s.1 = (s32[], f32[8,16]) parameter(0)
  %i.2 = s32[] get-tuple-element(%s.1), index=0
  %bound = s32[] constant(9)
  ROOT %lt = pred[] fusion(%i.2, %bound), kind=kLoop, calls=%less
}
"""


@pytest.mark.parametrize(
    ("start", "backend_config", "trips"),
    [
        ("constant(2)", ', backend_config={"known_trip_count":{"n":"4"}}', 4),
        ("constant(2)", "", 7),
        ("fusion(%p), kind=kLoop, calls=%mystery", "", UNKNOWN_TRIPS),
    ],
)
def test_a_loop_body_counts_by_its_rounds(start: str, backend_config: str, trips: int) -> None:
    mystery = """
%mystery (q: f32[8,16]) -> s32[] {
  %q = f32[8,16] parameter(0)
  ROOT %c = s32[] custom-call(%q), custom_call_target="who_knows"
}
"""
    body = f"""  %start = s32[] {start}
  %init = (s32[], f32[8,16]) tuple(%start, %p)
  %loop = (s32[], f32[8,16]) while(%init), condition=%condition, body=%body{backend_config}
  ROOT %r = f32[8,16] get-tuple-element(%loop), index=1"""
    assert found_in(body, LOOP + mystery) == [("all-reduce", 512, ("y",), trips)]


def test_branches_share_what_they_cost() -> None:
    branches = """%left (l: f32[8,16]) -> f32[8,16] {
  %l = f32[8,16] parameter(0)
  ROOT %ar = f32[8,16] all-reduce(%l), replica_groups=[2,4]<=[8], to_apply=%add
}

%right (r: f32[8,16]) -> f32[8,16] {
  ROOT %r = f32[8,16] parameter(0)
}
"""
    body = """  %which = s32[] constant(0)
  ROOT %c = f32[8,16] conditional(%which, %p, %p), branch_computations={%left, %right}"""
    assert found_in(body, branches) == [("all-reduce", 512, ("y",), 0.5)]


def test_a_computation_that_nothing_calls_does_not_run() -> None:
    assert not found_in("  ROOT %r = f32[8,16] negate(%p)", LOOP)


def test_calls_are_followed() -> None:
    called = """%inner (q: f32[8,16]) -> f32[8,16] {
  %q = f32[8,16] parameter(0)
  ROOT %ar = f32[8,16] all-reduce(%q), replica_groups=[2,4]<=[8], to_apply=%add
}
"""
    body = """  %once = f32[8,16] call(%p), to_apply=%inner
  ROOT %twice = f32[8,16] call(%once), to_apply=%inner"""
    assert found_in(body, called) == [("all-reduce", 512, ("y",), 2)]


WIDENING = """%widen (q: bf16[8,16]) -> f32[16,8] {
  %q = bf16[8,16] parameter(0)
  %wide = f32[8,16] convert(%q)
  ROOT %turned = f32[16,8] transpose(%wide), dimensions={1,0}
}
"""


def test_bfloat16_that_the_cpu_widens_counts_as_bfloat16() -> None:
    body = """  %narrow = bf16[8,16] convert(%p)
  %wide = f32[16,8] fusion(%narrow), kind=kLoop, calls=%widen
  %ag = f32[64,8] all-gather(%wide), replica_groups=[2,4]<=[8], dimensions={0}
  %ar = f32[8,16] all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add.clone_promoted
  ROOT %cp = f32[8,16] collective-permute(%p), source_target_pairs={{0,1},{1,0}}"""
    assert [nbytes for _, nbytes, _, _ in found_in(body, WIDENING)] == [64 * 8 * 2, 8 * 16 * 2, 8 * 16 * 4]


@pytest.mark.parametrize(
    ("metadata", "source"),
    [
        ('metadata={op_name="jit(f)/dot_general" stack_frame_id=2}', "loss.py:7"),
        ('metadata={op_name="jit(f)/dot_general" source_file="/a/model.py" source_line=12}', "model.py:12"),
        ('metadata={op_name="jit(f)/dot_general"}', ""),
    ],
)
def test_the_source_line_is_named(metadata: str, source: str) -> None:
    found = only(
        program(f"  ROOT %ar = f32[8,16] all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, {metadata}")
    )
    assert (found.source, found.op_name) == (source, "jit(f)/dot_general")


def test_text_that_is_no_program_is_an_error() -> None:
    with pytest.raises(ValueError, match="no ENTRY computation in 'module @jit_f"):
        parse("module @jit_f attributes {mhlo.num_partitions = 8 : i32}")


def test_a_program_that_the_compiler_wrote() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def place(array: jax.Array, *spec: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, P(*spec)))

    def step(a: jax.Array, b: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return place(place(place(carry, "x"), "x", "y") @ b, "x"), None

        carry, _ = jax.lax.scan(body, a, length=3)
        return place(place(carry, "x"), None, "x")

    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((64, 32), (32, 32))]
    shardings = (NamedSharding(mesh, P("x")), NamedSharding(mesh, P("y")))
    text = jax.jit(step, in_shardings=shardings).lower(*shapes).compile().as_text()
    assert text is not None
    found = {(c.kind, c.bytes, c.axes, c.count) for c in collectives(text, MESH)}
    assert found == {("all-reduce", 32 * 32 * 4, ("y",), 3), ("all-to-all", 32 * 32 * 4, ("x",), 1)}
    assert {c.source.split(":")[0] for c in collectives(text, MESH)} == {"test_hlo.py"}
