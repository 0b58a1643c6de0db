"""Real data sets by name, from tables, arrays and files, or prepared by tensorflow-datasets."""

from fedjax_sim.datasets.arrays import check_dataset, from_arrays
from fedjax_sim.datasets.columns import Columns, identifiers
from fedjax_sim.datasets.dataset import (
    DataError,
    Dataset,
    Scaling,
    drop_duplicates,
    group_text,
    merged,
)
from fedjax_sim.datasets.features import layout_hint, to_channels_last
from fedjax_sim.datasets.hub import from_hub
from fedjax_sim.datasets.leaf import read_leaf
from fedjax_sim.datasets.pfllib import read_pfllib
from fedjax_sim.datasets.registry import DATA_DIR_VARIABLE, NAMES, data_folder, folder_of, load
from fedjax_sim.datasets.shakespeare import PAD, role_texts
from fedjax_sim.datasets.shakespeare_tff import IGNORE
from fedjax_sim.datasets.tables import (
    LABELS,
    SPLIT,
    SUFFIXES,
    from_table,
    is_table,
    read_columns,
    read_table,
)
from fedjax_sim.datasets.text import Characters, from_text, from_texts, read_text
from fedjax_sim.datasets.tff import read_tff
from fedjax_sim.datasets.token_lists import from_tokens

__all__ = [
    "NAMES",
    "Characters",
    "DataError",
    "Dataset",
    "Scaling",
    "drop_duplicates",
    "from_arrays",
    "from_hub",
    "from_table",
    "from_text",
    "from_texts",
    "from_tokens",
    "load",
    "merged",
    "read_leaf",
    "read_pfllib",
    "read_table",
    "read_tff",
    "role_texts",
    "to_channels_last",
]
