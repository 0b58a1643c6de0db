"""Figures are pictures in Jupyter, without a command that turns on matplotlib's own display."""

import pathlib
import re

import pandas as pd
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.figure import Figure

from fedjax_sim import plotting


def test_jupyter_shows_a_picture():
    frame = pd.DataFrame({"algorithm": "a", "seed": "0", "round": [1, 2], "metric": "m"})
    figure = plotting.curves(frame.assign(value=[1.0, 2.0]), ["m"])
    data, _ = DisplayFormatter().format(figure)
    assert data["image/png"].startswith(b"\x89PNG")


SOURCES = sorted(pathlib.Path(plotting.__file__).parents[2].rglob("*.py"))
DRAWING = [path for path in SOURCES if re.search(r"= (Figure|panels)\(", path.read_text())]


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: path.stem)
def test_all_modules_make_the_figure_that_jupyter_shows(path):
    assert "from matplotlib.figure import Figure" not in path.read_text()


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match="format is 'eps'; expected 'pdf', 'svg' or 'png'"):
        plotting.save(Figure(), tmp_path / "figure", format="eps")
