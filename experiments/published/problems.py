"""The worked problems of Google's scaling book (jax-ml/scaling-book), each answered by a call to `costmodel`.

An answer comes from a preset's data sheet, a collective on it, or a closed formula of `costmodel.bounds` and
`costmodel.Decoder`; what the book takes for given in a question (a batch, a share of the peak, the time of a step found
before) is given here too. A formula is compared at sizes for which its terms are large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pandas as pd

from experiments.published import problems_early, problems_late
from experiments.published.tables import present

TOLERANCE = 0.05
Answer = Callable[[], float | str | tuple[float, float]]
"""The quantity in the row's unit; for a formula ours and the published one, at the same sizes; or a text."""

CASES: Mapping[str, Answer] = {**problems_early.CASES, **problems_late.CASES}


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """A line for each row: the published value, ours, and how far apart they are."""
    lines = []
    for row in frame.to_dict("records"):
        ours = CASES[str(row["id"])]() if row["id"] in CASES else math.nan
        published, deviation = str(row["value"]), math.nan
        if isinstance(ours, tuple):
            ours, formula = ours
            deviation = ours / formula - 1
        elif isinstance(ours, str):
            deviation = 0.0 if ours == published else math.inf
        else:
            deviation = ours / float(published) - 1
        lines.append(
            {
                "id": row["id"],
                "chapter": row["chapter"],
                "question": row["question"],
                "published": published,
                "ours": ours,
                "unit": row["unit"] if present(row["unit"]) else "",
                "off_percent": 100 * deviation,
                "erratum": row["flag"] if present(row["flag"]) else "",
            }
        )
    return pd.DataFrame(lines)


def summary(answers: pd.DataFrame) -> pd.DataFrame:
    """By chapter and in all: how many rows carry no erratum, and how many of those are within 5 %."""
    sound = answers[answers.erratum == ""]
    close = sound.off_percent.abs() <= 100 * TOLERANCE
    lines = [
        {"chapter": chapter, "rows": len(group), "within_5_percent": int(close[group.index].sum())}
        for chapter, group in sound.groupby("chapter", sort=False)
    ]
    lines.append({"chapter": "all without erratum", "rows": len(sound), "within_5_percent": int(close.sum())})
    near = answers.off_percent.abs() <= 100 * TOLERANCE
    lines.append({"chapter": "all", "rows": len(answers), "within_5_percent": int(near.sum())})
    table = pd.DataFrame(lines)
    table["percent"] = 100 * table.within_5_percent / table.rows
    return table
