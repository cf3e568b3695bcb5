"""`make bench-unseen-time`: do programs that nothing was tuned to take as long as the model says?

What `experiments.bench_predict` does with the workloads, with the programs of `experiments.unseen`.
"""

from __future__ import annotations

from functools import partial

import typer

from experiments.bench_predict import MESHES, RANDOM_PLANS, measured, report
from experiments.cases import Cases
from experiments.results import OUT, RESULTS
from experiments.unseen import LOOKED_INTO, PROGRAMS

TIMED = tuple(name for name in PROGRAMS if name not in LOOKED_INTO)
"""Unless others are named."""
CASES = Cases(OUT / "bench-unseen-time")
PLOT = RESULTS.with_name("unseen-predicted-against-measured.png")
ABOUT = f"""## Step times of programs that nothing was tuned to

`make bench-unseen-time`: as `make bench-predict`, on eight CPU devices as planned, in layouts by hand, and in
{RANDOM_PLANS} plans drawn at random, for programs that were written to see how far the model carries and that nobody
has looked into since. How far off they are is what to expect of a program of one's own.

![Predicted against measured milliseconds]({PLOT.name})"""
"""What stands above the table in docs/results.md."""

if __name__ == "__main__":
    about = "Holds predictions for programs that nothing was tuned to against the clock; table and plot go to docs."
    typer.run(CASES.command(MESHES, measured, partial(report, CASES, ABOUT, PLOT), 3600.0, about, TIMED))
