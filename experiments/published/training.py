"""Published training runs, their step times predicted by the planner with the layout that they had."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from typing import Any, cast

import numpy as np
import pandas as pd

from costmodel import CostModel, Topology, preset
from costmodel.topology import Dim
from experiments.published.constants import constant, overlap
from experiments.published.runs import Run, Unpredictable, read_run
from experiments.published.transformer import train_step
from planner import plan
from planner.predict import Prediction

TABLES = ("megatron", "maxtext", "alpa", "nemo", "llama3")
NO_LIMIT_BYTES = 1e15
"""That a run fitted in its memory is known; what is asked is its time."""
SEARCH_SECONDS = 10.0


def read(frames: Mapping[str, pd.DataFrame]) -> tuple[list[Run], pd.DataFrame]:
    """The runs that can be predicted, and the other rows with the reason."""
    runs, others = [], []
    for name, frame in frames.items():
        for row in frame.to_dict("records"):
            try:
                runs.append(read_run(cast(Mapping[str, Any], row)))
            except Unpredictable as reason:
                others.append({"table": name, "id": row["id"], "model": row["model"], "reason": str(reason)})
    return runs, pd.DataFrame(others)


def predict(run: Run, topology: Topology | None = None) -> Prediction:
    """The planner's prediction for a run, on its machine or on another of as many devices.

    State and batch come in as the run had them and activations are constrained to the axes that split them; what is
    left open, the solver closes.
    """
    step = train_step(run.model, run.layout)
    machine = constant(run.chip, run.framework).applied(topology or preset(run.machine))
    planned = plan(
        step.fn,
        step.args,
        run.layout.mesh,
        in_specs=step.in_specs,
        donate_argnums=0,
        cost_model=CostModel(machine, overlap(run.framework)),
        memory_limit=NO_LIMIT_BYTES,
        time_limit=SEARCH_SECONDS,
    )
    return planned.prediction


def predict_all(runs: Sequence[Run], advance: Callable[[], None] = lambda: None, processes: int = 1) -> pd.DataFrame:
    """A line for each run; equal runs of several releases are planned once.

    Args:
        advance: called after each run that is planned; there are as many as `distinct(runs)`.
        processes: how many plan at once; those with the most mesh axes, which take longest, come first.
    """
    waiting = sorted(distinct(runs).items(), key=lambda item: -len(item[1].layout.axes))
    known: dict[str, Prediction] = {}
    if processes == 1:
        for key, run in waiting:
            known[key] = predict(run)
            advance()
    else:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            keys = {pool.submit(predict, run): key for key, run in waiting}
            for done in as_completed(keys):
                known[keys[done]] = done.result()
                advance()
    return pd.DataFrame([_line(run, known[_key(run)]) for run in runs])


def distinct(runs: Sequence[Run]) -> dict[str, Run]:
    """One of each sort of runs that differ in nothing that is predicted from."""
    return {_key(run): run for run in runs}


def _key(run: Run) -> str:
    return repr((run.model, run.layout, run.machine, run.framework))


def _line(run: Run, prediction: Prediction) -> dict[str, Any]:
    sizes = " ".join(f"{axis}={size}" for axis, size in run.layout.sizes.items() if size > 1)
    return {
        "id": run.id,
        "chip": run.chip,
        "framework": run.framework,
        "model": run.model_name,
        "devices": run.devices,
        "precision": run.layout.precision,
        "layout": sizes,
        "published_s": run.seconds,
        "predicted_s": prediction.step_seconds,
        "compute_s": prediction.compute_seconds,
        "communication_s": prediction.communication_seconds,
        "off_percent": 100 * (prediction.step_seconds / run.seconds - 1),
    }


def spread(predicted: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """For each group of runs, and for all, how far predictions are off: the median, and both ends."""
    if predicted.empty:
        return predicted
    groups = predicted.groupby(by, sort=False)
    lines = [{**dict(zip(by, cast(tuple[Any, ...], key), strict=True)), **_spread(group)} for key, group in groups]
    return pd.DataFrame([*lines, {**dict.fromkeys(by, ""), by[0]: "all", **_spread(predicted)}])


def _spread(group: pd.DataFrame) -> dict[str, float]:
    off = group.off_percent
    return {
        "runs": len(group),
        "median_off_percent": float(off.abs().median()),
        "least_percent": float(off.min()),
        "most_percent": float(off.max()),
    }


def refitted(predicted: pd.DataFrame) -> pd.DataFrame:
    """For each chip and framework the constant in use, and the one that these runs alone would give: the median of what
    each would want."""
    lines = []
    for (chip, framework), group in predicted.groupby(["chip", "framework"], sort=False) if len(predicted) else ():
        used = constant(str(chip), str(framework))
        if used.links < 1:
            wanted = used.links * group.communication_s / (group.published_s - group.compute_s)
        else:
            wanted = used.compute * group.compute_s / (group.published_s - group.communication_s)
        lines.append(
            {
                "chip": chip,
                "framework": framework,
                "constant": "links" if used.links < 1 else "compute",
                "in_use": used.links if used.links < 1 else used.compute,
                "from_these_runs": float(wanted.median()),
            }
        )
    return pd.DataFrame(lines)


def reasons(others: pd.DataFrame) -> pd.DataFrame:
    """How many rows each table leaves out, by the reason."""
    if others.empty:
        return others
    return others.groupby(["table", "reason"], sort=False).size().reset_index(name="rows")


def meshes(runs: Sequence[Run]) -> pd.DataFrame:
    """Groups of runs that differ in nothing but their layout, ranked as measured, as predicted, and by even wires."""
    groups: dict[tuple[str, int], dict[str, Run]] = {}
    for run in runs:
        if run.devices > 1:
            groups.setdefault((run.model_name, run.devices), {}).setdefault(repr(run.layout), run)
    lines = []
    for (model, devices), members in groups.items():
        if len(members) < 2:
            continue
        rows = list(members.values())
        times = {
            "measured": [run.seconds for run in rows],
            "predicted": [predict(run).step_seconds for run in rows],
            "uniform": [predict(run, evened(preset(run.machine))).step_seconds for run in rows],
        }
        ranks = {name: np.argsort(np.argsort(seconds)) + 1 for name, seconds in times.items()}
        for place, run in enumerate(rows):
            sizes = " ".join(f"{axis}={size}" for axis, size in run.layout.sizes.items() if size > 1)
            line: dict[str, Any] = {"model": model, "devices": devices, "layout": sizes}
            for name, seconds in times.items():
                line |= {f"{name}_s": seconds[place], f"{name}_rank": int(ranks[name][place])}
            lines.append(line)
    return pd.DataFrame(lines)


def evened(topology: Topology) -> Topology:
    """The same devices behind one switch, each with the rate that all its wires have together."""
    link = topology.dims[-1].link
    rate = sum(dim.link.bytes_per_second for dim in topology.dims)
    even = replace(link, kind="switch", bytes_per_second=rate, wire_bytes_per_second=None)
    return replace(topology, dims=(Dim("gpu", topology.device_count, even),))
