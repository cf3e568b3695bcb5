"""What can go wrong, in the user's terms: each message says what, where, what was found, and what to do."""

from __future__ import annotations

from costmodel.errors import MeshwrightError, ProfileError, UnknownPreset

__all__ = [
    "Infeasible",
    "InvalidSpec",
    "MeshwrightError",
    "NoDevices",
    "PlanMismatch",
    "ProfileError",
    "ReplicatedPrimitiveWarning",
    "TraceError",
    "UnknownPreset",
    "UnknownPrimitive",
]


class TraceError(MeshwrightError):
    """The function could not be traced with the example arguments."""


class InvalidSpec(MeshwrightError):
    """A mesh or a PartitionSpec that cannot be: an unknown axis, one named twice, a size that does not divide."""


class Infeasible(MeshwrightError):
    """No plan keeps within the memory limit.

    Attributes:
        smallest_limit_bytes: the least peak, in bytes per device, that any plan found reaches.
    """

    def __init__(self, message: str, smallest_limit_bytes: float):
        super().__init__(message)
        self.smallest_limit_bytes = smallest_limit_bytes


class UnknownPrimitive(MeshwrightError):
    """No sharding rule is known for a primitive and `unknown="error"` was asked for."""


class PlanMismatch(MeshwrightError):
    """Arguments, function or mesh are not those that the plan was made for."""


class NoDevices(MeshwrightError):
    """The plan's mesh has no devices attached to run on, or fewer than it needs."""


class ReplicatedPrimitiveWarning(UserWarning):
    """An op runs replicated on every device because no rule says how to shard it."""
