"""Running planned functions on real devices: placing, timing, checking, calibrating, auditing."""

from executor.audit import Audit, audit
from executor.calibrate import calibrate
from executor.check import Check, check
from executor.compiled import CompiledCollective
from executor.freed_memory import keep_freed_memory
from executor.profile import Measurement, measure, measure_interleaved

__all__ = [
    "Audit",
    "Check",
    "CompiledCollective",
    "Measurement",
    "audit",
    "calibrate",
    "check",
    "keep_freed_memory",
    "measure",
    "measure_interleaved",
]
