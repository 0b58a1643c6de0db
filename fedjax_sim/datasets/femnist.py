"""FEMNIST: handwritten characters by writer, from the json files of LEAF."""

from pathlib import Path

from fedjax_sim.datasets.dataset import Dataset, number_groups
from fedjax_sim.datasets.formats.files import find_one
from fedjax_sim.datasets.formats.leaf import NUM_CLASSES, has_parts, parse_leaf, read_parts

_ARCHIVES = tuple(f"femnist*.tar{suffix}" for suffix in (".xz", ".gz", ".bz2", ""))

WANTED = "LEAF's folder data with train/*.json and test/*.json, or femnist*.tar.xz holding it"


def from_folder(folder: Path) -> Dataset | None:
    """Reads FEMNIST (Caldas et al., 2018) from LEAF's folders or a tar archive of them, or None.

    Images have the polarity of LEAF: background 255, ink 0.  Labels are 0-9 digits, 10-35 A-Z,
    36-61 a-z.  Writers without train images stay in the test part as new clients.
    """
    candidates = (folder / "data", folder)
    location = next((path for path in candidates if has_parts(path)), None)
    location = location or find_one(folder, _ARCHIVES)
    if location is None:
        return None
    parts = read_parts(location, lambda data, where, part: parse_leaf(data, where))
    (x, y, writers), (x_test, y_test, writers_test) = parts.values()
    train, test = {"x": x, "y": y}, {"x": x_test, "y": y_test}
    groups = number_groups(writers, writers_test)
    return Dataset("femnist", train, test, NUM_CLASSES, *groups, source="files")
