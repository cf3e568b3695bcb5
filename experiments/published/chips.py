"""From what the tables call a machine to the preset that it is."""

from __future__ import annotations

# XLA names GPUs by their compute capability.
_XLA_KEYS = {
    "sm_70": "v100-p3",
    "sm_80": "a100-dgx",
    "sm_90": "h100-dgx",
    "sm_100_B200": "b200-dgx",
    "sm_100_GB200": "gb200-nvl72",
    "sm_100": "b200-dgx",
    "sm_103": "gb300-nvl72",
}
_MARKS = {
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "B200": "b200-dgx",
    "B300": "b300-dgx",
    "H200": "h200-dgx",
    "H100": "h100-dgx",
    "A100-SXM4-40GB": "a100-40gb-dgx",
    "A100": "a100-dgx",
    "V100-SXM3": "v100-dgx2",
    "V100": "v100-p3",
}


def gpu_of_key(device_key: str) -> str:
    """The preset for XLA's name of a GPU.

    >>> gpu_of_key("sm_90"), gpu_of_key("sm_100_B200")
    ('h100-dgx', 'b200-dgx')
    """
    return next(name for key, name in _XLA_KEYS.items() if device_key.startswith(key))


def gpu_of(hardware: str) -> str | None:
    """The preset for a machine's description; None for one that does not say which GPU.

    >>> gpu_of("V100-SXM3-32GB (DGX-2)")
    'v100-dgx2'
    """
    return next((name for mark, name in _MARKS.items() if mark in hardware), None)
