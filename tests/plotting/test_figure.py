"""Figures are pictures in Jupyter, without a command that turns on matplotlib's own display."""

import pandas as pd
from IPython.core.formatters import DisplayFormatter

from fedjax_sim import plotting


def test_jupyter_shows_a_picture():
    frame = pd.DataFrame({"algorithm": "a", "seed": "0", "round": [1, 2], "metric": "m"})
    figure = plotting.curves(frame.assign(value=[1.0, 2.0]), ["m"])
    data, _ = DisplayFormatter().format(figure)
    assert data["image/png"].startswith(b"\x89PNG")
