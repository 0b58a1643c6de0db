"""Runs the library as if only its declared core dependencies were installed:

    python tests/helpers/core_alone.py FOLDER

Imports of other packages raise ModuleNotFoundError, for all importers.  Imports of SciPy, which JAX
requires, raise for modules of the library.
"""

import builtins
import importlib.metadata
import importlib.util
import pathlib
import re
import sys
from importlib.abc import MetaPathFinder

TESTS = pathlib.Path(__file__).resolve().parents[1]
REFUSED = {"scipy", "pandas", "matplotlib", "pydantic"}


def closure(*names: str) -> set[str]:
    """Names of the distributions that distributions require, without extras."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform or version of Python
        waiting += [
            re.match(r"[\w.-]+", line)[0] for line in required if not re.search(r"\bextra\b", line)
        ]
    return found


class Absent(MetaPathFinder):
    """Hides the top-level modules of all other distributions."""

    def __init__(self, allowed: set[str]) -> None:
        owners = importlib.metadata.packages_distributions()
        self.hidden = {
            module
            for module, names in owners.items()
            if not {re.sub(r"[-_.]+", "-", name).lower() for name in names} & allowed
        }

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in self.hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def refuse(name: str, importer: str) -> None:
    """Raises if a module of the library imports what it must not."""
    if importer.startswith("fedjax_sim") and name.partition(".")[0] in REFUSED:
        raise ModuleNotFoundError(f"{importer} imports {name}", name=name)


def install() -> None:
    """Sets the hooks, also for modules that JAX has imported already."""
    dependencies = tuple(
        re.match(r"[\w.-]+", line)[0]
        for line in importlib.metadata.requires("fedjax_sim") or []
        if not re.search(r"\bextra\b", line)
    )
    # pytest is for the catalogue of algorithms, a module of the tests.
    sys.meta_path.insert(0, Absent(closure("fedjax_sim", "pytest", *dependencies)))
    plain_import, plain_module = builtins.__import__, importlib.import_module

    def checked_import(name, globals=None, *arguments, **options):
        refuse(name, (globals or {}).get("__name__", ""))
        return plain_import(name, globals, *arguments, **options)

    def checked_module(name, package=None):
        refuse(name, sys._getframe(1).f_globals.get("__name__", ""))
        return plain_module(name, package)

    builtins.__import__ = checked_import
    importlib.import_module = checked_module


def main(folder: pathlib.Path) -> None:
    """Runs the engine, simulations, a sweep, and every algorithm's factory."""
    install()
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fedjax_sim as fs

    data = fs.FederatedData({"y": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(lambda w, batch, key: (w - batch["y"]) ** 2, data, fs.full_batch(1))
    timeline = fs.timelines.poisson(jax.random.key(0), 4, 2, 0.75, task.num_steps, slots=2)
    setup = fs.Setup(task, timeline, jnp.array(0.0), lambda w: {"error": jnp.abs(w - 2)})
    keys = jax.random.split(jax.random.key(1), 2)
    both = fs.Setup(task, timeline, jnp.zeros(2), lambda w: {"error": jnp.abs(w - 2)})

    fs.run(fs.fedavg(0.25), setup, jax.random.key(1))
    fs.simulate(fs.fedavg(0.25), setup, jax.random.key(1))
    fs.simulate(fs.scaffold(0.25), both, keys, storage=folder / "run")
    fs.compare({"a": fs.fedavg(0.25), "b": fs.feddyn(0.25, 0.1)}, both, keys)
    fs.sweep(fs.fedavg, both, {"lr": [0.1, 0.25]}, keys, storage=folder / "sweep")

    sys.path[:0] = [str(TESTS / "algorithms")]
    from catalogue import ALGORITHMS

    for factory, values in ALGORITHMS.values():
        assert isinstance(factory(**values), fs.FedAlgorithm)

    import pytest

    for use in (lambda: fs.plot, fs.simulate(fs.fedavg(0.25), both, keys).to_frame):
        with pytest.raises(ImportError, match=r"pip install '\.\[cli\]'"):
            use()
    print(f"{len(ALGORITHMS)} algorithms without {len(sys.meta_path[0].hidden)} modules")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
