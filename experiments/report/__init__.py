"""A directory of results as one page to look at."""

from experiments.report.page import Report, write_report

__all__ = ["Report", "write_report"]
