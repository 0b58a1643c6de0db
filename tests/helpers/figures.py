"""Values that tests of figures read from the artists."""

import io

import numpy as np
from matplotlib.collections import PolyCollection


def render(figure):
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    assert figure.canvas.manager is None  # the figure is not registered with pyplot


def band_of(axes, index):
    """Lower and upper edge of a band, by x."""
    bands = [c for c in axes.collections if isinstance(c, PolyCollection)]
    vertices = bands[index].get_paths()[0].vertices
    xs = np.unique(vertices[:, 0])
    edges = [
        (vertices[vertices[:, 0] == x, 1].min(), vertices[vertices[:, 0] == x, 1].max()) for x in xs
    ]
    return xs, np.array(edges).T
