"""The commands of the experiment runner: `meshwright run | report | compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.runner.loop import run_suite
from experiments.runner.suite import read_suite, require_modules, shipped_suites

runner_app = typer.Typer()
INTERRUPTED = 130
"""The exit code of what Ctrl-C ended."""


@runner_app.command()
def run(
    suite_name: Annotated[
        str,
        typer.Argument(metavar="SUITE", help=f"{', '.join(shipped_suites())}; or a file of yours, my-suite.toml."),
    ],
    meshes: Annotated[list[str] | None, typer.Option("--mesh", help="Instead of the suite's; may be repeated.")] = None,
    strategies: Annotated[
        list[str] | None, typer.Option("--strategy", help="Instead of the suite's; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The directory of results.  [default: out/SUITE]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is there.")] = False,
) -> None:
    """Runs a suite of experiments; a row for each run, in results.csv."""
    suite = read_suite(suite_name, meshes=meshes or (), strategies=strategies or ())
    require_modules(suite)
    directory = out or Path("out") / suite.name
    ended = run_suite(suite, directory, resume=resume)
    failed = f", {ended.failed} of them failed" if ended.failed else ""
    typer.echo(f"{ended.rows} of {ended.wanted} runs have a row in {directory / 'results.csv'}{failed}")
    if ended.interrupted:
        typer.echo(f"Stopped; go on with: meshwright run {suite_name} --out {directory} --resume")
        raise typer.Exit(INTERRUPTED)
    typer.echo(f"Look at them with: meshwright report {directory}")


@runner_app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="Of the results of meshwright run.")],
    figures: Annotated[bool, typer.Option(help="Also each figure as SVG and PNG, in DIRECTORY/figures.")] = True,
) -> None:
    """Makes one page, report.html, of a directory of results; it needs no network."""
    from experiments.report import write_report  # plotting takes a second to import, which no other command should

    made = write_report(directory, figures)
    for damage in made.damaged:
        typer.echo(f"left out: {damage}", err=True)
    typer.echo(f"The report of {made.rows} runs is in {made.page}")


@runner_app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="A directory of results.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
) -> None:
    """Says what became faster or slower from A to B, beyond noise."""
    from experiments.compare import comparison_text

    typer.echo(comparison_text(before, after))
