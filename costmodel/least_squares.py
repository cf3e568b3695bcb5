"""Parameters of a formula from measurements: the logarithms of both are compared, outliers count less.

Levenberg (1944) and Marquardt (1963) for the steps; weights by Huber (1964), so that a point far off (a warm-up, a
different kernel) pulls as a linear and not as a quadratic error would.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

OUTLIER = 0.05
"""The relative error from which on a point counts less."""
REWEIGHTINGS = 6
STEPS = 60
LARGEST_STEP = 1.0
"""In the logarithm of a parameter."""
DIFFERENCE = 1e-4
CONVERGED = 1e-7

Residuals = Callable[[np.ndarray], np.ndarray]


def fit_positive(
    predict: Callable[[np.ndarray], np.ndarray], measured: np.ndarray, start: np.ndarray, doubt: np.ndarray
) -> np.ndarray:
    """The positive parameters for which the formula comes nearest to what was measured.

    Args:
        predict: from `[P]` parameters to `[N]` predictions, all positive.
        measured: `[N]`, positive.
        start: `[P]` what the parameters are thought to be, positive.
        doubt: `[P]` the logarithmic distance from `start` that counts as much as one measurement off by as many per
            cent; infinite where the start is a mere guess.

    Returns:
        `[P]` the parameters.
    """
    target, centre = np.log(measured), np.log(start)

    def residuals(parameters: np.ndarray) -> np.ndarray:
        return np.concatenate([np.log(predict(np.exp(parameters))) - target, (parameters - centre) / doubt])

    weights, parameters = np.ones(len(measured) + len(start)), centre
    for _ in range(REWEIGHTINGS):
        parameters = _marquardt(lambda at, weights=weights: weights * residuals(at), parameters)  # type: ignore[misc]
        errors = np.abs(residuals(parameters))
        weights = np.minimum(1.0, np.sqrt(OUTLIER / np.maximum(errors, OUTLIER)))
    return np.exp(parameters)


def _marquardt(residuals: Residuals, parameters: np.ndarray) -> np.ndarray:
    """From there downhill, in steps between Newton's and the steepest."""
    errors, damping = residuals(parameters), 1e-2
    for _ in range(STEPS):
        slopes = np.stack(
            [(residuals(parameters + d) - errors) / DIFFERENCE for d in DIFFERENCE * np.eye(len(parameters))], axis=1
        )
        improved, damping = _step(residuals, parameters, errors, slopes, damping)
        if improved is None:
            return parameters
        lower = residuals(improved)
        gain = 1 - lower @ lower / (errors @ errors)
        parameters, errors = improved, lower
        if gain < CONVERGED:
            return parameters
    return parameters


def _step(
    residuals: Residuals, parameters: np.ndarray, errors: np.ndarray, slopes: np.ndarray, damping: float
) -> tuple[np.ndarray | None, float]:
    """The next parameters, damped until they are better, and the damping; None if there are none."""
    while damping < 1e9:
        rows = np.vstack([slopes, np.sqrt(damping) * np.eye(len(parameters))])
        step = np.linalg.lstsq(rows, np.concatenate([-errors, np.zeros(len(parameters))]), rcond=None)[0]
        tried = parameters + np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        lower = residuals(tried)
        if lower @ lower < errors @ errors:
            return tried, max(damping / 3, 1e-9)
        damping *= 4
    return None, damping
