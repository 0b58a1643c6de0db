"""Real data sets by name, from tables, arrays and files, or prepared by tensorflow-datasets."""

from fedjax_sim.datasets.arrays import check, from_arrays
from fedjax_sim.datasets.dataset import DataError, Dataset, drop_duplicates
from fedjax_sim.datasets.layouts import layout_hint, to_channels_last
from fedjax_sim.datasets.registry import NAMES, data_folder, folder_of, load
from fedjax_sim.datasets.tables import is_table, read_table

__all__ = [
    "NAMES",
    "DataError",
    "Dataset",
    "check",
    "data_folder",
    "drop_duplicates",
    "folder_of",
    "from_arrays",
    "is_table",
    "layout_hint",
    "load",
    "read_table",
    "to_channels_last",
]
