"""All steps written with other libraries: training, solving, simulating, sampling."""

import package_networks  # noqa: F401  registers its steps
import package_solvers  # noqa: F401  registers its steps
from package import PACKAGES

__all__ = ["PACKAGES"]
