"""Parameters of a formula from measurements: the logarithms of both are compared, outliers count less."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import least_squares

OUTLIER = 0.05
"""The relative error from which on a point counts less: it pulls as a linear and not as a quadratic error would."""


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

    found = least_squares(residuals, centre, loss="huber", f_scale=OUTLIER)
    return np.asarray(np.exp(found.x))
