"""``fs.load``: models and histories of a folder of results, in another process."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.checks import check_choice
from fedjax_sim.models import Model
from fedjax_sim.objectives import as_float
from fedjax_sim.reports import read_folder, run_folders
from fedjax_sim.runs import FolderError, Models, RunFolder, Which, joined, read_json
from fedjax_sim.studies.setups.config_file import SavedRun, read_saved
from fedjax_sim.types import Params

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def load(folder: str | pathlib.Path, model: Model | None = None) -> "SavedResults":
    """Returns the results in a folder that ``simulate``, ``compare`` or ``fedjax-sim run`` wrote.

    Nothing is read before it is asked for; unfinished runs have the models of their last call.  No
    code runs that the folder names, since the folder may come from others.

    Args:
        folder: the folder.
        model: the model of the runs, without adapters; default: the model of the package that the
            folder names.

    Raises:
        ValueError: no such folder, or no run in it.

    Example:
        >>> import tempfile
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"y": np.ones(2, np.float32)}, np.array([0, 1, 2]))
        >>> task = fs.empirical_task(lambda w, b, key: (w - b["y"]) ** 2, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(3, 2, task.num_steps), np.float32(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fs.simulate(fs.fedavg(0.1), setup, jax.random.key(0), storage=folder)
        ...     saved = load(folder)
        ...     round(float(saved.params()), 3), saved.models().rounds
        (0.488, [3])
    """
    path = pathlib.Path(folder)
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"folder is '{path}', which {found}; expected a folder of results")
    runs = run_folders(path)
    if (path / "slices").is_dir():
        raise ValueError(
            f"folder is '{path}', which holds a sweep; expected a folder of runs. fs.sweep with "
            "storage=fs.Storage(folder, keep_models=True) reads a sweep's finished runs and models"
        )
    if not runs:
        raise ValueError(
            f"folder is '{path}', which has no run; expected a folder that simulate, compare or "
            "fedjax-sim run wrote"
        )
    return SavedResults(path, runs, model)


@dataclasses.dataclass(frozen=True)
class SavedResults:
    """Results in a folder, read when they are asked for."""

    folder: pathlib.Path
    runs: dict[str, list[pathlib.Path]]  # by algorithm: one folder of all seeds, or one per seed
    own_model: Model | None = None  # replaces the one that the folder names

    @property
    def algorithms(self) -> list[str]:
        """Names of the algorithms."""
        return list(self.runs)

    def to_frame(self) -> "pd.DataFrame":
        """Returns the tidy history: algorithm, seed, diverged_at, round, metric, value."""
        return read_folder(self.folder).history

    def plot(self, *arguments: Any, **options: Any) -> "Figure":
        """Returns learning curves, as :func:`fedjax_sim.plot` of the folder."""
        from fedjax_sim.reports.figures import plot_folder  # slow to import

        return plot_folder(self.folder, *arguments, **options)

    def models(self, algorithm: str | None = None, which: Which = "last") -> Models:
        """Returns the models of all seeds of an algorithm, leaves ``[n, ...]``.

        Args:
            algorithm: its name; may be left out if there is only one.
            which: "last", or "best" if :class:`fedjax_sim.runs.callbacks.BestModel` kept them.

        Raises:
            ValueError: no such algorithm.
            ~fedjax_sim.runs.storage.files.FolderError: there are no such models, or they are
                damaged.
        """
        check_choice(("last", "best"), which=which)
        folders = [RunFolder(path) for path in self.runs[self._name(algorithm)]]
        if which == "best" and not any(folder.has_models("best") for folder in folders):
            raise FolderError(
                f"which is 'best', but {folders[0].path} has no best.npz; expected a run with "
                "--keep-best or callbacks.BestModel"
            )
        return joined([folder.models(which) for folder in folders])

    def params(
        self, algorithm: str | None = None, seed: int | str | None = None, which: Which = "last"
    ) -> Params:
        """Returns one model.

        Args:
            algorithm, which: as in :meth:`models`.
            seed: its name; default: the first one.

        Raises:
            ValueError: no such algorithm or seed.
        """
        models = self.models(algorithm, which)
        seeds = list(map(str, models.seeds))
        if seed is not None and str(seed) not in seeds:
            raise ValueError(f"seed is {seed!r}; expected one of {', '.join(seeds)}")
        at = 0 if seed is None else seeds.index(str(seed))
        return jax.tree.map(lambda x: x[at], models.params)

    @property
    def config(self) -> dict[str, Any]:
        """Content of ``config.json``; empty for folders of ``simulate`` and ``compare``."""
        path = self.folder / "config.json"
        if self._saved is None:  # verifies it
            return {}
        return read_json(path, "restore it from a copy", by_hand=True)

    @functools.cached_property
    def model(self) -> Model:
        """The model that ``fedjax-sim run`` trained, or the one that :func:`load` was given.

        Raises:
            ValueError: the folder is not one of ``fedjax-sim run``, or its model is that of a study
                module.
        """
        from fedjax_sim.studies.setups.model import NoAdapters, adapted, named_model

        saved, path = self._saved, self.folder / "config.json"
        if self.own_model is not None:
            adapters = NoAdapters() if saved is None else saved.config.adapters
            return adapted(self.own_model, adapters)
        if saved is None or None in (saved.model.name, saved.data.shape, saved.data.classes):
            raise ValueError(
                f"folder is '{self.folder}', which does not record its model; expected a folder of "
                "fedjax-sim run, or apply=... as the model's function of (params, x)"
            )
        if "model" in saved.own:
            raise ValueError(
                f"{path} has the model of a study module, and a file names no code; expected "
                "fs.load(folder, model=...) with that model"
            )
        data, name = saved.data, saved.model.name
        try:
            net = named_model(name, data.shape, data.classes)  # type: ignore[arg-type]
        except (TypeError, OverflowError) as error:  # of a type or a shape that arrays cannot have
            raise FolderError(f"{path} has data {data}, which no model takes: {error}") from error
        return adapted(net, saved.config.adapters)

    @property
    def _saved(self) -> SavedRun | None:
        """The verified parts of ``config.json``; None if there is none."""
        path = self.folder / "config.json"
        return read_saved(path) if path.exists() else None

    def predict(
        self,
        x: Any,
        algorithm: str | None = None,
        seed: int | str | None = None,
        *,
        which: Which = "last",
        apply: Callable[[Params, Any], Any] | None = None,
        batch_size: int = 1000,
    ) -> np.ndarray:
        """Returns a model's outputs for examples, ``[N, ...]``: logits for a classifier.

        Args:
            x: examples ``[N, ...]`` as the model was trained with: of uint8 pixels uint8, of a
                data set with ``scaling`` its result, ``(x - shift) / divisor`` with the numbers
                under ``data`` in ``config.json``.
            algorithm, seed, which: as in :meth:`params`.
            apply: ``(params, x) -> outputs``; default: that of :attr:`model`.
            batch_size: examples at once.

        Raises:
            ValueError: examples of another shape than the model was trained with, or uint8 for
                another type.
        """
        x = np.asarray(x)
        trained_on = None if apply is not None or self._saved is None else self._saved.data
        apply = self.model.apply if apply is None else apply
        if trained_on is not None:
            expected, trained = trained_on.shape, trained_on.dtype
            if expected is not None and x.shape[1:] != expected:
                raise ValueError(f"x has shape {x.shape}; expected {('N', *expected)}")
            if expected is not None and (x.dtype == np.uint8) != (trained == "uint8"):
                raise ValueError(
                    f"x has dtype {x.dtype}; expected {trained}, since the model divides uint8 by "
                    "255, and nothing else"
                )
        if not len(x):
            raise ValueError(f"x has shape {x.shape}; expected at least one example")
        params = self.params(algorithm, seed, which)
        outputs = jax.jit(lambda params, x: apply(params, as_float(x)))
        parts = [outputs(params, jnp.asarray(part)) for part in _batches(x, batch_size)]
        return np.concatenate([np.asarray(part) for part in parts])[: len(x)]

    def classify(self, x: Any, algorithm: str | None = None, **options: Any) -> np.ndarray:
        """Returns the labels of examples ``[N]``; names, if the data set has names of classes.

        Args:
            x, algorithm, options: as in :meth:`predict`.

        Raises:
            ValueError: as :meth:`predict`; a model with one number per example, such as a binary
                logit.
        """
        outputs = self.predict(x, algorithm, **options)
        if outputs.ndim < 2:
            raise ValueError(
                f"the outputs have shape {outputs.shape}; expected [N, classes]. The label of a "
                "binary logit is predict(...) > 0"
            )
        labels = outputs.argmax(-1)
        names = None if self._saved is None else self._saved.data.class_names
        return np.array(names)[labels] if names else labels

    def _name(self, algorithm: str | None) -> str:
        if algorithm is None and len(self.runs) == 1:
            return next(iter(self.runs))
        if algorithm not in self.runs:
            raise ValueError(
                f"algorithm is {algorithm!r}; expected one of {', '.join(self.algorithms)}"
            )
        return algorithm


def _batches(x: np.ndarray, size: int) -> Sequence[np.ndarray]:
    """Returns batches of equal length, so that one program serves all; the last one is filled."""
    size = min(size, len(x))
    parts = [x[i : i + size] for i in range(0, len(x), size)]
    missing = size - len(parts[-1])
    parts[-1] = np.concatenate([parts[-1], x[:missing]])
    return parts
