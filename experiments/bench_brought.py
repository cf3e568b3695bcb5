"""`make bench-brought`: how much longer collectives take into memory that was not touched for a while.

The probes of a calibration, into more arrays or fewer: what arrives comes to lie where something else arrived so many
arrays ago.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import pandas as pd
import typer

from costmodel import preset
from costmodel.device import BROUGHT_ARRAYS, BROUGHT_BYTES
from executor.probe_sizes import probe_sizes
from executor.probes import collective_probe
from executor.timers import compiled, typical_seconds
from experiments.cases import offer_devices
from experiments.results import show_and_keep
from experiments.terminal import bars

DEVICES = 8
KINDS = ("all-gather", "all-reduce", "collective-permute")
GROUPS = (2, 4, 8)
KIB = (16, 64, 256, 1024, 4096)
ARRAYS = (2, 4, 8, 16)
ROUNDS = 12
ABOUT = f"""## Where collectives bring what they bring

`make bench-brought`: collectives of eight CPU devices, of what a kernel has just written, into so many arrays on each
device that take turns. Microseconds are means without the fastest and the slowest tenth of {ROUNDS} rounds in which all
take turns, the kernel included; beyond is what it takes more, or less, than into as many arrays as a calibration has
({BROUGHT_ARRAYS}, {BROUGHT_BYTES >> 20} MiB at most), measured, and by the default profile."""
"""What stands above the table in docs/results.md."""


class Case:
    """A collective into some arrays, compiled."""

    def __init__(self, kind: str, group_size: int, kib: int, arrays: int):
        sizes = replace(probe_sizes("cpu"), kept_bytes=arrays * kib * 1024, most_kept=arrays)
        probe = collective_probe(kind, group_size, kib * 1024, DEVICES, sizes)
        self.kind = kind, group_size, kib
        self.arrays, self.time = probe.repetitions, compiled(probe, jax.devices())()
        self.samples: list[float] = []

    @property
    def nbytes(self) -> int:
        return self.kind[-1] * 1024

    @property
    def total_bytes(self) -> int:
        return self.arrays * self.nbytes

    @property
    def seconds(self) -> float:
        return typical_seconds(self.samples)


def main() -> None:
    """Times collectives into few and many arrays, and keeps the table in docs/results.md."""
    offer_devices(str(DEVICES))
    device = preset(f"cpu:{DEVICES}").device
    kinds = [(kind, size, kib, arrays) for kind in KINDS for size in GROUPS for kib in KIB for arrays in ARRAYS]
    with bars() as shown:
        compiling = shown.add_task("compiling", total=len(kinds))
        cases = {}
        for kind in kinds:
            case = Case(*kind)
            cases[case.kind, case.arrays] = case
            shown.advance(compiling)
        timing = shown.add_task("timing in turns", total=ROUNDS * len(cases))
        for _ in range(ROUNDS):
            for case in cases.values():
                case.samples.append(case.time())
                shown.advance(timing)
    records = []
    for case in cases.values():
        calibrated = [each for each in cases.values() if each.kind == case.kind and each.total_bytes <= BROUGHT_BYTES][
            -1
        ]
        beyond = [float(device.brought_seconds(each.nbytes, each.total_bytes)) for each in (case, calibrated)]
        records.append(
            {
                **dict(zip(("kind", "over", "KiB"), case.kind, strict=True)),
                "arrays": case.arrays,
                "measured_us": case.seconds * 1e6,
                "beyond_us": (case.seconds - calibrated.seconds) * 1e6,
                "predicted_us": (beyond[0] - beyond[1]) * 1e6,
            }
        )
    frame = pd.DataFrame(records)
    show_and_keep("bench-brought", "collectives into memory touched so many arrays ago", ABOUT, frame)


if __name__ == "__main__":
    typer.run(main)
