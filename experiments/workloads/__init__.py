"""Functions to plan for: train steps, simulations, and the examples of the documentation.

>>> workload("gpt").example_args[1]["inputs"].shape
(8, 64)
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from experiments.workloads import cnn, examples, gpt, heat, llama, lstm, mlp, moe
from experiments.workloads.workload import Size, Workload, gradient_of

__all__ = ["Size", "Workload", "names", "workload"]

Builder = Callable[[Size], Workload]


def _gradient(build: Builder) -> Builder:
    return lambda size: gradient_of(build(size))


_EXAMPLES: dict[str, Builder] = {
    "sigmoid-layer": examples.sigmoid_layer,
    "sum-axis": examples.sum_axis,
    "elementwise-40x40": examples.elementwise,
    "heat-1d": heat.heat_1d,
    "heat-2d": heat.heat_2d,
}

_BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "gpt": gpt.gpt,
        "gpt-scan": gpt.gpt_scan,
        "llama": llama.llama,
        "moe": moe.moe,
        "cnn": cnn.cnn,
        "lstm": lstm.lstm,
        "mlp": mlp.mlp,
    }
    | _EXAMPLES
    | {f"{name}-grad": _gradient(build) for name, build in _EXAMPLES.items()}
)


def names() -> tuple[str, ...]:
    """The names that `workload` knows."""
    return tuple(_BUILDERS)


def workload(name: str, size: Size = "test") -> Workload:
    """The workload of that name, small enough to run here (`test`) or as large as in earnest (`full`).

    Raises `ValueError` for a name that is not in `names()`.
    """
    if name not in _BUILDERS:
        close = get_close_matches(name, _BUILDERS)
        meant = f"did you mean {' or '.join(map(repr, close))}?" if close else "none is near it."
        raise ValueError(f"no workload is named {name!r}: {meant} Known: {', '.join(_BUILDERS)}")
    return _BUILDERS[name](size)
