"""Errors of the cost model; the planner's derive from the same root."""


class MeshwrightError(Exception):
    """Root of all errors that Meshwright raises on purpose."""


class ProfileError(MeshwrightError, ValueError):
    """A profile that cannot be read: the message names the file and the field."""


class UnknownPreset(MeshwrightError, ValueError):
    """A preset's name that is not known: the message lists the known ones."""
