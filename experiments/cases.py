"""The cases of a benchmark, measured in processes of their own and each kept as a file: a crash loses few of them.

A case is one workload on one mesh, both as typed, or another pair of words. One that this revision has measured already
is not measured again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import pandas as pd
import typer

from costmodel import CostModel
from experiments import arguments
from experiments.child import ChildFailed, call_in_child
from experiments.results import conditions, keep, markdown, revision, write_csv
from experiments.terminal import bars, console, table
from experiments.unseen import PROGRAMS
from experiments.workloads import Workload, names, workload
from planner import Plan, plan

Case = tuple[str, str]
"""Workload, or program that nothing was tuned to, and mesh, as typed."""
Outcomes = Callable[[Sequence[Case], float], Iterable[Mapping[str, Any]]]
"""Measures cases, of which each may take so many seconds, and gives what was found of each, in their order."""


@dataclass(frozen=True)
class Cases:
    """Where a benchmark keeps its cases: a JSON file for each, with "case", "conditions" and what was found."""

    folder: Path

    def measure(self, wanted: Sequence[Case], outcomes: Outcomes, timeout: float, again: bool) -> None:
        """Measures cases and keeps each as soon as it is there.

        Args:
            timeout: seconds that a case may take.
            again: also what this revision has measured already.
        """
        at, here = revision(), conditions()
        left = [case for case in wanted if again or not self.is_measured(case, at)]
        with bars() as shown:
            task = shown.add_task("", total=len(left))
            for case, found in zip(left, outcomes(left, timeout), strict=True):
                self.store(case, here, found)
                shown.update(task, advance=1, description=" on ".join(case))

    def command(
        self,
        meshes: Sequence[str],
        outcomes: Outcomes,
        report: Callable[[], None],
        timeout: float,
        about: str,
        known: Sequence[str] = names(),
    ) -> Callable[..., None]:
        """A command for `typer.run` that measures workloads on meshes, all by default, and then reports.

        Args:
            timeout: seconds that a case may take, unless the command's caller says otherwise.
            about: what its help says.
            known: all workloads.
        """

        def main(
            workload_names: Annotated[
                list[str] | None, typer.Option("--workload", help="Only this; may be repeated.")
            ] = None,
            only: Annotated[
                list[str] | None, typer.Option("--mesh", help="Only this, such as 2x4; may be repeated.")
            ] = None,
            again: Annotated[
                bool, typer.Option("--again", help="Also what this revision has measured already.")
            ] = False,
            limit: Annotated[float, typer.Option("--timeout", help="Seconds that a case may take.")] = timeout,
        ) -> None:
            wanted = [(name, mesh) for name in workload_names or known for mesh in only or meshes]
            self.measure(wanted, outcomes, limit, again)
            report()

        main.__doc__ = about
        return main

    def store(self, case: Case, here: str, found: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(case).write_text(json.dumps({"case": case, "conditions": here, **found}))

    def is_measured(self, case: Case, at: str) -> bool:
        """Whether the case was measured, without failing, at this very revision; of changed files one cannot know."""
        if at.endswith("-dirty") or not self._path(case).exists():
            return False
        record = json.loads(self._path(case).read_text())
        return "failure" not in record and record["conditions"].endswith(f"revision {at}")

    def records(self) -> list[dict[str, Any]]:
        """All that was measured so far, in the order of the workloads, then of the alphabet."""
        place = {name: place for place, name in enumerate(names())}
        found = [json.loads(path.read_text()) for path in self.folder.glob("*.json")]
        return sorted(
            found,
            key=lambda record: (place.get(record["case"][0], len(place)), record["case"][0], len(record["case"][1])),
        )

    def tabulate(self, row: Callable[[Mapping[str, Any]], Mapping[str, Any]], title: str, about: str) -> None:
        """Prints a table of all that was measured, and keeps it as CSV and, below `about`, in docs/results.md.

        Args:
            row: a record's line, with its "conditions".
        """
        frame = pd.DataFrame([row(record) for record in self.records()])
        write_csv(frame, self.folder.with_suffix(".csv"))
        console().print(table(frame.drop(columns="conditions"), title))
        tables = (f"Measured {here}.\n\n{markdown(part)}" for here, part in by_conditions(frame))
        keep(self.folder.name, "\n\n".join([about, *tables]))

    def summarise(
        self,
        lines: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
        summary: Callable[[pd.DataFrame], pd.DataFrame],
        title: str,
        about: str,
        done: str = "Measured",
    ) -> pd.DataFrame:
        """Prints a summary of all that was found, keeps it, below `about`, in docs/results.md, and all lines as CSV.

        Args:
            lines: those of a record, each with its "conditions".
            summary: of the lines under the same conditions, without these.
            done: what was done under these conditions.

        Returns:
            all lines.
        """
        records = self.records()
        failed = [" on ".join(record["case"]) + ": " + record["failure"] for record in records if "failure" in record]
        frame = pd.DataFrame([line for record in records if "failure" not in record for line in lines(record)])
        write_csv(frame, self.folder.with_suffix(".csv"))
        parts = [about]
        for here, part in by_conditions(frame):
            summed_up = summary(part)
            console().print(table(summed_up, title))
            parts += [f"{done} {here}.", markdown(summed_up)]
        keep(self.folder.name, "\n\n".join([*parts, *(f"Failed: {line}." for line in failed)]))
        return frame

    def _path(self, case: Case) -> Path:
        return self.folder / f"{'-'.join(case)}.json"


def one_by_one(measure: Callable[[str, str], Mapping[str, Any]]) -> Outcomes:
    """Each case in a process of its own, by `measure(workload, mesh)`."""
    return lambda cases, timeout: (outcome(case, measure, timeout) for case in cases)


def outcome(case: Case, measure: Callable[..., Mapping[str, Any]], timeout: float, *given: object) -> Mapping[str, Any]:
    """What the case's process found by `measure(workload, mesh, *given)`, or how it failed, as its "failure"."""
    try:
        found: Mapping[str, Any] = call_in_child(measure, *case, *given, timeout_seconds=timeout)
    except ChildFailed as error:
        return {"failure": str(error)}
    return found


def keep_compiled(folder: Path) -> None:
    """What is compiled here is kept, for the next process that wants the same program."""
    jax.config.update("jax_compilation_cache_dir", str(folder.absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def offer_devices(mesh: str) -> None:
    """As many CPU devices as the mesh has; a case begins with it."""
    jax.config.update("jax_platforms", "cpu")
    arguments.offer_cpu_devices(mesh)


def case_workload(name: str) -> Workload:
    """The workload of that name, or the program of `experiments.unseen`."""
    return PROGRAMS[name]().as_workload(name) if name in PROGRAMS else workload(name)


def planned_case(workload_name: str, mesh: str, cost_model: CostModel | None = None) -> tuple[Workload, Plan]:
    """A case's workload and its plan, by default at the preset's prices."""
    work = case_workload(workload_name)
    planned = plan(
        work.fn,
        work.example_args,
        arguments.device_mesh(arguments.shape(mesh)),
        donate_argnums=work.donate_argnums,
        cost_model=cost_model,
    )
    return work, planned


def by_conditions(frame: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    """What was measured under the same conditions together."""
    if frame.empty:
        return
    for here, part in frame.groupby("conditions"):
        yield str(here), part.drop(columns="conditions")
