"""Reports: a run, a comparison or a sweep as one HTML file with interactive charts."""

from fedjax_sim.reports.page.report import report

__all__ = ["report"]
