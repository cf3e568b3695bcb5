"""Machines as JSON: `calibrate` writes, `CostModel.read` takes them. Errors name the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from costmodel.calls import CallCost
from costmodel.curves import CollectiveCurve
from costmodel.device import ELEMENT_CLASSES, Device
from costmodel.errors import ProfileError
from costmodel.gemm import MatmulShape
from costmodel.memory import MemorySample
from costmodel.topology import Backend, Dim, Eager, Link, LinkKind, Topology
from costmodel.waits import Waits

FORMAT = 16

_TYPE_NAMES = {str: "a text", bool: "true or false", list: "a list", dict: "an object"}


def dump(topology: Topology, overlap: Mapping[str, float], measured_on: Mapping[str, str | int | float]) -> str:
    record = {
        "format": FORMAT,
        "measured_on": dict(measured_on),
        "overlap": dict(overlap),
        "topology": asdict(topology),
    }
    return json.dumps(record, indent=1, default=dict) + "\n"


def load(text: str, source: str) -> tuple[Topology, dict[str, float], dict[str, str | int | float]]:
    """The arguments of a `CostModel`. Raises: ProfileError."""
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProfileError(f"{source}: not JSON ({error}); write a new profile with `meshwright calibrate`") from None
    root = _Record(source, "", _checked(source, "the profile", record, dict))
    if (version := root.number("format")) != FORMAT:
        raise ProfileError(f"{source}: format {version:g}, but this version reads {FORMAT}: calibrate anew")
    hidden = root.record("overlap")
    overlap = {kind: hidden.number(kind, most=1.0) for kind in hidden.fields}
    return _topology(root.record("topology")), overlap, root.record("measured_on").fields


def read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror or error}; write a profile with `meshwright calibrate`") from None


@dataclass(frozen=True)
class _Record:
    """One JSON object on the way in, with the place where it stood."""

    source: str
    place: str
    fields: dict[str, Any]

    def number(self, key: str, least: float = 0.0, most: float = math.inf) -> float:
        value = self._value(key)
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not fits or not least <= value <= most:
            upto = "" if most == math.inf else f" to {most:g}"
            raise ProfileError(
                f"{self.source}: {self._at(key)} is {value!r}; a number from {least:g}{upto} belongs there"
            )
        return value

    def optional_number(self, key: str, least: float = 0.0) -> float | None:
        """A number, or None where there is null or nothing."""
        return None if self.fields.get(key) is None else self.number(key, least)

    def ascending(self, key: str, strictly: bool = True, least: float = 0.0) -> tuple[float, ...]:
        """Two numbers or more, each larger than the one before, or no smaller."""
        items = _checked(self.source, self._at(key), self._value(key), list)
        places = {f"{key}[{index}]": item for index, item in enumerate(items)}
        found = tuple(_Record(self.source, self.place, places).number(name, least) for name in places)
        if len(found) < 2 or any(b < a or (strictly and a == b) for a, b in pairwise(found)):
            raise ProfileError(f"{self.source}: {self._at(key)} is {items!r}; ascending numbers belong there")
        return found

    def text(self, key: str, choices: tuple[str, ...] = ()) -> Any:
        value = _checked(self.source, self._at(key), self._value(key), str)
        if choices and value not in choices:
            raise ProfileError(
                f"{self.source}: {self._at(key)} is {value!r}; one of {', '.join(choices)} belongs there"
            )
        return value

    def flag(self, key: str) -> bool:
        return bool(_checked(self.source, self._at(key), self._value(key), bool))

    def record(self, key: str) -> _Record:
        return _Record(self.source, self._at(key), _checked(self.source, self._at(key), self._value(key), dict))

    def records(self, key: str) -> list[_Record]:
        items = _checked(self.source, self._at(key), self._value(key), list)
        places = [f"{self._at(key)}[{index}]" for index in range(len(items))]
        return [
            _Record(self.source, place, _checked(self.source, place, item, dict))
            for place, item in zip(places, items, strict=True)
        ]

    def _value(self, key: str) -> Any:
        if key not in self.fields:
            raise ProfileError(f"{self.source}: {self._at(key)} is missing")
        return self.fields[key]

    def _at(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key


def _checked(source: str, place: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ProfileError(f"{source}: {place} is {value!r}; {_TYPE_NAMES[kind]} belongs there")
    return value


def _topology(record: _Record) -> Topology:
    return Topology(
        name=record.text("name"),
        device=_device(record.record("device")),
        dims=tuple(
            Dim(
                d.text("name"),
                int(d.number("size", 2)),
                _link(d.record("link")),
                {kind: _link(links.record(kind)) for links in [d.record("measured")] for kind in links.fields},
            )
            for d in record.records("dims")
        ),
        backend=record.text("backend", get_args(Backend)),
        measured=tuple(map(_curve, record.records("measured"))),
        waits=None if record.fields.get("waits") is None else _waits(record.record("waits")),
    )


def _device(record: _Record) -> Device:
    rates, shapes = record.record("flops_per_second"), record.record("matmul")
    transposed = record.record("transposed_matmul")
    if not rates.fields:
        raise ProfileError(f"{record.source}: {rates.place} is empty; at least one type's rate belongs there")
    return Device(
        kind=record.text("kind"),
        flops_per_second={dtype: rates.number(dtype, 1) for dtype in rates.fields},
        memory_bytes=record.number("memory_bytes", 1),
        memory_bytes_per_second=record.number("memory_bytes_per_second", 1),
        memory_curve=_memory_curve(record.records("memory_curve")),
        cold_memory_curve=_memory_curve(record.records("cold_memory_curve")),
        met_memory_curve=_memory_curve(record.records("met_memory_curve")),
        cold_write_factor=record.number("cold_write_factor"),
        launch_seconds=record.number("launch_seconds"),
        element_seconds=_element_seconds(record.record("element_seconds")),
        call=_call_cost(record.record("call")),
        matmul={dtype: _matmul_shape(shapes.record(dtype)) for dtype in shapes.fields},
        transposed_matmul={dtype: _matmul_shape(transposed.record(dtype)) for dtype in transposed.fields},
        round_seconds=record.number("round_seconds"),
    )


def _memory_curve(records: list[_Record]) -> tuple[MemorySample, ...]:
    return tuple(MemorySample(each.number("nbytes", 1), each.number("seconds", 1e-12)) for each in records)


def _element_seconds(record: _Record) -> dict[str, float]:
    if unknown := sorted(record.fields.keys() - set(ELEMENT_CLASSES)):
        raise ProfileError(
            f"{record.source}: {record.place} has {unknown[0]!r}; known classes are {', '.join(ELEMENT_CLASSES)}"
        )
    return {name: record.number(name) for name in record.fields}


def _call_cost(record: _Record) -> CallCost:
    return CallCost(**{name: record.number(name) for name in CallCost.__dataclass_fields__})


def _matmul_shape(record: _Record) -> MatmulShape:
    return MatmulShape(
        launch_seconds=record.number("launch_seconds"),
        bytes_per_second=record.number("bytes_per_second", 1),
        half_rate_size=record.number("half_rate_size"),
        half_rate_inner=record.number("half_rate_inner"),
        half_rate_outputs=record.number("half_rate_outputs"),
        cached_elements=record.number("cached_elements"),
        overflow_seconds=record.number("overflow_seconds"),
        left_packing_seconds=record.number("left_packing_seconds"),
        right_packing_seconds=record.number("right_packing_seconds"),
        aliased_packing_seconds=record.number("aliased_packing_seconds"),
        slowdown=record.number("slowdown", 1e-3),
    )


def _link(record: _Record) -> Link:
    return Link(
        kind=record.text("kind", get_args(LinkKind)),
        latency_seconds=record.number("latency_seconds"),
        bytes_per_second=record.number("bytes_per_second", 1),
        start_seconds=record.number("start_seconds"),
        wrap=record.flag("wrap"),
        staged=record.flag("staged"),
        wire_bytes_per_second=record.optional_number("wire_bytes_per_second", 1),
        copy_bytes_per_second=record.optional_number("copy_bytes_per_second", 1),
        reduce_bytes_per_second=record.optional_number("reduce_bytes_per_second", 1),
        eager=None if record.fields.get("eager") is None else _eager(record.record("eager")),
    )


def _waits(record: _Record) -> Waits:
    computed = record.ascending("computed_seconds", least=1e-9)
    late = record.ascending("late_seconds", strictly=False)
    if len(computed) != len(late):
        raise ProfileError(
            f"{record.source}: {record.place} has {len(computed)} computed_seconds and {len(late)} late_seconds"
        )
    least = record.record("least_seconds")
    if unknown := [size for size in least.fields if not size.isdecimal() or int(size) < 2]:
        raise ProfileError(f"{record.source}: {least.place} has {unknown[0]!r}; sizes of groups belong there")
    return Waits(computed, late, {int(size): least.number(size) for size in least.fields})


def _eager(record: _Record) -> Eager:
    return Eager(
        start_seconds=record.number("start_seconds"),
        latency_seconds=record.number("latency_seconds"),
        bytes_per_second=record.number("bytes_per_second", 1),
    )


def _curve(record: _Record) -> CollectiveCurve:
    sizes, seconds = record.ascending("total_bytes"), record.ascending("timed_seconds", strictly=False)
    if len(sizes) != len(seconds):
        raise ProfileError(
            f"{record.source}: {record.place} has {len(sizes)} total_bytes and {len(seconds)} timed_seconds"
        )
    return CollectiveCurve(
        kind=record.text("kind"),
        group_size=int(record.number("group_size", 2)),
        total_bytes=sizes,
        timed_seconds=seconds,
        parting_seconds=record.number("parting_seconds"),
        relative_error=record.number("relative_error"),
    )
