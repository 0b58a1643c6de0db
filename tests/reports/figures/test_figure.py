"""Figures are pictures in Jupyter, without a command that turns on matplotlib's own display."""

import pathlib
import re

import numpy as np
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


def test_dollars_in_names_and_captions_are_no_formulas(tmp_path):
    """A pair of them was read as a formula, which ended a run with an error when it was done."""
    name, caption = "a $b_{$", "prices in $, $ and $x_{$"
    frame = pd.DataFrame({"algorithm": name, "seed": "0", "round": [1, 2], "metric": "$m_{$"})
    frame = frame.assign(value=[1.0, 2.0])
    figure = plotting.curves(frame, ["$m_{$"], caption=caption, yscale="log")
    plotting.save(figure, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert name in text
    assert "x_{$" in text
    shown = re.sub("<!--.*?-->", "", text)
    assert "mathdefault" not in shown  # the ticks are formulas
    figure.axes[0].set_ylabel(r"$\gamma_k$")  # of a user
    plotting.save(figure, tmp_path / "own.svg")
    assert "gamma" not in re.sub("<!--.*?-->", "", (tmp_path / "own.svg").read_text())
    classes = plotting.client_label_map(np.array([[1, 2], [3, 4]]), ("$x_{$", "$y"))
    plotting.save(classes, tmp_path / "classes.svg")
    assert "$x_{$" in (tmp_path / "classes.svg").read_text()


SOURCES = sorted(pathlib.Path(plotting.__file__).parents[2].rglob("*.py"))
DRAWING = [path for path in SOURCES if re.search(r"= (Figure|panels)\(", path.read_text())]


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: path.stem)
def test_all_modules_make_the_figure_that_jupyter_shows(path):
    assert "from matplotlib.figure import Figure" not in path.read_text()


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: path.stem)
def test_functions_that_make_a_figure_show_names_as_they_are(path):
    functions = re.split(r"^(?=@|def |class )", path.read_text(), flags=re.MULTILINE)
    for before, function in zip(["", *functions], functions, strict=False):
        if "-> Figure:" in function and re.search(r"= (Figure|panels)\(", function):
            assert before.strip() == "@literal_texts", function.partition("(")[0]


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match="format is 'eps'; expected 'pdf', 'svg' or 'png'"):
        plotting.save(Figure(), tmp_path / "figure", format="eps")


@pytest.mark.parametrize("height", [0.3, 0.62, 0.9])
def test_ticks_do_not_follow_the_height_that_the_layout_gives(height):
    """Else layout and ticks change each other, and a label can end outside the figure."""
    frame = pd.DataFrame({"algorithm": "a", "seed": "0", "round": [1, 2], "metric": "m"})
    axes = plotting.curves(frame.assign(value=[0.5, 4.2]), ["m"]).axes[0]
    axes.set_position((0.1, 0.05, 0.8, height))
    assert axes.get_yticks().tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
