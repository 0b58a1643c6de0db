"""Reports: a run, a comparison or a sweep as one HTML file with interactive charts."""

from fedjax_sim.reports.page.document import report
from fedjax_sim.reports.page.sources import LABELS, label_columns

__all__ = ["report"]
