"""Figures of timelines: what is drawn is what the timeline says; spans and bits by hand."""

import dataclasses

import jax
import numpy as np
import pytest
from figures import render
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

import fedjax_sim as fs
from fedjax_sim.reports.figures import COLORS
from fedjax_sim.reports.figures.timelines import AGES, WAITING, visit_chart, visit_distributions
from fedjax_sim.timelines import (
    arrivals,
    bits_moved,
    contacts,
    deterministic,
    geometric,
    renewal_counts,
    spans,
    stacked,
    synchronous,
)

KEY = jax.random.key(0)


def by_hand():
    """Two clients, three updates, staleness and waiting; slot (1, 1) is empty."""
    return fs.Timeline(
        clients=np.array([[0, 1], [0, 1], [1, 0]]),
        version=np.array([[0, 0], [1, 1], [1, 2]]),
        num_steps=np.array([[2, 1], [4, 9], [3, 0]]),
        mask=np.array([[True, True], [True, False], [True, True]]),
        time=np.array([4.0, 10.0, 20.0]),
        max_steps=9,
        max_staleness=1,
        idle=np.array([[0.0, 1.0], [2.0, 0.0], [0.5, 0.0]]),
    )


def bars(axes, color):
    """``(row, left, right)`` of a colour's bars, sorted."""
    found = [
        (round(p.get_y() + p.get_height() / 2), p.get_x(), p.get_x() + p.get_width())
        for p in axes.patches
        if to_hex(p.get_facecolor()) == to_hex(color)
    ]
    return sorted(found)


def test_spans_by_hand():
    found = spans(by_hand())
    np.testing.assert_array_equal(found.time, [4, 10, 20])
    np.testing.assert_array_equal(found.update, [0, 0, 1, 2, 2])
    np.testing.assert_array_equal(found.client, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(found.start, [0, 0, 4, 4, 10])
    np.testing.assert_array_equal(found.done, [4, 3, 8, 19.5, 20])
    np.testing.assert_array_equal(found.report, [4, 4, 10, 20, 20])
    np.testing.assert_array_equal(found.staleness, [0, 0, 0, 1, 0])
    np.testing.assert_array_equal(found.num_steps, [2, 1, 4, 3, 0])


def test_synchronous_visits_end_before_the_servers_interaction():
    timeline = synchronous(
        KEY, deterministic(np.array([2.0, 5.0])), horizon=30.0, num_clients=2, cohort_size=2,
        num_steps=2, interaction=3.0,
    )  # fmt: skip
    found = spans(timeline, interaction=3.0)
    slow = found.client == 1
    # A round is 2 steps of 5, then 3.
    np.testing.assert_array_equal(found.start, [0, 0, 13, 13])
    np.testing.assert_array_equal(found.report, [10, 10, 23, 23])
    np.testing.assert_array_equal(found.done[slow], [10, 23])
    np.testing.assert_array_equal(found.done[~slow], [4, 17])


def test_buffered_clients_go_on_while_the_server_interacts():
    """Steps of 1 and 4, a buffer of 2 and an interaction of 2: the next jobs begin before it."""
    timeline = arrivals(
        KEY, deterministic(np.array([1.0, 1.0, 4.0])), horizon=9.0, num_clients=3, num_steps=3,
        buffer=2, interaction=2.0,
    )  # fmt: skip
    found = spans(timeline, begins="report", interaction=2.0)
    for client, length in enumerate((3.0, 3.0, 12.0)):
        own = found.client == client
        np.testing.assert_allclose((found.done - found.start)[own], length)
        np.testing.assert_array_equal(found.start[own][1:], found.report[own][:-1])
    np.testing.assert_array_equal(found.time[:2], [5, 8])  # full at 3 and at 6


@pytest.mark.parametrize("receives", ["new", "current"])
def test_contacted_clients_compute_from_one_contact_to_the_next(receives):
    """Time computing is at least the steps done times their duration, less than one step more."""
    timeline = contacts(
        KEY, renewal_counts(deterministic(3.0)), horizon=300.0, num_clients=7, cohort_size=2,
        max_steps=5, receives=receives,
    )  # fmt: skip
    found = spans(timeline, begins="report")
    worked = found.done - found.start
    full = found.num_steps == 5
    np.testing.assert_allclose(worked[full], 15.0)
    cut = worked[~full] - 3.0 * found.num_steps[~full]
    assert full.any()
    assert (cut >= 0).all()
    assert (cut < 3).all()
    assert (found.report > found.done)[full].any()
    if receives == "new":
        for one, other in zip(found, spans(timeline), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@given(st.integers(0, 1000), st.sampled_from([1, 3]), st.sampled_from([0.0, 3.0]))
def test_spans_of_a_client_follow_each_other(seed, buffer, interaction):
    timeline = arrivals(
        jax.random.key(seed), geometric(np.array([0.5, 0.5, 0.2, 0.1])), horizon=200.0,
        num_clients=4, num_steps=2, buffer=buffer, interaction=interaction,
    )  # fmt: skip
    found = spans(timeline, begins="report", interaction=interaction)
    assert (found.start <= found.done).all()
    assert (found.done <= found.report).all()
    np.testing.assert_array_equal(found.report + interaction, found.time[found.update])
    for client in range(4):
        own = found.client == client
        np.testing.assert_array_equal(found.start[own][1:], found.report[own][:-1])
        # Durations are whole numbers; times are single precision below 256: exact.
        worked = (found.done - found.start)[own]
        np.testing.assert_array_equal(worked, np.round(worked))


def test_chart_shows_the_spans():
    figure = visit_chart(spans(by_hand()), numbers="num_steps")
    axes, bar = figure.axes
    assert bars(axes, AGES(0.0)) == [(0, 0, 4), (0, 4, 8), (0, 10, 20), (1, 0, 3)]
    assert bars(axes, AGES(1.0)) == [(1, 4, 19.5)]
    assert bars(axes, WAITING) == [(0, 8, 10), (1, 3, 4), (1, 19.5, 20)]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "1"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("simulated time", "client")
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first row is on top
    (lines,) = axes.collections
    np.testing.assert_array_equal([s[0, 0] for s in lines.get_segments()], [4, 10, 20])
    assert to_hex(lines.get_color()[0]) == to_hex(COLORS[1])
    written = {(text.get_position(), text.get_text()) for text in axes.texts}
    assert ((11.75, 1), "3") in written  # the middle of 4 .. 19.5
    assert len(written) == 5
    assert bar.get_ylabel() == "staleness"
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["computing", "waiting with a report", "server update"]
    render(figure)


def test_chart_of_chosen_clients_in_a_window():
    figure = visit_chart(spans(by_hand()), clients=[1, 0], window=(9.0, 12.0), numbers="staleness")
    axes = figure.axes[0]
    assert axes.get_xlim() == (9, 12)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1", "0"]
    # Who works in the window, drawn to the visit's own ends; the rows are the other way round.
    assert bars(axes, AGES(1.0)) == [(0, 4, 19.5)]
    assert bars(axes, AGES(0.0)) == [(1, 4, 8), (1, 10, 20)]
    (lines,) = axes.collections
    assert [s[0, 0] for s in lines.get_segments()] == [10]
    # Numbers stand in the middle of what is seen.
    written = {(text.get_position(), text.get_text()) for text in axes.texts}
    assert written == {((10.5, 0), "1"), ((11.0, 1), "0")}
    render(figure)


@pytest.mark.slow
def test_chart_without_staleness_has_no_colour_bar():
    timeline = fs.timelines.cyclic(6, 40, 20, num_steps=3)
    figure = visit_chart(spans(timeline), max_clients=7)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [str(i) for i in range(7)]
    assert not bars(axes, WAITING)
    render(figure)


def shares(axes, color):
    """The heights of a group's bars, from left to right."""
    return [round(p.get_height(), 6) for p in axes.patches if to_hex(p.get_facecolor()) == color]


def test_distributions_are_shares_of_each_group():
    found = spans(by_hand())
    found = found._replace(client=found.client + 3)
    figure = visit_distributions(found, {"quick": [0, 3], "late": [4]})
    staleness, steps, visits, waiting = figure.axes
    quick, late = (c.lower() for c in COLORS[:2])
    assert staleness.get_xlabel() == "staleness"
    assert shares(staleness, quick)[:2] == [1, 0]
    assert shares(staleness, late)[:2] == [0.5, 0.5]
    assert steps.get_xlabel() == "steps per visit"
    assert shares(steps, quick)[:5] == [0.333333, 0, 0.333333, 0, 0.333333]  # 2, 4 and 0
    assert shares(steps, late)[:5] == [0, 0.5, 0, 0.5, 0]  # 1 and 3
    # Client 0 is in the group and never reports: 0 and 3 visits.
    assert shares(visits, quick)[:4] == [0.5, 0, 0, 0.5]
    assert shares(visits, late)[:4] == [0, 0, 1, 0]
    # Client 3 waits 2 of 20 units; client 4 1.5 of 4 + 16 = 20. Bins of 0.05 from 0.
    assert np.flatnonzero(shares(waiting, quick)).tolist() == [2]
    assert np.flatnonzero(shares(waiting, late)).tolist() == [1]
    for axes in figure.axes:
        assert sum(shares(axes, quick)) == pytest.approx(1, abs=1e-5)  # heights are rounded
        assert sum(shares(axes, late)) == pytest.approx(1, abs=1e-5)
        assert axes.get_ylabel().startswith("share of")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["quick", "late"]
    render(figure)


@pytest.mark.slow
def test_wide_distributions_are_binned_and_complete():
    success = np.array([0.5] * 8 + [0.02])
    timeline = arrivals(
        KEY, geometric(success), horizon=2000.0, num_clients=9, num_steps=2, buffer=2
    )
    found = spans(timeline, begins="report")
    assert found.staleness.max() > 100
    figure = visit_distributions(found, {"all": range(9)})
    for axes in figure.axes:
        assert len(axes.patches) <= 31
        assert sum(p.get_height() for p in axes.patches) == pytest.approx(1)
    render(figure)


def test_bits_by_hand():
    # 2, 1 and 2 reports, each with 10 bits up and 7 down.
    np.testing.assert_array_equal(bits_moved(by_hand(), up=10, down=7), [34, 51, 85])
    np.testing.assert_array_equal(bits_moved(by_hand(), up=10, down=0), [20, 30, 50])
    one = fs.timelines.full(2, 3, num_steps=1)
    longer = fs.timelines.full(3, 3, num_steps=1)
    both = dataclasses.replace(one, idle=None), dataclasses.replace(longer, idle=None)
    np.testing.assert_array_equal(bits_moved(stacked(both), 1, 1), [[6, 12, 12], [6, 12, 18]])


def test_bits_do_not_overflow():
    timeline = fs.timelines.full(100, 50, num_steps=1)
    bits = 32 * 11_000_000  # a ResNet-18; the sum is beyond 32 bits after few visits
    assert bits_moved(timeline, bits, bits)[-1] == 2 * bits * 5000


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: spans(by_hand(), begins="x"), "begins is 'x'"),
        (lambda: spans(by_hand(), interaction=-1.0), "interaction is -1.0"),
        (
            lambda: spans(
                stacked([fs.timelines.full(2, 3, num_steps=1)] * 2),
            ),
            r"shape \(2, 2, 3\); expected one",
        ),
        (
            # Waiting longer than there was since the broadcast: these clients began before it.
            lambda: spans(
                contacts(
                    KEY, renewal_counts(deterministic(1.0)), horizon=70.0, num_clients=9,
                    cohort_size=1, max_steps=2, receives="current",
                )
            ),
            "begins is 'broadcast' and interaction 0.0, but client .*schedule of this timeline",
        ),
        (lambda: bits_moved(by_hand(), -1, 0), "up is -1"),
        (lambda: bits_moved(by_hand(), 1, -2), "down is -2"),
        (lambda: bits_moved(by_hand(), 1.5, 0), "up has dtype float64; expected integers"),
        (lambda: bits_moved(by_hand(), 1, 1, number=-1), "number is -1; expected at least 0"),
        (
            lambda: bits_moved(by_hand(), 1, 1, to_all=4, selector=fs.selection.oort(1)),
            "to_all is 4 with a selector; expected None",
        ),
        (lambda: visit_chart(spans(by_hand()), numbers="time"), "numbers is 'time'"),
        (lambda: visit_chart(spans(by_hand()), window=(3.0, 3.0)), r"window is \(3.0, 3.0\)"),
        (lambda: visit_chart(spans(by_hand()), clients=[7]), r"clients \[7\], which do nothing"),
        (lambda: visit_chart(spans(by_hand()), clients=[0, 0]), r"\[0, 0\]; expected distinct"),
        (lambda: visit_chart(spans(by_hand()), max_clients=0), "max_clients is 0"),
        (lambda: visit_distributions(spans(by_hand()), {}), "groups have the sizes {}"),
        (lambda: visit_distributions(spans(by_hand()), {"a": []}), "sizes {'a': 0}"),
        (lambda: visit_distributions(spans(by_hand()), {"a": [9]}), r"\['a'\] have no visits"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.slow
def test_legend_of_many_groups_fits_and_their_bars_differ():
    timeline = fs.timelines.cyclic(12, 9, 1, num_steps=3)
    groups = {f"clients of group {i}": [i] for i in range(9)}
    figure = visit_distributions(spans(timeline), groups)
    render(figure)
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    looks = {(to_hex(p.get_facecolor()), p.get_hatch()) for p in legend.get_patches()}
    assert len(looks) == 9
