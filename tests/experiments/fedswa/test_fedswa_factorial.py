"""The factorial of FedMoSWA's parts: a folder per run, rows per setting, a redrawn report."""

import jax
import numpy as np
import pandas as pd
import pytest

from experiments.fedswa import factorial, problem, settings
from experiments.fedswa.redraw import redraw
from experiments.harness.controls import CONTROLS, LAST, OWN
from fedjax_sim import datasets, models


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"seeds": 1}, "seeds is 1"), ({"gammas": ()}, "gammas is"), ({"rhos": (0.0,)}, "rhos is")],
)
def test_options_are_checked(changed, message):
    with pytest.raises(ValueError, match=message):
        factorial.Factorial(**changed)


@pytest.mark.slow
def test_every_run_has_a_folder_and_the_table_is_redrawn(tmp_path, monkeypatch):
    """At the size of a smoke test: one gamma, alpha and rho, a linear model of 2 x 2 images."""

    def part(count):
        x = (np.arange(count * 12) % 251).astype(np.uint8).reshape(count, 2, 2, 3)
        return {"x": x, "y": (np.arange(count) % 10).astype(np.int32)}

    made_up = datasets.Dataset("made up", part(3000), part(50), 10, None, None, None, "files")
    model = models.Model(
        lambda key: {"w": jax.random.normal(key, (12, 10)) / 251},
        lambda params, x: x.reshape(len(x), -1) @ params["w"],
    )
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: made_up)
    column = settings.COLUMNS[factorial.COLUMN]._replace(cohort=5)  # clients change their workers
    monkeypatch.setitem(settings.COLUMNS, factorial.COLUMN, column)
    monkeypatch.setattr(problem, "build_model", lambda *arguments: model)
    options = factorial.Factorial(
        scale="smoke", gammas=(0.2,), alphas=(1.5,), rhos=(0.1,), seeds=2,
        work=tmp_path / "work", output=tmp_path,
    )  # fmt: skip
    factorial.main(options)
    folder = tmp_path / "fedswa" / "factorial-smoke"
    found = pd.read_csv(folder / "factorial.csv")
    assert found["controls"].tolist() == [*CONTROLS, *CONTROLS]
    assert found["test loss"].gt(0).all()
    losses = found.set_index(["controls", "seed"])["train loss"]
    assert not np.allclose(losses[OWN], losses[LAST])
    files = list((tmp_path / "work").rglob("finished.csv"))
    assert len(files) == 2 * len(CONTROLS)
    stamps = {path: path.stat().st_mtime_ns for path in files}
    kept = {path: path.read_bytes() for path in folder.iterdir()}
    factorial.main(options)
    redraw(tmp_path / "fedswa")
    assert {path: path.read_bytes() for path in folder.iterdir()} == kept
    assert {path: path.stat().st_mtime_ns for path in files} == stamps
