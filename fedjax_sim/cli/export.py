"""``fedjax-sim export``: one model of a run, for other programs."""

import dataclasses
import pathlib
from typing import Literal

import numpy as np

from fedjax_sim.runs import named_leaves, replacing
from fedjax_sim.studies.setups.saved import Which, load
from fedjax_sim.types import Params

Format = Literal["npz", "safetensors", "orbax"]

DESCRIPTION = """\
Writes one model of FOLDER, which fedjax-sim run, or simulate or compare in Python wrote. npz and
safetensors have an array per path, such as dense/kernel; orbax writes a folder."""

_SUFFIXES: dict[Format, str] = {"npz": ".npz", "safetensors": ".safetensors", "orbax": ""}


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Options of ``fedjax-sim export``."""

    format: Format = "npz"
    """Format of the file."""
    algorithm: str | None = None
    """Name of the algorithm; may be left out if FOLDER has only one."""
    seed: str | None = None
    """Seed of the model; default: the first one."""
    which: Which = "last"
    """The last model, or the best one that --keep-best kept."""
    output: pathlib.Path | None = None
    """The new file, or the new folder of orbax; folders above it are created; default: model, with
    the suffix of the format."""


def export(folder: pathlib.Path, options: ExportOptions) -> tuple[pathlib.Path, str]:
    """Writes the model and returns its path and what it is: algorithm, seed and round."""
    path = options.output or pathlib.Path(f"model{_SUFFIXES[options.format]}")
    named = next((kind for kind, x in _SUFFIXES.items() if x and path.suffix.lower() == x), None)
    if named not in (None, options.format):  # a file of one format with the name of another
        raise ValueError(f"format is {options.format!r}; expected {named!r} for the file {path}")
    saved = load(folder)
    params = saved.params(options.algorithm, options.seed, options.which)
    models = saved.models(options.algorithm, options.which)
    seed = models.seeds[0] if options.seed is None else options.seed
    done = models.rounds[list(models.seeds).index(seed)]
    if path.exists():
        raise ValueError(f"output is '{path}', which exists; expected a new path")
    path.parent.mkdir(parents=True, exist_ok=True)
    write(params, path, options.format)
    name = options.algorithm or saved.algorithms[0]
    return path, f"{name}, seed {seed}, after round {done}"


def write(params: Params, path: pathlib.Path, kind: Format) -> None:
    """Writes a model."""
    arrays = {name: np.ascontiguousarray(x) for name, x in named_leaves(params).items()}
    if kind == "orbax":
        import orbax.checkpoint as ocp  # slow to import

        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path.absolute(), params)
        return
    with replacing(path) as partial:
        if kind == "safetensors":
            from safetensors.numpy import save_file  # an extra

            save_file(arrays, partial)
            return
        # NumPy's files have no bfloat16, every value of which is a float32.
        plain = {k: x.astype(np.float32) if x.dtype.kind == "V" else x for k, x in arrays.items()}
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **plain)
