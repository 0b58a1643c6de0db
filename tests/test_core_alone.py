"""The core works where only its declared dependencies are installed, and needs no SciPy."""

import pathlib
import re
import subprocess
import sys

import core_alone
import pytest


@pytest.mark.slow
def test_the_core_needs_its_declared_dependencies_alone(tmp_path):
    command = [sys.executable, core_alone.__file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    counts = re.findall(r"\d+", done.stdout)
    assert int(counts[0]) > 50  # algorithms
    assert int(counts[1]) > 50  # hidden modules; pandas and matplotlib bring more than that


def test_the_hook_tells_the_library_from_others():
    core_alone.refuse("scipy.special", "jax._src.scipy.special")
    core_alone.refuse("numpy", "fedjax_sim.timelines.poisson")
    for name in ("scipy", "pandas.core", "matplotlib.figure", "pydantic"):
        with pytest.raises(ImportError, match=f"fedjax_sim.runs imports {name}"):
            core_alone.refuse(name, "fedjax_sim.runs")


def test_the_closure_has_jax_and_no_extras():
    names = core_alone.closure("fedjax_sim")
    assert {"jax", "optax", "flax", "chex", "filelock", "scipy"} <= names  # SciPy because of JAX
    assert not {"pandas", "matplotlib", "pydantic", "tyro", "scikit-learn"} & names
    assert pathlib.Path(core_alone.__file__).parent.name == "helpers"
