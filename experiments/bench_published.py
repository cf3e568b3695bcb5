"""`make bench-published`: the cost model against published problems, kernels, collectives and training runs.

The tables are read from a folder of CSV files (`--data`), by default the small copies in tests/data/published.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import jax
import pandas as pd
import typer

from experiments.published import collectives, matmul, problems, tables, training
from experiments.results import OUT, conditions, keep, markdown, write_csv
from experiments.terminal import bars, console, table

ABOUT: Mapping[str, str] = {
    "problems": """## Worked problems of the scaling book

`make bench-published`: answers of `costmodel` to the book's worked problems, those within 5 % of the printed value; the
others stand one by one in [costs](costs.md).""",
    "matmul": """## Matrix multiplications of real chips

`make bench-published`: a curve of six parameters for each device and triple of types, fitted to XLA's measurements less
those held back; median errors in per cent on those held back. *Half*: every other row. The others are whole families of
shapes never fitted: *narrow* (fewest rows or columns), *large* (a dimension of the largest size), *shallow* (the two
smallest inner sizes), *batched* (the most products at once), *oblong* (all but cubes).""",
    "collectives": """## Collectives of real chips

`make bench-published`: a link with two protocols for each device and kind, fitted to XLA's measurements less those held
back; median errors in per cent on those held back: every other message size, every other group size, or all but half of
the sizes in half of the groups.""",
    "nccl": """## NCCL's own tests

`make bench-published`: as above, for sweeps of nccl-tests over message sizes; half of the sizes are fitted, the other
half predicted, and the other way round. Below, NCCL's tuner on its rings and trees: half of its hosts × GPUs fitted,
the other half's start-up time and bandwidth predicted (the tuner predicts too; it does not measure).""",
    "training": """## Published training runs

`make bench-published`: step times of published runs without a pipeline, predicted by `plan` with the layout that each
had; one constant for each chip and framework, none for a run. Off: predicted over published, less one.""",
    "meshes": """## Alpa's logical meshes

`make bench-published`: seconds of a step of the same model on the same GPUs under several logical meshes and layouts,
as Alpa's authors measured them on a p3.16xlarge and as predicted; ranks count from the fastest. *Uniform*: predicted
with all wires replaced by a switch of the same total rate.""",
}
"""What stands above each table in docs/results.md."""


def main(
    data: Annotated[Path | None, typer.Option(help="Folder of the published tables as CSV files.")] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Only this: {', '.join(ABOUT)}; may be repeated.")] = None,
    keep_results: Annotated[bool, typer.Option("--keep/--no-keep", help="Whether docs/results.md is written.")] = True,
) -> None:
    """Compares the cost model with published figures, and keeps the tables in docs/results.md."""
    jax.config.update("jax_platforms", "cpu")
    where = tables.folder(data)
    makers: Mapping[str, Callable[[Path], list[tuple[str, pd.DataFrame]]]] = {
        "problems": _problems,
        "matmul": _matmul,
        "collectives": _collectives,
        "nccl": _nccl,
        "training": _training,
        "meshes": _meshes,
    }
    for name in only or ABOUT:
        parts = [(title, frame) for title, frame in makers[name](where) if not frame.empty]
        for title, frame in parts:
            write_csv(frame, OUT / f"bench-published-{title}.csv")
            if not title.startswith("all-"):
                console().print(table(frame, title.replace("-", " ")))
        if keep_results:
            shown = [markdown(frame) for title, frame in parts if not title.startswith("all-")]
            keep(f"bench-published-{name}", "\n\n".join([ABOUT[name], f"Computed {conditions()}.", *shown]))


def _problems(where: Path) -> list[tuple[str, pd.DataFrame]]:
    answers = problems.table(tables.read(where, "scaling_book_problems"))
    far = answers[~(answers.off_percent.abs() <= 100 * problems.TOLERANCE)]
    return [("problems", problems.summary(answers)), ("problems-off", far), ("all-problems", answers)]


def _matmul(where: Path) -> list[tuple[str, pd.DataFrame]]:
    return [("matmul", matmul.table(tables.read(where, "xla_matmul")))]


def _collectives(where: Path) -> list[tuple[str, pd.DataFrame]]:
    errors = collectives.xla_errors(tables.read(where, "xla_collectives"))
    return [("collectives", collectives.medians(errors, ["device", "collective"]))]


def _nccl(where: Path) -> list[tuple[str, pd.DataFrame]]:
    frame = tables.read(where, "nccl")
    sweeps, tuner = collectives.nccl_errors(frame), collectives.tuner_errors(frame)
    return [
        ("nccl", collectives.medians(sweeps, ["hardware", "collective"])),
        ("nccl-tuner", collectives.medians(tuner, ["collective", "protocol"])),
    ]


def _training(where: Path) -> list[tuple[str, pd.DataFrame]]:
    runs, others = training.read({name: tables.read(where, name) for name in training.TABLES})
    with bars() as shown:
        task = shown.add_task("training runs", total=len(training.distinct(runs)))
        predicted = training.predict_all(runs, lambda: shown.advance(task), os.cpu_count() or 1)
    return [
        ("training", training.spread(predicted, ["chip", "framework"])),
        ("training-models", training.spread(predicted, ["chip", "framework", "model", "precision"])),
        ("training-constants", training.refitted(predicted)),
        ("training-left-out", training.reasons(others)),
        ("all-training", predicted),
    ]


def _meshes(where: Path) -> list[tuple[str, pd.DataFrame]]:
    runs, _ = training.read({"alpa": tables.read(where, "alpa")})
    return [("meshes", training.meshes(runs))]


if __name__ == "__main__":
    typer.run(main)
