"""`make bench-quick`: how long `meshwright run quick` and its report take, as a person would call them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import typer

from experiments.results import OUT, conditions, keep, markdown, write_csv
from experiments.terminal import console, table

TARGET_SECONDS = 600.0
FOLDER = OUT / "bench-quick"
ABOUT = """## The suite `quick`

`make bench-quick`: seconds of `meshwright run quick` from an empty folder, and of `meshwright report` on what that
left; what came of the runs, each in a process of its own. The numeric error is the largest difference to one device,
relative to the array's largest element: of the plans and hand-written layouts, and of the random ones."""
"""What stands above the table in docs/results.md."""


def main() -> None:
    """Runs the suite `quick`, and keeps how long it took in docs/results.md."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    here = conditions()
    run, report = seconds("run", "quick", "--out", FOLDER), seconds("report", FOLDER)
    frame = pd.DataFrame([summary(pd.read_csv(FOLDER / "results.csv"), run, report)])
    write_csv(frame, OUT / "bench-quick.csv")
    console().print(table(frame, "the suite quick"))
    keep("bench-quick", f"{ABOUT}\n\nMeasured {here}.\n\n{markdown(frame)}")


def seconds(*arguments: str | Path) -> float:
    """Seconds of a call of the command. Raises: CalledProcessError: it failed."""
    begun = time.perf_counter()
    subprocess.run([Path(sys.executable).with_name("meshwright"), *arguments], check=True)
    return time.perf_counter() - begun


def summary(rows: pd.DataFrame, run_seconds: float, report_seconds: float) -> dict[str, float]:
    """The line of the table."""
    drawn = rows.strategy == "random"
    return {
        "run_s": run_seconds,
        "target_s": TARGET_SECONDS,
        "report_s": report_seconds,
        "runs": len(rows),
        "ok": int((rows.status == "ok").sum()),
        "not_applicable": int((rows.status == "not applicable").sum()),
        "failed": int((~rows.status.isin(["ok", "not applicable"])).sum()),
        "numeric_error": rows.largest_error[~drawn].max(),
        "numeric_error_random": rows.largest_error[drawn].max(),
    }


if __name__ == "__main__":
    typer.run(main)
