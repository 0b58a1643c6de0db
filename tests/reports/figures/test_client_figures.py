"""Figures of clients: labels per client, client sizes."""

import re

import numpy as np
import pandas as pd
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


@pytest.mark.parametrize(
    ("held_out", "most", "shown", "label"),
    [
        (2, 10, [0, 1, 2, 3, 4, 5, 6, 7], "client; right of the line: 2 that never train"),
        (
            3,
            5,
            [0, 1, 2, 3, 5],
            "client (first 4 of 5); right of the line: 1 of 3 that never train",
        ),
        (7, 5, [0, 1, 2, 3, 4], "client; right of the line: 4 of 7 that never train"),
    ],
)
def test_clients_that_never_train_follow_a_line(held_out, most, shown, label):
    counts = np.arange(1, 17).reshape(8, 2)
    figure = plotting.client_label_map(counts, max_clients=most, held_out=held_out)
    top, main, _ = figure.axes
    cells = np.ma.getdata(main.collections[0].get_array()).reshape(2, -1)
    np.testing.assert_array_equal(cells, counts[shown].T)
    assert main.get_xlabel() == label
    num_trained = sum(client < 8 - held_out for client in shown)
    for axes in (top, main):
        assert axes.lines[0].get_xdata()[0] == num_trained - 0.5
    colors = [to_hex(bar.get_facecolor()) for bar in top.patches]
    assert len(set(colors[:num_trained])) == len(set(colors[num_trained:])) == 1
    assert colors[0] != colors[-1]
    render(figure)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 1), (4, 4, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_examples_of_each_client_in_a_column(shape, dtype):
    x = np.random.default_rng(0).integers(2, size=(7, *shape)).astype(dtype)
    data = FederatedData({"x": 9 * x}, np.array([0, 2, 6, 7]))
    figure = plotting.client_examples(data, num_clients=2, num_examples=3)
    panels = np.array(figure.axes).reshape(3, 2)
    assert [axes.get_title() for axes in panels[0]] == ["client 0", "client 1"]
    for client, rows in enumerate(([0, 1, None], [2, 3, 4])):
        for axes, row in zip(panels[:, client], rows, strict=True):
            assert len(axes.images) == (row is not None)
            if row is not None:
                shown = np.clip(9 * x[row], 0, 1) if dtype == np.float32 else 9 * x[row]
                expected = shown[..., 0] if shape == (4, 4, 1) else shown
                np.testing.assert_array_equal(axes.images[0].get_array(), expected)
    render(figure)


def test_examples_that_are_no_images_are_refused():
    data = FederatedData({"x": np.zeros((3, 4))}, np.array([0, 3]))
    for leaf, shape in (("x", "[3, 4]"), ("z", "[]")):
        with pytest.raises(ValueError, match=f"leaf is '{leaf}' of shape {re.escape(shape)}"):
            plotting.client_examples(data, leaf=leaf)
    with pytest.raises(ValueError, match="num_examples is 0"):
        plotting.client_examples(data, num_examples=0)


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
        ({"counts": np.ones((2, 2)), "held_out": 3}, r"held_out is 3; expected 0 \.\. 2"),
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


def test_clients_that_never_train_keep_their_numbers():
    """The last 4 of 20 clients never train; the map shows clients 0 .. 7, 16 and 17."""
    figure = plotting.client_label_map(np.ones((20, 3), int), max_clients=10, held_out=4)
    name = figure.axes[1].xaxis.get_major_formatter()
    assert [name(at) for at in (0, 7, 8, 9)] == ["0", "7", "16", "17"]


def _values(last):
    """Values r + s + c of client c after round r, for seeds s of methods with these last rounds."""
    rows = [
        (name, s, r, c, "train", 5, float(r + s + c))
        for name, rounds in last.items()
        for s, end in enumerate(rounds)
        for r in range(5, end + 1, 5)
        for c in range(5)
    ]
    names = ["algorithm", "seed", "round", "client", "split", "num_examples", "loss"]
    return pd.DataFrame(rows, columns=names)


def test_distribution_shows_the_last_round_of_every_run():
    """As tables do, of runs that stopped early, too."""
    figure = plotting.client_distribution(
        _values({"fedavg": (10, 20), "scaffold": (20, 20)}), "loss"
    )
    early, late = figure.axes[0].lines
    assert (early.get_label(), late.get_label()) == ("FedAvg", "SCAFFOLD")
    np.testing.assert_array_equal(early.get_xdata()[1:], [*range(10, 15), *range(21, 26)])
    np.testing.assert_array_equal(late.get_xdata()[1:], np.sort([*range(20, 25), *range(21, 26)]))
    assert "rounds 10 to 20, the last of a run." in figure.get_supxlabel().replace("\n", " ")
    render(figure)


def test_bands_are_means_over_all_seeds():
    """Deciles of c = 0 .. 4 are 0.4, 2 and 3.6, and 0.5 is the mean of the seeds' numbers."""
    axes = plotting.client_bands(_values({"fedavg": (10, 20)}), "loss").axes[0]
    assert axes.lines[0].get_xydata().tolist() == [[5.0, 7.5], [10.0, 12.5]]
    apart = _values({"fedavg": (10, 20)}).query("(seed == 0) == (round <= 10)")
    with pytest.raises(ValueError, match="seeds without a common round"):
        plotting.client_bands(apart, "loss")
