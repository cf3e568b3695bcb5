"""Running planned functions on real devices: placing, timing, checking, calibrating."""

from executor.calibrate import calibrate
from executor.check import Check, check
from executor.profile import Measurement, measure, measure_interleaved

__all__ = ["Check", "Measurement", "calibrate", "check", "measure", "measure_interleaved"]
