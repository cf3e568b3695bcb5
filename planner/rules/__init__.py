"""Sharding rules: one per primitive, in families; Shardy's own behind them, replication last."""

# Importing a family registers its rules.
from planner.rules import contraction, elementwise, indexing, linalg, reduction, shape  # noqa: F401
from planner.rules.call import Ruled, ruled_call_p, sharding_rule
from planner.rules.registry import Origin, kernel_flops, register, register_rule, registered, rule_for
from planner.rules.roll import roll, roll_p
from planner.rules.rule import ShardingRule, replicated

__all__ = [
    "Origin",
    "Ruled",
    "ShardingRule",
    "kernel_flops",
    "register",
    "register_rule",
    "registered",
    "replicated",
    "roll",
    "roll_p",
    "rule_for",
    "ruled_call_p",
    "sharding_rule",
]
