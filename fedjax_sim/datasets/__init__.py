"""Real data sets by name, from files or prepared by tensorflow-datasets."""

from fedjax_sim.datasets.dataset import DataError, Dataset, drop_duplicates
from fedjax_sim.datasets.registry import NAMES, load

__all__ = ["NAMES", "DataError", "Dataset", "drop_duplicates", "load"]
