"""`make bench-unseen`: do plans of programs that nothing was tuned to come out as they say?

The audit of `experiments.bench_audit`, of the programs in `experiments.unseen`.
"""

from __future__ import annotations

from functools import partial

import typer

from experiments.bench_audit import RANDOM_PLANS, audit_case, report
from experiments.cases import Cases, one_by_one
from experiments.results import OUT
from experiments.unseen import LOOKED_INTO, PROGRAMS

MESHES = ("2x4", "2x2x2")
CASES = Cases(OUT / "bench-unseen")
ABOUT = f"""## Programs that nothing was tuned to

`make bench-unseen`: the audit of plans, layouts by hand and {RANDOM_PLANS} plans drawn at random, for programs that
were written to see how far the model carries, and taken as they came out at first. How far off they are is what to
expect of a program of one's own; but for {", ".join(LOOKED_INTO)}: those were looked into since, and in part
mended for."""
"""What stands above the table in docs/results.md."""


if __name__ == "__main__":
    about = "Audits plans of programs that nothing was tuned to, and keeps the table in docs/results.md."
    typer.run(
        CASES.command(MESHES, one_by_one(audit_case), partial(report, CASES, ABOUT), 600.0, about, tuple(PROGRAMS))
    )
