"""Collectives as XLA and NCCL's own tests measured them: fitted on some, predicted on the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from costmodel import Topology
from costmodel.fit_link import TimedCollective, fit_dim, timed_seconds
from costmodel.gpus import GPUS, V100
from costmodel.topology import Dim, Link
from experiments.published.chips import gpu_of, gpu_of_key

KINDS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "send_recv": "collective-permute",
}


def xla_samples(rows: pd.DataFrame) -> list[TimedCollective]:
    """Rows of one device; every group of the machine was at it at once."""
    return [
        TimedCollective(kind, (int(size),), float(nbytes), float(microseconds) * 1e-6)
        for kind, size, nbytes, microseconds in zip(
            rows.collective, rows.group_size, rows.tensor_bytes, rows.time_us, strict=True
        )
    ]


def xla_switch(rows: pd.DataFrame) -> Topology:
    """The switch that the rows of one device were measured on, as its data sheet and NCCL's bandwidth have it."""
    gpu = GPUS[gpu_of_key(str(rows.device_key.iloc[0]))]
    size = int((rows.group_size * rows.concurrent_groups).max())
    (dim,) = gpu.dims(1, size)
    return Topology("measured", gpu.device(), (dim,), "gpu")


def every_other(values: Sequence[float]) -> dict[float, bool]:
    return {value: place % 2 == 1 for place, value in enumerate(sorted(set(values)))}


def held_out(rows: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    """Ways to hold rows of one kind back: every other message size, every other group size, all but half of both."""
    rank = rows.groupby("group_size").tensor_bytes.rank(method="dense").to_numpy()
    sizes = rank % 2 == 0
    yield "sizes", sizes
    odd = every_other(rows.group_size.tolist())
    if len(odd) > 1:
        groups = rows.group_size.map(odd).to_numpy(dtype=bool)
        yield "groups", groups
        yield "both", sizes | groups


def xla_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """A line for each row and way that it was held back, with the relative error of its prediction."""
    lines = []
    for (device, kind), rows in frame.groupby(["device_key", "collective"]):
        topology, timed = xla_switch(rows), np.array(xla_samples(rows), dtype=object)
        for name, out in held_out(rows):
            fitted = fit_dim(topology, 0, timed[~out])
            error = relative_errors(fitted, timed[out])
            lines.append(pd.DataFrame({"device": device, "collective": kind, "held_out": name, "error": error}))
    return pd.concat(lines, ignore_index=True) if lines else pd.DataFrame()


def relative_errors(topology: Topology, timed: Sequence[TimedCollective]) -> np.ndarray:
    return np.abs(timed_seconds(topology, timed) / [sample.seconds for sample in timed] - 1)


def medians(errors: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Median errors in per cent, a column for each way of holding rows back; the last line is over all."""
    if errors.empty:
        return errors
    grouped = errors.pivot_table(index=list(by), columns="held_out", values="error", aggfunc="median", sort=False)
    table = (100 * grouped).add_suffix("_percent").reset_index()
    whole = (100 * errors.groupby("held_out").error.median()).add_suffix("_percent")
    return pd.concat([table, pd.DataFrame([{**dict.fromkeys(by, "all"), **whole}])], ignore_index=True)


def nccl_topology(rows: pd.DataFrame) -> Topology:
    """The hosts that the rows of one machine were measured on; for one of unknown make, links of the rate they show."""
    hosts, per_host = int(rows.n_nodes.max()), int(rows.ranks_per_node.max())
    name = gpu_of(str(rows.hardware.iloc[0]))
    gpu = GPUS[name] if name is not None else V100
    dims = replace(gpu, wired=False).dims(hosts, per_host)
    if name is None:
        fastest = 1e9 * float(rows.busbw_GBps.max())
        rates = {"gpu": fastest, "host": fastest / per_host}
        dims = tuple(replace(dim, link=replace(dim.link, bytes_per_second=rates[dim.name])) for dim in dims)
    return Topology("measured", gpu.device(), dims, "gpu")


def nccl_samples(rows: pd.DataFrame) -> list[TimedCollective]:
    """Rows of one machine that give a size and a time."""
    names = [name for name, size in (("n_nodes", rows.n_nodes.max()), ("ranks_per_node", rows.ranks_per_node.max()))
             if size > 1]  # fmt: skip
    return [
        TimedCollective(
            KINDS[str(row.collective)],
            tuple(int(getattr(row, name)) for name in names),
            float(row.size_bytes),  # type: ignore[arg-type]
            float(row.time_us) * 1e-6,  # type: ignore[arg-type]
        )
        for row in rows.itertuples()
    ]


def nccl_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """As `xla_errors`, for NCCL's sweeps over message sizes; the outermost links are those that are fitted."""
    lines = []
    sweeps = frame[frame.kind.isin(["sweep"])] if len(frame) else frame
    for (hardware, kind), rows in sweeps.groupby(["hardware", "collective"]) if len(sweeps) else ():
        rows = rows.sort_values(["n_ranks", "size_bytes"])
        topology, timed = nccl_topology(rows), np.array(nccl_samples(rows), dtype=object)
        for start in (0, 1):
            out = np.arange(len(rows)) % 2 == start
            error = relative_errors(fit_dim(topology, 0, timed[~out]), timed[out])
            name = ("even sizes", "odd sizes")[start]
            lines.append(pd.DataFrame({"hardware": hardware, "collective": kind, "held_out": name, "error": error}))
    return pd.concat(lines, ignore_index=True) if lines else pd.DataFrame()


def tuner_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """NCCL's tuner: start-up and bandwidth for hosts x GPUs never fitted, one protocol at a time, by ring or tree,
    whichever the tuner has as the faster.

    The tuner predicts, it does not measure; what is held against it is how times grow with the group.
    """
    rows = frame[frame.kind == "tuner_alpha_beta"] if len(frame) else frame
    if rows.empty:
        return pd.DataFrame()
    names = rows.algo.str.split("/", expand=True)
    rows = rows.assign(protocol=names[1])[names[0].isin(["Ring", "Tree"])]
    lines = []
    for (collective, protocol), group in rows.groupby(["collective", "protocol"]):
        timed = np.array(tuner_samples(group, KINDS[str(collective).split("/")[0]]), dtype=object)
        out = np.arange(len(timed)) // 2 % 2 == 1
        error = relative_errors(fit_hosts(timed[~out]), timed[out])
        for name, part in (("start", error[::2]), ("bandwidth", error[1::2])):
            lines.append(
                pd.DataFrame({"collective": collective, "protocol": protocol, "held_out": name, "error": part})
            )
    return pd.concat(lines, ignore_index=True)


def tuner_samples(group: pd.DataFrame, kind: str) -> list[TimedCollective]:
    """For each number of hosts and GPUs two: of one byte, which is all start-up, and of so many that it is none."""
    found = []
    for _, ways in group.groupby(["ranks_per_node", "n_nodes"]):
        sizes = int(ways.n_nodes.iloc[0]), int(ways.ranks_per_node.iloc[0])
        for nbytes in (1.0, 1e12):
            seconds = float((ways.time_us * 1e-6 + nbytes / (ways.algbw_GBps * 1e9)).min())
            found.append(TimedCollective(kind, sizes, nbytes, seconds))
    return found


def fit_hosts(timed: Sequence[TimedCollective]) -> Topology:
    """Hosts of eight with plain links, the inner and then the outer fitted to the samples."""
    inner = Link("switch", 1e-6, 4e11, 5e-6)
    outer = Link("network", 5e-6, 5e10, 5e-6)
    topology = Topology("tuner", GPUS["h100-dgx"].device(), (Dim("host", 64, outer), Dim("gpu", 8, inner)), "gpu")
    for _ in range(2):
        for index in (1, 0):
            topology = fit_dim(topology, index, timed)
    return topology
