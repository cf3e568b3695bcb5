"""Running planned functions on real devices: placing, timing, checking, calibrating, auditing."""

from executor.audit import Audit, audit
from executor.calibrate import calibrate
from executor.check import Check, check
from executor.compiled import CompiledCollective
from executor.profile import Measurement, measure, measure_interleaved

__all__ = [
    "Audit",
    "Check",
    "CompiledCollective",
    "Measurement",
    "audit",
    "calibrate",
    "check",
    "measure",
    "measure_interleaved",
]
