"""How the figures look: colours that the colour-blind can tell apart, quiet axes, one typeface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

Figure = alt.LayerChart | alt.FacetChart

INK, QUIET, RULE = "#1f2430", "#667085", "#e4e7ec"
PLANNED, BY_HAND, PROPAGATED, RANDOM = "#0b63ce", "#8a94a6", "#d9730d", "#c9b3e6"
FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

# Okabe and Ito (2008), "Color Universal Design", less its yellow, which no white page shows.
CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6b7280")

PARTS = {
    "compute": "#0072b2",
    "all-reduce": "#d55e00",
    "all-gather": "#e69f00",
    "reduce-scatter": "#cc79a7",
    "all-to-all": "#009e73",
    "collective-permute": "#56b4e9",
    "overhead": "#c3c9d4",
}
"""What a step's time goes into, and the colour of each."""

ROLES = {"arguments": "#0072b2", "results": "#56b4e9", "temporaries": "#e69f00"}

CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "labelColor": QUIET, "titleColor": QUIET, "titleFontWeight": "normal", "labelFontSize": 12, "titleFontSize": 12,
        "gridColor": RULE, "domain": False, "tickColor": RULE, "labelLimit": 190, "titlePadding": 8,
    },
    "legend": {
        "orient": "top", "title": None, "labelColor": INK, "labelFontSize": 12, "symbolType": "square",
        "columnPadding": 14, "offset": 6, "columns": 2,
    },
    "header": {"labelColor": INK, "titleColor": QUIET},
}  # fmt: skip


def colour_of(strategy: str) -> str:
    """The plan stands out; layouts by hand stand back together."""
    if strategy.startswith("planned"):
        return PLANNED
    return {"xla-propagation": PROPAGATED, "random": RANDOM}.get(strategy, BY_HAND)


def kind_of(strategy: str) -> str:
    """What sort of layout it is."""
    if strategy.startswith("planned"):
        return "planned"
    return {"xla-propagation": "XLA propagation", "random": "random"}.get(strategy, "by hand")


KIND_COLOURS = {"planned": PLANNED, "by hand": BY_HAND, "XLA propagation": PROPAGATED, "random": RANDOM}


def domain(colours: dict[str, str], used: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the names that are used, in order, and their colours."""
    names = [name for name in colours if name in set(used)]
    return names, [colours[name] for name in names]
