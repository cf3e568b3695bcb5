"""Sharding rules: one per primitive, in families; Shardy's own behind them, replication last."""

from planner.rules import contraction, elementwise, indexing, linalg, reduction, shape
from planner.rules.registry import Origin, register, register_rule, registered, rule_for
from planner.rules.rule import ShardingRule, replicated

__all__ = [
    "Origin",
    "ShardingRule",
    "contraction",
    "elementwise",
    "indexing",
    "linalg",
    "reduction",
    "register",
    "register_rule",
    "registered",
    "replicated",
    "rule_for",
    "shape",
]
