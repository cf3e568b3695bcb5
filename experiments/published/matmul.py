"""Matrix multiplications as XLA measured them: fitted on some, predicted on the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from costmodel.gemm import MatmulFit, MatmulSample, fit_matmul
from costmodel.gpus import GPUS
from experiments.published.chips import gpu_of_key

ITEM_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8, "s8": 1, "f8e4m3fn": 1, "f8e5m2": 1}
NUMPY_NAMES = {"bf16": "bfloat16", "f32": "float32", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}


def samples(rows: pd.DataFrame) -> list[MatmulSample]:
    """The rows of one device and one triple of types."""
    found = []
    for row in rows.itertuples():
        operands, result = str(row.dtypes).split("->")
        left, right = (ITEM_BYTES[name] for name in operands.split("x"))
        m, n, k, b = (float(size) for size in (row.m, row.n, row.k, row.b))  # type: ignore[arg-type]
        nbytes = b * (m * k * left + k * n * right + m * n * ITEM_BYTES[result])
        found.append(MatmulSample(m, k, n, b, nbytes, float(row.time_us) * 1e-6))  # type: ignore[arg-type]
    return found


def errors(fit: MatmulFit, timed: Sequence[MatmulSample]) -> np.ndarray:
    """`[N]` relative errors of the predictions."""
    rows, inner, columns, batch, nbytes, seconds = np.array(
        [(s.rows, s.inner, s.columns, s.batch, s.nbytes, s.seconds) for s in timed]
    ).T
    return np.abs(fit.shape.seconds(fit.flops_per_second, rows, inner, columns, batch, nbytes) / seconds - 1)


def held_out(rows: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    """Ways to hold rows back: every other one, and whole families of shapes."""
    yield "half", np.arange(len(rows)) % 2 == 1
    narrow = min(rows.m.min(), rows.n.min())
    large = max(rows.m.max(), rows.n.max(), rows.k.max())
    yield "narrow", ((rows.m == narrow) | (rows.n == narrow)).to_numpy()
    yield "large", ((rows.m == large) | (rows.n == large) | (rows.k == large)).to_numpy()
    yield "shallow", (rows.k <= rows.k.min() * 2).to_numpy()
    if rows.b.nunique() > 1:
        yield "batched", (rows.b == rows.b.max()).to_numpy()
    yield "oblong", ((rows.m != rows.n) | (rows.n != rows.k)).to_numpy()


def fit(rows: pd.DataFrame) -> MatmulFit:
    """The curve through rows of one device and one triple of types."""
    gpu = GPUS[gpu_of_key(str(rows.device_key.iloc[0]))]
    return fit_matmul(samples(rows), gpu.device().memory_bytes_per_second)


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """For each device and triple of types the median error in per cent on rows held back, by what they are."""
    lines = []
    for (device, dtypes), rows in frame.groupby(["device_key", "dtypes"]):
        line: dict[str, object] = {"device": device, "types": dtypes, "rows": len(rows)}
        for name, out in held_out(rows):
            if out.all() or (~out).sum() < 6:
                continue
            line[f"{name}_percent"] = 100 * float(np.median(errors(fit(rows[~out]), samples(rows[out]))))
        lines.append(line)
    return pd.DataFrame(lines)


def curves(frame: pd.DataFrame) -> Mapping[tuple[str, str], MatmulFit]:
    """By device key and numpy dtype, the curve through all rows whose operands are of that type."""
    found = {}
    for (device, dtypes), rows in frame.groupby(["device_key", "dtypes"]):
        left, right = str(dtypes).split("->")[0].split("x")
        if left == right or left == "f8e5m2":
            found[str(device), NUMPY_NAMES[left]] = fit(rows)
    return found
