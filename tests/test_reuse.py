"""What comes from memory again: by reuse distance, in programs written down by hand, and in a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import scan_p
from jax.sharding import AbstractMesh

from costmodel import CostModel, Device, preset
from costmodel.memory import MemorySample
from costmodel.model import MeshCost
from costmodel.topology import Backend
from planner import plan
from planner.buffers import Timeline
from planner.graph import Op, Value
from planner.packing import Allocation
from planner.program import Array, Collective, Instruction, Program
from planner.reuse import refetch_seconds
from planner.traits import LIBRARY, Traits

WARM = tuple(MemorySample(2.0**power, 2.0**power * 1e-12) for power in (10, 26))
COLD = tuple(MemorySample(2.0**power, 2.0**power * 10.0 ** (power / 2 - 18)) for power in (10, 16, 20, 26))
"""A byte takes longer the more of them there are."""
DEVICE = Device("d", {"float32": 1e15}, 1e9, 1e12, 0.0, memory_curve=WARM, cold_memory_curve=COLD)
SMALL, LARGE = 2**14, 2**20
MEETING = Instruction(
    "all-to-all", LIBRARY, (), (), "", 1.0, collectives=(Collective("all-to-all", 0.0, ("x",), 1.0, 0.0, ""),)
)


def far(nbytes: float, distance: float) -> float:
    return float(DEVICE.refetch_seconds(nbytes, distance))


def on(backend: Backend, device: Device = DEVICE) -> MeshCost:
    return MeshCost({}, device, backend, reduce_scatters=False, overlap={}, groups={}, waits=None)


def array(nbytes: int) -> Array:
    return Array((nbytes // 4,), "", "", Value((nbytes // 4,), np.dtype("float32")))


def op(reads: Sequence[Array], *writes: Array, name: str = "sin", count: float = 1.0, **more: Any) -> Instruction:
    traits = Traits(updates=name == "dynamic_update_slice") if name != "scan" else LIBRARY
    return Instruction(name, traits, tuple(reads), writes, "", count, **more)


def scan(*body: Instruction, reads: Sequence[Array] = (), slices: int = 0, **more: Any) -> Instruction:
    """A loop; of what it reads it slices so many of the last."""
    whole = len(reads) - slices
    of = Op(scan_p, {"num_consts": whole, "num_carry": 0}, tuple(one.value for one in reads), (), "")
    return op(reads, name="scan", op=of, bodies=(Program((), (*body, op([], count=body[0].count)), (), **more),))


def seconds(
    *instructions: Instruction,
    arguments: Sequence[Array] = (),
    all_bytes: float = math.inf,
    backend: Backend = "cpu",
    device: Device = DEVICE,
    meeting: bool = True,
    **over_time: Any,
) -> float:
    """Each instruction is a kernel of its own, before which the devices meet."""
    programs = [Program(tuple(arguments), instructions, ()), *(body for one in instructions for body in one.bodies)]
    before = [(MEETING,)] if meeting else []
    kernels = {
        program: [kernel for one in program.instructions for kernel in (*before, (one,))] for program in programs
    }
    return refetch_seconds(on(backend, device), programs[0], Timeline(kernels=kernels, **over_time), all_bytes)


def test_the_farther_back_the_longer_it_takes_to_read_again() -> None:
    assert far(SMALL, SMALL) < far(SMALL, LARGE) < far(SMALL, 16 * LARGE)
    assert far(2 * SMALL, LARGE) == pytest.approx(2 * far(SMALL, LARGE))
    assert far(SMALL, LARGE) == pytest.approx(SMALL * (1e-8 - 1e-12))
    assert far(SMALL, 0.0) == far(SMALL, SMALL)  # it has been touched itself since
    assert float(replace(DEVICE, memory_curve=()).refetch_seconds(SMALL, LARGE)) == 0


def test_distances_are_bytes_read_and_written_since() -> None:
    a, b, c, d = array(SMALL), array(LARGE), array(SMALL), array(SMALL)
    assert seconds(op([], a), op([a], c)) == pytest.approx(far(SMALL, 0))
    between = op([array(LARGE)], b)
    assert seconds(op([], a), between, op([a], c)) == pytest.approx(far(SMALL, 2 * LARGE))
    twice = seconds(op([], a), between, op([a], c), op([a], d))
    assert twice == pytest.approx(far(SMALL, 2 * LARGE) + far(SMALL, SMALL))


def test_no_more_lies_between_than_there_is_however_often_it_is_touched() -> None:
    a, b = array(SMALL), array(LARGE)
    again_and_again = [op([], b), *(op([b], array(4)) for _ in range(8))]
    far_off = seconds(op([], a), *again_and_again, op([a], array(4)), all_bytes=SMALL + LARGE)
    assert far_off == pytest.approx(far(SMALL, SMALL + LARGE) + far(LARGE, 0) + 7 * far(LARGE, LARGE), rel=0.01)


def test_the_first_to_read_an_argument_has_it_from_memory_in_its_price() -> None:
    argument = array(LARGE)
    assert seconds(op([argument], array(SMALL))) == 0
    twice = seconds(op([argument], array(SMALL)), op([argument], array(SMALL)))
    assert twice == pytest.approx(far(LARGE, SMALL))
    part, other = (op([argument], array(SMALL), name="slice") for _ in range(2))
    assert seconds(part, other) == 0, "each has its own part from memory"
    assert seconds(op([argument], array(SMALL)), part) == pytest.approx(far(SMALL, SMALL))


def test_a_device_that_runs_on_alone_has_its_own_caches() -> None:
    """Which are those of loops over one array; where devices meet, others' arrays go through them."""
    a, b = array(LARGE), array(2 * LARGE)
    slower = tuple(MemorySample(2.0**power, 2.0 ** (1.5 * power) * 1e-12) for power in (18, 26))
    device = replace(DEVICE, memory_curve=slower)
    alone, met = (float(device.refetch_seconds(LARGE, 2 * LARGE, met)) for met in (False, True))
    assert 0 < alone < met
    calls = op([], a), op([], b), op([a], array(4))
    assert seconds(*calls, device=device, meeting=False) == pytest.approx(alone)
    assert seconds(*calls, device=device) == pytest.approx(met)
    assert seconds(*calls[:2], MEETING, calls[2], device=device, meeting=False) == pytest.approx(met)
    assert seconds(MEETING, *calls, MEETING, device=device, meeting=False) == pytest.approx(alone)


def test_memory_timed_after_a_meeting_counts_there_in_place_of_what_a_call_touches_first() -> None:
    timed = tuple(replace(sample, seconds=2 * sample.seconds) for sample in COLD)
    device = replace(DEVICE, met_memory_curve=timed)
    assert float(device.refetch_seconds(LARGE, LARGE)) == pytest.approx(2 * far(LARGE, LARGE), rel=0.01)
    assert device.refetch_seconds(LARGE, LARGE, False) == DEVICE.refetch_seconds(LARGE, LARGE, False)
    assert device.memory_seconds(LARGE, LARGE) == DEVICE.memory_seconds(LARGE, LARGE)


def test_devices_meet_in_loops_too() -> None:
    a, b = array(LARGE), array(SMALL)
    meets, alone = (scan(op([], b), *more) for more in ([MEETING], []))
    entered = seconds(op([], a), meets, op([a], array(4)), meeting=False)
    assert entered == pytest.approx(far(LARGE, 2 * SMALL), rel=1e-3)
    assert seconds(op([], a), alone, op([a], array(4)), meeting=False) == pytest.approx(0.0, abs=1e-12)
    reader = op([a], array(4), count=9.0)
    assert seconds(scan(reader, MEETING), meeting=False) == pytest.approx(9 * far(LARGE, 4), rel=0.01)
    assert seconds(scan(reader), meeting=False) == pytest.approx(0.0, abs=1e-12)


def test_where_no_memory_is_cold_meeting_makes_no_difference() -> None:
    """On a GPU: a device is never handed on to another."""
    slower = tuple(MemorySample(2.0**power, 2.0 ** (1.5 * power) * 1e-12) for power in (18, 26))
    device = replace(DEVICE, memory_curve=slower, cold_memory_curve=())
    calls = op([], a := array(LARGE)), op([], array(2 * LARGE)), op([a], array(4))
    met, alone = (seconds(*calls, device=device, backend="gpu", meeting=meeting) for meeting in (True, False))
    assert met == alone > 0


def test_few_bytes_are_not_slower_than_many() -> None:
    """What starting a kernel takes is in the curve of cold memory, and is not taken again."""
    started = (COLD[0], MemorySample(2.0**18, 0.01), *COLD[2:])
    device = replace(DEVICE, cold_memory_curve=started)
    assert float(device.refetch_seconds(2**18, 2**18)) == pytest.approx(far(2**18, LARGE))


def test_a_part_of_an_array_is_no_more_than_that() -> None:
    whole = array(LARGE)
    assert seconds(op([], whole), op([whole], array(SMALL), name="slice")) == pytest.approx(far(SMALL, 0))
    update = op([whole, array(SMALL)], array(LARGE), name="dynamic_update_slice")
    assert seconds(op([], whole), update) == pytest.approx(far(SMALL, 0))


def test_what_nobody_needs_of_an_array_is_not_read() -> None:
    whole = array(LARGE)
    half = op([whole], array(LARGE))
    assert seconds(op([], whole), half, parts={half: 0.5}) == pytest.approx(far(LARGE / 2, 0))


def test_the_operands_of_a_product_come_from_where_they_were_left() -> None:
    """A GPU is timed with one from memory: the one that was touched longest ago; an argument is farther than all."""
    a, b, argument = array(SMALL), array(LARGE), array(LARGE)
    made = op([], a), op([], b)
    of_a_and_b, of_b_and_a, of_an_argument = (
        op(operands, array(SMALL), name="dot_general") for operands in ([a, b], [b, a], [argument, a])
    )
    assert seconds(*made, of_a_and_b) == pytest.approx(far(SMALL, LARGE) + far(LARGE, SMALL))
    assert seconds(*made, of_an_argument) == pytest.approx(far(SMALL, 2 * LARGE))
    assert seconds(*made, of_a_and_b, backend="gpu") == pytest.approx(far(LARGE, SMALL))
    assert seconds(*made, of_b_and_a, backend="gpu") == pytest.approx(far(LARGE, 0))
    assert seconds(*made, of_an_argument, backend="gpu") == pytest.approx(far(SMALL, 2 * LARGE))


def test_a_collective_takes_as_long_wherever_its_operand_is() -> None:
    a = array(SMALL)
    gather = op([a], array(4 * SMALL), collectives=(Collective("all-gather", 4 * SMALL, ("x",), 1.0, 1e-6, ""),))
    assert seconds(op([], a), op([], array(LARGE)), gather) == 0


def test_what_several_kernels_compute_is_read_by_each_but_not_twice() -> None:
    whole = array(LARGE)
    reader = op([whole], array(LARGE))
    assert seconds(op([], whole), reader, parts={reader: 3.0}) == pytest.approx(far(LARGE, 0))


def test_memory_that_is_handed_on_is_not_touched() -> None:
    a, same, b = array(SMALL), array(SMALL), array(LARGE)
    assert seconds(op([], a), op([], b), op([a], name="return")) == 0
    reshaped = op([a], same, name="reshape", op=Op(lax.reshape_p, {}, (), (), ""))
    assert seconds(op([], a), op([], b), reshaped, op([same], array(4))) == pytest.approx(far(SMALL, LARGE))


def test_an_array_copied_into_another_layout_is_read_and_written() -> None:
    a, other, b = array(SMALL), array(SMALL), array(LARGE)
    copied = op([a], other, name="copy")  # a step of a change of layout: no op of the program
    assert seconds(op([], a), op([], b), copied) == pytest.approx(far(SMALL, LARGE))
    assert seconds(op([], a), copied, op([a], array(4))) == pytest.approx(far(SMALL, 0) + far(SMALL, SMALL))


def test_what_computes_something_on_the_way_to_a_new_shape_writes_it() -> None:
    a, made = array(LARGE), array(LARGE)
    halved = op([a], array(LARGE), name="mul")
    shaped = op(halved.results, made, name="reshape", op=Op(lax.reshape_p, {}, (), (), ""))
    reader = op([made], array(4))
    program = Program((), (op([], a), halved, shaped, reader), ())
    over_time = Timeline(
        kernels={program: [program.instructions[:1], (MEETING,), (halved, shaped), (MEETING,), (reader,)]}
    )
    assert refetch_seconds(on("cpu"), program, over_time, math.inf) == pytest.approx(2 * far(LARGE, 0))


def test_a_loop_goes_over_its_own_memory_and_drives_out_what_others_have_there() -> None:
    def loop(rounds: float) -> Instruction:
        inside = array(SMALL)
        return scan(op([], inside, count=rounds), op([inside], array(SMALL), count=rounds))

    a = array(SMALL)
    assert seconds(loop(100), meeting=False) == 0
    after = seconds(op([], a), loop(100), MEETING, op([a], array(SMALL)), meeting=False)
    assert after == pytest.approx(far(SMALL, 300 * SMALL))
    assert seconds(op([], a), loop(0), op([a], array(SMALL))) == pytest.approx(far(SMALL, 0))


def test_no_round_has_had_before_what_it_takes_out_of_an_array_of_all_rounds_or_puts_there() -> None:
    part, more, stacked = array(SMALL), array(SMALL), array(8 * SMALL)
    taken = op([stacked], part, name="dynamic_slice", count=8.0)
    put = op([more], array(0), name="dynamic_update_slice", count=8.0)
    loop = scan(taken, op([part], more, count=8.0), put, reads=[stacked], slices=1)
    touched = 8 * 4 * SMALL + LARGE
    of_rounds = pytest.approx(8 * 2 * far(SMALL, touched), rel=0.1)
    assert seconds(loop, op([], array(LARGE))) == of_rounds
    assert seconds(loop, op([], array(LARGE)), arguments=[stacked]) == of_rounds, "a slice at a time, no more"


def test_rounds_of_a_loop_touch_again_what_caches_may_not_keep() -> None:
    def round_of(*more: Instruction) -> Instruction:
        return scan(op([before], after, count=5.0), *more, carried=((after, before),))

    before, after, other, another = (array(LARGE) for _ in range(4))
    slower = tuple(MemorySample(2.0**power, 2.0 ** (1.5 * power) * 1e-12) for power in (18, 26))
    device = replace(DEVICE, memory_curve=slower)
    assert seconds(round_of(), device=device, meeting=False) == 0, "it is where the round before left it"
    three, two = (float(device.refetch_seconds(LARGE, lies * LARGE, met=False)) for lies in (3, 2))
    both = seconds(round_of(op([other], another, count=5.0)), device=device, meeting=False)
    assert both == pytest.approx(5 * (two + 3 * three)), "what goes round was written after it was read"


def test_what_a_core_keeps_between_rounds_takes_no_longer() -> None:
    kept = tuple(MemorySample(nbytes, taken) for nbytes, taken in ((2.0**18, 4e-5), (2.0**20, 1e-4), (2.0**22, 1e-3)))
    device = replace(DEVICE, memory_curve=kept)
    near, far = device.refetch_seconds(SMALL, np.array([2.0**20, 2.0**22]), met=False)
    assert near == 0
    assert far == pytest.approx(SMALL * (1e-3 / 2**22 - 1e-4 / 2**20))


def test_what_a_call_brings_comes_from_memory_once_however_many_rounds_read_it() -> None:
    weights = array(LARGE)
    loop = scan(op([weights], array(SMALL), count=100.0), reads=[weights])
    rest, once = seconds(loop), far(LARGE, 101 * LARGE)
    assert seconds(loop, arguments=[weights]) == pytest.approx(rest + once, rel=0.05)
    copied = array(LARGE)
    again = seconds(loop, arguments=[weights, copied], copied={copied: 1.0})
    assert again == pytest.approx(rest + 3 * once, rel=0.05), (
        "what is copied before all else is read and written as well"
    )


def test_what_is_written_comes_to_lie_where_something_else_was_or_in_cold_memory() -> None:
    """A byte that is only written takes longer, as the first touch of memory has it."""
    a, b, c = array(SMALL), array(SMALL), array(2 * SMALL)
    made = [op([], one) for one in (a, b, c)]
    device = replace(DEVICE, cold_write_factor=1.5)
    alive = lying((a, 0, 2), (b, 1, 2), (c, 4, 6))
    where_both_were = SMALL * (far(2 * SMALL, 2 * SMALL) + far(2 * SMALL, SMALL)) / (2 * SMALL)
    first = 2 * far(SMALL, LARGE)
    assert seconds(*made, arrays=alive, all_bytes=LARGE, device=device) == pytest.approx(
        1.5 * (first + where_both_were)
    )
    alone = seconds(*made, arrays=alive, all_bytes=LARGE, device=device, meeting=False)
    assert alone == pytest.approx(1.5 * first), "c lies in what the caches still have"
    of_caller = alive | lying(result=c)
    assert seconds(*made, arrays=of_caller, all_bytes=LARGE, device=device) == pytest.approx(1.5 * first)


def test_collectives_take_as_long_wherever_they_write() -> None:
    a = array(LARGE)
    gather = op([], a, name="all-to-all", collectives=MEETING.collectives)
    assert seconds(gather, arrays=lying((a, 0, 2))) == 0


def test_a_plan_pays_for_what_it_keeps_for_the_gradient() -> None:
    def loss(x: jax.Array) -> jax.Array:
        for _ in range(6):
            x = jnp.sin(x @ x)
        return x.sum()

    topology = replace(preset("cpu:1"), device=DEVICE, waits=None)
    near = replace(topology, device=replace(DEVICE, cold_memory_curve=WARM))
    x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    mesh = AbstractMesh((1,), ("x",))  # where nothing comes from other devices
    overhead = [
        plan(jax.grad(loss), (x,), mesh, cost_model=CostModel(each)).prediction.overhead_seconds
        for each in (topology, near)
    ]
    assert overhead[0] > overhead[1] + 6 * far(512 * 512 * 4, 512 * 512 * 4)


def brought(nbytes: float, distance: float) -> float:
    return float(DEVICE.brought_seconds(nbytes, distance))


def test_what_collectives_bring_is_priced_as_it_was_timed() -> None:
    """Into sixteen arrays that take turns, or as many as sixteen MiB hold; two at least."""
    assert brought(SMALL, 16 * SMALL) == pytest.approx(0.0)
    assert brought(4 * LARGE, 16 * LARGE) == pytest.approx(0.0)
    assert brought(16 * LARGE, 32 * LARGE) == pytest.approx(0.0)
    assert brought(SMALL, SMALL) == pytest.approx(far(SMALL, SMALL) - far(SMALL, 16 * SMALL))
    assert brought(SMALL, SMALL) < 0.0 < brought(SMALL, LARGE)
    assert float(replace(DEVICE, cold_memory_curve=()).brought_seconds(SMALL, LARGE)) == 0.0


def lying(*arrays: tuple[Array, int, int], **results: Array) -> dict[Array, Allocation]:
    """Arrays with when they are alive."""
    found = {
        each: Allocation(each.nbytes, start, end, "", place=place) for place, (each, start, end) in enumerate(arrays)
    }
    return found | {each: Allocation(each.nbytes, 9, 9, "", role="result") for each in results.values()}


def more_than_all_to_all(*before: Instruction, into: Array, **over_time: Any) -> float:
    """Of an all-gather at the end; what all-to-alls bring was timed there and back, as warm as in programs."""
    taken = [
        seconds(*before, op([array(SMALL)], into, name=name), **over_time) for name in ("all-gather", "all-to-all")
    ]
    return taken[0] - taken[1]


def test_what_collectives_bring_comes_to_lie_where_something_was() -> None:
    """Where `a` was, at once or after `between` was written."""
    a, b, between = array(SMALL), array(SMALL), array(LARGE)
    lies = lying((a, 0, 1), (b, 4, 5), (between, 0, 5))
    assert more_than_all_to_all(op([], a), into=b, arrays=lies) == pytest.approx(brought(SMALL, SMALL))
    later = more_than_all_to_all(op([], a), op([], between), into=b, arrays=lies)
    assert later == pytest.approx(brought(SMALL, SMALL + LARGE), rel=0.05)


def test_what_is_brought_to_the_caller_comes_to_lie_in_cold_memory() -> None:
    result = array(SMALL)
    cold = more_than_all_to_all(into=result, arrays=lying(result=result), all_bytes=4 * LARGE)
    assert cold == pytest.approx(brought(SMALL, 4 * LARGE))


def test_rounds_of_a_loop_bring_where_the_round_before_did() -> None:
    """The first of all rounds counts like the others."""
    a, b = array(SMALL), array(LARGE)

    def taken(name: str) -> float:
        rounds = (op([], a, name=name, count=100.0), op([], b, count=100.0))
        return seconds(scan(*rounds), arrays=lying((a, 0, 1), (b, 0, 1)))

    assert taken("all-gather") - taken("all-to-all") == pytest.approx(100 * brought(SMALL, SMALL + LARGE), rel=0.05)
