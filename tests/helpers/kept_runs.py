"""Identities of the runs that a sweep has kept on disk."""

import json
import pathlib

import numpy as np


def identities(folder: pathlib.Path) -> dict[str, str]:
    """``{"folder configuration seed": digest of data and settings}`` of all slices below a folder.

    An experiment finds a kept run by its folder, configuration, seed and digest, so results that
    users have kept stay valid as long as these do.
    """
    kept = {}
    for path in sorted(folder.rglob("slices/*.npz")):
        with np.load(path) as file:
            entries = json.loads(str(file["meta"]))
        for configuration, seed, data, *_ in entries:
            kept[f"{path.parent.parent.relative_to(folder)} {configuration} {seed}"] = data
    return kept
