"""The curves that presets of GPUs go by, fitted to the published tables: `python -m experiments.published.profiles`.

They are kept in costmodel/profiles/. Fitted to every row; how well rows are predicted that were not fitted is what
`make bench-published` says.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from costmodel import CostModel, Topology
from costmodel.fit_link import fit_dim
from costmodel.gemm import MatmulShape
from costmodel.gpus import GPUS
from costmodel.topology import Eager, Link
from experiments.published import collectives, matmul, tables
from experiments.results import ROOT

PROFILES = ROOT / "costmodel" / "profiles"
XLA = "openxla/xla, service/gpu/model/default_{matmul,collective}_perf_table.txtpb"
# By profile, the name that XLA's tables have for the GPU.
FROM_XLA = {"h100-dgx": "sm_90", "b200-dgx": "sm_100_B200", "gb200-nvl72": "sm_100_GB200"}
A100_SWEEP = "8xA100-SXM4-80GB"
DIGITS = 4


def main(
    data: Annotated[Path | None, typer.Option(help="Folder of the published tables, whole.")] = None,
) -> None:
    """Writes costmodel/profiles/ anew from the tables."""
    where = tables.folder(data)
    products, timed, nccl = (tables.read(where, name) for name in ("xla_matmul", "xla_collectives", "nccl"))
    curves = matmul.curves(products)
    for name, key in FROM_XLA.items():
        rows = timed[timed.device_key == key]
        shapes = {dtype: fit.shape for (device, dtype), fit in curves.items() if device == key}
        topology = fit_dim(collectives.xla_switch(rows), 0, collectives.xla_samples(rows))
        _write(name, topology, shapes, XLA)
    rows = nccl[(nccl.kind == "sweep") & nccl.hardware.str.startswith(A100_SWEEP)]
    topology = fit_dim(collectives.nccl_topology(rows), 0, collectives.nccl_samples(rows))
    _write("a100-dgx", topology, {}, str(rows.source.iloc[0]).replace('"', "'"))


def _write(name: str, topology: Topology, shapes: dict[str, MatmulShape], source: str) -> None:
    gpu = GPUS[name]
    shapes = {dtype: MatmulShape(**_rounded(shape)) for dtype, shape in shapes.items()}
    (dim,) = topology.dims
    dim = replace(dim, measured={kind: _rounded_link(link) for kind, link in dim.measured.items()})
    device = replace(gpu.device(), matmul=shapes)
    model = CostModel(Topology(name, device, (dim,), "gpu"), measured_on={"source": source})
    (PROFILES / f"{name}.json").write_text(model.to_json())


def _rounded_link(link: Link) -> Link:
    eager = None if link.eager is None else Eager(**_rounded(link.eager))
    return Link(**{**_rounded(link), "eager": eager})


def _rounded(record: Any) -> dict[str, Any]:
    """A dataclass's fields, its numbers to a few digits: more would claim what the fit does not know."""
    return {
        name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for name, value in asdict(record).items()
    }


if __name__ == "__main__":
    typer.run(main)
