"""`make bench-unseen`: do plans of programs that nothing was tuned to come out as they say?

The audit of `experiments.bench_audit`, of the programs in `experiments.unseen`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import typer

from experiments import arguments
from experiments.bench_audit import RANDOM_PLANS, audits, report
from experiments.cases import Cases, offer_devices, one_by_one
from experiments.results import OUT
from experiments.unseen import LOOKED_INTO, PROGRAMS
from planner import plan

MESHES = ("2x4", "2x2x2")
CASES = Cases(OUT / "bench-unseen")
ABOUT = f"""## Programs that nothing was tuned to

`make bench-unseen`: the audit of plans, layouts by hand and {RANDOM_PLANS} plans drawn at random, for programs that
were written to see how far the model carries, and taken as they came out at first. How far off they are is what to
expect of a program of one's own; but for {", ".join(LOOKED_INTO)}: those were looked into since, and in part
mended for."""
"""What stands above the table in docs/results.md."""


def audit_unseen(name: str, mesh: str) -> dict[str, Any]:
    """What the audit of each plan of a program finds. Runs in a process of its own, on CPU devices."""
    offer_devices(mesh)
    program = PROGRAMS[name]()
    devices = arguments.device_mesh(arguments.shape(mesh))
    planned = plan(program.fn, program.example_args, devices, donate_argnums=program.donate_argnums)
    return {"audits": audits(planned)}


if __name__ == "__main__":
    about = "Audits plans of programs that nothing was tuned to, and keeps the table in docs/results.md."
    typer.run(
        CASES.command(MESHES, one_by_one(audit_unseen), partial(report, CASES, ABOUT), 600.0, about, tuple(PROGRAMS))
    )
