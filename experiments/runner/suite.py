"""Suites: which workloads run on which meshes by which strategies, as TOML files."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field
from difflib import get_close_matches
from importlib import resources
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as validated

from costmodel.errors import MeshwrightError, UnknownPreset
from costmodel.presets import preset
from experiments import arguments, workloads
from experiments.baselines import DIMENSIONS, STRATEGIES, is_strategy
from experiments.runner.columns import COLUMNS
from experiments.runner.trial import Dimensions, Trial
from experiments.workloads import Size
from planner.mesh import AXIS_NAMES

TABLE_COLUMNS = (
    "workload",
    "mesh",
    "strategy",
    "status",
    "predicted_step_seconds",
    "measured_step_seconds",
    "predicted_peak_bytes",
    "compiled_peak_bytes",
    "compiled_communicated_bytes",
    "fidelity",
    "largest_error",
    "compile_seconds",
)
"""What a report's table shows unless the suite says otherwise."""

MOST_LISTED = 20
"""Names, in a message."""


class SuiteError(MeshwrightError):
    """A suite that cannot be: an unknown key, workload, strategy or column, or a value of the wrong type."""


def _known_workload(name: str) -> str:
    if ":" not in name and name not in workloads.names():
        raise ValueError(_unknown("workload", name, workloads.names()) + "; a function of yours is module:function")
    return name


def _known_strategy(name: str) -> str:
    if not is_strategy(name):
        raise ValueError(_unknown("strategy", name, STRATEGIES))
    return name


def _possible_mesh(text: str) -> str:
    sizes = arguments.shape(text)
    try:
        if not sizes:
            preset(text)
    except UnknownPreset as error:
        raise ValueError(f"{text!r} is neither a shape such as 2x4 nor a machine: {error}") from error
    if len(sizes) > len(AXIS_NAMES) or 0 in sizes:
        raise ValueError(f"{text} has {len(sizes)} axes; a mesh has one to {len(AXIS_NAMES)}, none of size 0")
    return text


def _known_column(name: str) -> str:
    if name not in COLUMNS:
        raise ValueError(_unknown("column", name, COLUMNS))
    return name


def _number_of_bytes(text: str) -> str:
    try:
        arguments.nbytes(text)
    except typer.BadParameter as error:
        raise ValueError(error.message) from error
    return text


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"named twice: {', '.join(twice)}")
    return names


Workloads = Annotated[tuple[Annotated[str, AfterValidator(_known_workload)], ...], AfterValidator(_distinct)]
Strategies = Annotated[tuple[Annotated[str, AfterValidator(_known_strategy)], ...], AfterValidator(_distinct)]
Columns = Annotated[tuple[Annotated[str, AfterValidator(_known_column)], ...], AfterValidator(_distinct)]
Meshes = Annotated[tuple[Annotated[str, AfterValidator(_possible_mesh)], ...], AfterValidator(_distinct)]


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Suite:
    """What is to be run. Each workload runs on each mesh by each strategy, as often as there are repeats.

    Attributes:
        workloads: names, or `module:function` for a function of the user's that returns `(fn, arguments)`.
        meshes: shapes such as `2x4` or `8`, of devices at hand; or names of presets, for which there are predictions
            alone.
        size: of the workloads, `test` or `full`.
        repeats: one after the other, so that a machine whose speed drifts does so for every strategy.
        calls, seconds: a run's timing ends when there were so many calls, and they took so long.
        plan_seconds: for the solver.
        check: whether results are held against those of one device.
        calibrate: whether the devices are measured first, for predictions that fit them.
        run_seconds: after which a run is ended.
        run_memory: of the host's memory, that a run may take, such as `8GiB`.
        columns: what the report's table shows.
        dimensions: for a function of the user's, which dimensions of its arguments are the sequence or the experts.
    """

    name: str
    workloads: Annotated[Workloads, Field(min_length=1)]
    meshes: Annotated[Meshes, Field(min_length=1)]
    strategies: Annotated[Strategies, Field(min_length=1)]
    description: str = ""
    size: Size = "test"
    repeats: Annotated[int, Field(gt=0)] = 1
    seed: Annotated[int, Field(ge=0)] = 0
    calls: Annotated[int, Field(gt=0)] = 15
    seconds: Annotated[float, Field(ge=0)] = 1.0
    plan_seconds: Annotated[float, Field(ge=0)] = 30.0
    check: bool = True
    calibrate: bool = True
    run_seconds: Annotated[float, Field(gt=0)] = 300.0
    run_memory: Annotated[str, AfterValidator(_number_of_bytes)] = "16GiB"
    columns: Columns = TABLE_COLUMNS
    dimensions: Mapping[str, Dimensions] = field(default_factory=dict)

    def trials(self) -> list[Trial]:
        """Every run, in order."""
        return [
            Trial(
                workload, self.size, mesh, strategy, repeat, self.seed + repeat - 1, self.calls, self.seconds,
                self.plan_seconds, self.check, self.dimensions_of(workload),
            )
            for repeat in range(1, 1 + self.repeats)
            for workload in self.workloads
            for mesh in self.meshes
            for strategy in self.strategies
        ]  # fmt: skip

    def dimensions_of(self, workload: str) -> Dimensions:
        return self.dimensions.get(workload) or DIMENSIONS.get(workload, Dimensions())

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return json.loads(json.dumps(asdict(self)))


def shipped_suites() -> tuple[str, ...]:
    """The names of the suites that come with this package."""
    found = resources.files("experiments.runner").joinpath("suites").iterdir()
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in found if entry.name.endswith(".toml")))


def read_suite(name: str, *, meshes: Sequence[str] = (), strategies: Sequence[str] = ()) -> Suite:
    """The suite in a TOML file, or one that comes with this package.

    Args:
        name: of a shipped suite, or a path that ends in `.toml`.
        meshes, strategies: instead of the suite's own, if any.

    Raises:
        SuiteError: there is none, or it cannot be; says which key, what was found and what may stand there.
    """
    document = {"name": Path(name).stem, **_read(name)}
    document |= {key: list(given) for key, given in (("meshes", meshes), ("strategies", strategies)) if given}
    return _checked(document, name)


def require_modules(suite: Suite) -> None:
    """Sees that the modules of the user's functions are there, in this directory or installed; imports none of them.

    Raises:
        SuiteError: one is not.
    """
    for workload in suite.workloads:
        module, _, function = workload.partition(":")
        package = module.partition(".")[0]
        if function and not (find_spec(package) or PathFinder.find_spec(package, [os.getcwd()])):
            raise SuiteError(f"workload {workload}: no module is named {package!r}, neither here nor installed")


def _read(name: str) -> dict[str, Any]:
    if name.endswith(".toml"):
        try:
            text = Path(name).read_text()
        except OSError as error:
            raise SuiteError(f"cannot read the suite {name}: {error.strerror}") from error
    elif name in shipped_suites():
        text = resources.files("experiments.runner").joinpath("suites", f"{name}.toml").read_text()
    else:
        raise SuiteError(
            f"{_unknown('suite', name, shipped_suites())}; a suite of your own is a file whose name ends in .toml"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SuiteError(f"{name} is no TOML: {error}") from error


def _checked(document: Mapping[str, Any], where: str) -> Suite:
    try:
        return Suite(**document)
    except ValidationError as error:
        raise SuiteError("\n".join(_complaint(each, where) for each in error.errors())) from error


def _complaint(error: Mapping[str, Any], where: str) -> str:
    """One thing that is wrong with a suite, in the user's terms."""
    *_, key = names = [str(part) for part in error["loc"] if not isinstance(part, int)]
    place = ".".join(names)
    match error["type"]:
        case "unexpected_keyword_argument":
            known = Suite.__annotations__ if len(names) == 1 else Dimensions.__annotations__
            return f"{where}: {_unknown('key', key, known)}"
        case "missing" | "too_short":
            return f"{where}: {place} is missing or empty"
        case "value_error":
            return f"{where}: {place}: {error['ctx']['error']}"
    message = error["msg"].replace("tuple", "list")
    return f"{where}: {place} is {error['input']!r}; {message[0].lower()}{message[1:]}"


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, known)
    meant = f": did you mean {' or '.join(map(repr, close))}?" if close else "."
    listed = ", ".join(known) if len(known) <= MOST_LISTED else "docs/experiments.md lists them"
    return f"no {what} is named {name!r}{meant} Known: {listed}"
