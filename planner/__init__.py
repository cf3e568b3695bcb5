"""Meshwright's planner: how every array of a JAX function is laid out over many devices."""

from planner.autoshard import autoshard
from planner.errors import (
    Infeasible,
    InvalidSpec,
    MeshwrightError,
    NoDevices,
    PlanMismatch,
    ProfileError,
    ReplicatedPrimitiveWarning,
    TraceError,
    UnknownPreset,
    UnknownPrimitive,
)
from planner.plan import plan
from planner.planned import Plan
from planner.predict import Prediction
from planner.program import Collective
from planner.rules import ShardingRule, register_rule

__all__ = [
    "Collective",
    "Infeasible",
    "InvalidSpec",
    "MeshwrightError",
    "NoDevices",
    "Plan",
    "PlanMismatch",
    "Prediction",
    "ProfileError",
    "ReplicatedPrimitiveWarning",
    "ShardingRule",
    "TraceError",
    "UnknownPreset",
    "UnknownPrimitive",
    "autoshard",
    "plan",
    "register_rule",
]
