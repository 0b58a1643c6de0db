"""Figures of surfaces: what the artists show equals what was given; everything renders."""

import numpy as np
import pytest
from figures import render
from matplotlib.collections import PathCollection

from fedjax_sim.diagnostics.surfaces import Surface
from fedjax_sim.reports.figures import contours, reliefs

A, B = np.linspace(-1, 1, 9), np.linspace(-2, 2, 7)


def bowl(height=1.0, low=0.5):
    return Surface(A, B, low + height * (A[:, None] ** 2 + B**2 / 4))


def titles(figure):
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def filled(axes):
    (found,) = (c for c in axes.collections if getattr(c, "filled", False))
    return found


def test_contours_share_levels_and_colours():
    figure = contours({"fedavg": bowl(1.0), "fedswa": bowl(3.0)})
    assert titles(figure) == ["fedavg", "fedswa"]
    left, right = (filled(axes) for axes in figure.axes[:2])
    np.testing.assert_array_equal(left.levels, right.levels)
    np.testing.assert_allclose(left.levels, np.linspace(0.5, 6.5, 17))
    assert left.norm is right.norm
    assert figure.axes[2].get_ylabel() == "loss"
    render(figure)


def test_first_direction_is_horizontal():
    """Values that grow along a only: the lines are vertical."""
    figure = contours({"x": Surface(A, B, np.tile(A[:, None], (1, len(B))))})
    (lines,) = (c for c in figure.axes[0].collections if getattr(c, "filled", True) is False)
    inner = slice(1, -1)  # the others lie on the edges
    for level, path in zip(lines.levels[inner], lines.get_paths()[inner], strict=True):
        np.testing.assert_allclose(path.vertices[:, 0], level, atol=1e-12)
        assert np.ptp(path.vertices[:, 1]) == 4  # B's range
    render(figure)


def test_dots_are_where_the_models_are():
    at = np.array([[0.0, 0.0], [0.5, -1.0], [-0.25, 1.5]])
    figure = contours({"a": bowl(), "b": bowl()}, dots={"b": at})
    shown = [
        [np.asarray(c.get_offsets()) for c in axes.collections if type(c) is PathCollection]
        for axes in figure.axes[:2]
    ]
    assert shown[0] == []
    clients, server = shown[1]
    np.testing.assert_array_equal(clients, at[1:])
    np.testing.assert_array_equal(server, at[:1])
    render(figure)


@pytest.mark.slow
def test_logarithmic_levels_and_spare_panels():
    surfaces = {name: bowl(10.0**i) for i, name in enumerate("abcd")}
    figure = contours(surfaces, log=True, max_columns=3, label="test loss")
    assert titles(figure) == list("abcd")
    steps = filled(figure.axes[0]).levels
    np.testing.assert_allclose(steps, np.geomspace(0.5, 2000.5, 17))
    assert len(figure.axes) == 5  # four panels and the bar
    render(figure)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_leave_holes(bad):
    values = bowl().values.copy()
    values[0, :] = bad
    broken = Surface(A, B, values)
    figure = contours({"a": broken, "b": bowl()})
    assert filled(figure.axes[0]).levels[-1] == 2.5  # the largest finite value
    render(figure)
    relief = reliefs({"a": broken, "b": bowl()})
    assert relief.axes[0].get_zlim() == (0.5, 2.5)
    render(relief)


def test_reliefs_share_heights_and_cut_at_the_top():
    figure = reliefs({"a": bowl(1.0), "b": bowl(3.0)}, high=2.0, label="train loss")
    assert titles(figure) == ["a", "b"]
    for axes in figure.axes:
        assert axes.get_zlim() == (0.5, 2.0)
        assert axes.get_zlabel() == "train loss"
        low, high = axes.zaxis.get_data_interval()  # of the polygons
        assert high == 2.0
        np.testing.assert_allclose(low, 0.5)
    norms = {id(axes.collections[0].norm) for axes in figure.axes}
    assert len(norms) == 1
    render(figure)


def test_a_flat_surface_renders():
    flat = Surface(A, B, np.ones((9, 7)))
    render(contours({"a": flat}))
    render(reliefs({"a": flat}))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: contours({}), "surfaces is empty"),
        (
            lambda: reliefs({"a": Surface(A, B, np.ones((7, 9)))}),
            r"'a'\] has values of shape \(7, 9\)",
        ),
        (lambda: contours({"a": bowl()}, dots={"b": np.ones((2, 2))}), r"dots has 'b'.*\['a'\]"),
        (
            lambda: contours({"a": bowl()}, dots={"a": np.ones(2)}),
            r"shape \(2,\); expected \[k, 2\]",
        ),
        (lambda: contours({"a": bowl(low=-1.0)}, log=True), "smallest value is -1; expected > 0"),
        (lambda: contours({"a": bowl()}, max_columns=0), "max_columns is 0; expected at least 1"),
        (lambda: reliefs({"a": bowl()}, max_columns=0), "max_columns is 0; expected at least 1"),
        (lambda: reliefs({"a": bowl()}, high=0.1), "high is 0.1; expected more than .*0.5"),
        (lambda: reliefs({"a": Surface(A, B, np.full((9, 7), np.nan))}), "no finite value"),
        (lambda: contours({"a": bowl()}, high=np.nan), "high is nan; expected more than .*finite"),
        (lambda: reliefs({"a": bowl()}, high=np.inf), "high is inf; expected more than .*finite"),
        (lambda: contours({"a": bowl()}, high=[1, 2]), r"high has shape \(2,\); expected one"),
        (lambda: contours({"a": Surface(A[:1], B, np.ones((1, 7)))}), "has 1 x 7 points; expected"),
        (lambda: reliefs({"a": Surface(A, B[:1], np.ones((9, 1)))}), "has 9 x 1 points; expected"),
    ],
)
def test_bad_surfaces_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()
