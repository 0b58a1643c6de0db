"""Figures of clients: labels per client, client sizes."""

import numpy as np
import pytest
from figures import render
from matplotlib.colors import to_hex

from fedjax_sim import plotting
from fedjax_sim.data.federated import FederatedData


def test_label_map_shows_the_counts():
    counts = np.array([[9, 0, 1], [0, 4, 4]])
    figure = plotting.client_label_map(counts, ["cat", "dog", "eel"])
    top, main, bar = figure.axes
    np.testing.assert_array_equal([patch.get_height() for patch in top.patches], [10, 8])
    cells = main.collections[0]
    shown = np.ma.getdata(cells.get_array()).reshape(3, 2)
    np.testing.assert_array_equal(shown, counts.T)
    np.testing.assert_array_equal(
        np.ma.getmaskarray(cells.get_array()).reshape(3, 2), counts.T == 0
    )
    assert [text.get_text() for text in main.get_yticklabels()] == ["cat", "dog", "eel"]
    assert main.get_ylim()[0] > main.get_ylim()[1]  # class 0 on top
    assert main.get_xlabel() == "client"
    assert bar.get_ylabel() == "examples"
    render(figure)
    # Square-root scale: 1 of 9 is a third of the way; the largest count is the darkest shade.
    colors = cells.cmap(cells.norm(np.array([1.0, 9.0])))
    assert to_hex(colors[0]) == to_hex(cells.cmap(1 / 3))
    assert to_hex(colors[1]) == to_hex(cells.cmap(1.0))


def test_label_map_shows_the_first_of_many_clients():
    counts = np.arange(60).reshape(20, 3)
    _, main, _ = (figure := plotting.client_label_map(counts, max_clients=7)).axes
    assert main.get_xlabel() == "client (first 7 of 20)"
    shown = np.ma.getdata(main.collections[0].get_array()).reshape(3, 7)
    np.testing.assert_array_equal(shown, counts[:7].T)
    render(figure)


@pytest.mark.parametrize("shape", [(1, 1), (300, 2), (2, 150)])
def test_label_map_renders_extreme_shapes(shape):
    counts = np.random.default_rng(0).integers(0, 3, shape)
    figure = plotting.client_label_map(counts, max_clients=300)
    render(figure)
    assert figure.axes[1].collections[0].get_array().size == counts.size
    assert max(figure.get_size_inches()) <= 12  # fits a page


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"counts": np.zeros(3)}, r"counts has shape \(3,\)"),
        ({"counts": -np.ones((2, 2))}, "non-negative"),
        ({"counts": np.ones((2, 2)), "class_names": ["a"]}, "class_names has 1 names; expected 2"),
        ({"counts": np.ones((2, 2)), "max_clients": 0}, "max_clients is 0"),
    ],
)
def test_bad_counts_are_named(kwargs, match):
    with pytest.raises(ValueError, match=match):
        plotting.client_label_map(**kwargs)


@pytest.mark.parametrize("sizes", [[3, 3, 3], [0, 1, 1, 5], [1, 40, 40, 900, 12345], [0]])
def test_size_histogram_counts_every_client(sizes):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    figure = plotting.size_histogram(FederatedData({"x": np.zeros(sum(sizes))}, offsets))
    (axes,) = figure.axes
    for bar in axes.patches:
        inside = [bar.get_x() < size < bar.get_x() + bar.get_width() for size in sizes]
        assert bar.get_height() == sum(inside)
    assert sum(bar.get_height() for bar in axes.patches) == len(sizes)
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [np.median(sizes)] * 2)
    render(figure)
