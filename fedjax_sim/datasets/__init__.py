"""Real data sets by name, from files or prepared by tensorflow-datasets."""

from fedjax_sim.datasets.base import DataError, Dataset, drop_duplicates
from fedjax_sim.datasets.names import NAMES, load

__all__ = ["NAMES", "DataError", "Dataset", "drop_duplicates", "load"]
