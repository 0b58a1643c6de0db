"""Curves that are drawn while a run goes on, with a display of our own and in a real notebook."""

import base64
import io
import sys
import types

import jax
import matplotlib.image
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.runs import Event, Progress
from fedjax_sim.runs.events import notify


class Display:
    """The display of a notebook, which keeps the figures."""

    def __init__(self, monkeypatch):
        self.first, self.updates = [], []
        ipython = types.ModuleType("IPython")
        ipython.get_ipython = lambda: types.SimpleNamespace(kernel=None)
        ipython.version_info = (9, 0)  # matplotlib asks for it
        ipython.display = types.ModuleType("IPython.display")
        ipython.display.display = self._display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)

    def _display(self, figure, display_id):
        assert display_id is True
        self.first.append(figure)
        return types.SimpleNamespace(update=self.updates.append)

    @property
    def figures(self):
        return [*self.first, *self.updates]


@pytest.fixture
def display(monkeypatch):
    return Display(monkeypatch)


def event(name="", round=1, seeds=("0",), num_rounds=9, replayed=False, **metrics):
    values = {key: np.atleast_1d(value) for key, value in metrics.items()}
    return Event(name, list(seeds), round, num_rounds, values, None, replayed, None)


def lines(figure, panel=0):
    """Points by the label of their line."""
    return {
        line.get_label(): line.get_xydata().tolist()
        for line in figure.axes[panel].lines
        if not line.get_label().startswith("_")
    }


def test_is_displayed_once_and_updated_with_means_over_seeds(display):
    now = [0.0]
    live = fs.LiveCurves("loss", clock=lambda: now[0])
    for name, done, losses in (("fedavg", 1, [4, 2]), ("fedavg", 2, [2, 1]), ("other", 1, [8, 8])):
        live(event(name, done, ("0", "1"), loss=losses))
        now[0] += 1.0
    assert (len(display.first), len(display.updates)) == (1, 2)
    assert lines(display.figures[-1]) == {"FedAvg": [[1, 3], [2, 1.5]], "other": [[1, 8]]}
    assert display.figures[-1]._repr_png_().startswith(b"\x89PNG")


def test_figures_are_rare_and_the_last_one_is_complete(display):
    """Evaluations come every 0.1 s; figures take no time, so one is due every 0.5 s."""
    now = [0.0]
    live = fs.LiveCurves("loss", clock=lambda: now[0])
    for done in range(1, 100):
        now[0] = 0.1 * done + 1e-6
        live(event(round=done, num_rounds=100, loss=1.0))
    assert len(display.figures) == 20
    now[0] += 0.01
    live(event(round=100, num_rounds=100, loss=1.0))
    live.progress(Progress(50, 100, {}))
    assert len(display.figures) == 20
    live.progress(Progress(100, 100, {}))
    assert len(display.figures) == 21
    assert len(lines(display.figures[-1])["mean"]) == 100


def test_drawing_takes_a_tenth_of_the_time(display, monkeypatch):
    """A figure that takes a second is followed by nine seconds without one."""
    now = [0.0]
    update = display._display

    def slow(figure, display_id):
        now[0] += 1.0
        return update(figure, display_id)

    monkeypatch.setattr(sys.modules["IPython.display"], "display", slow)
    live = fs.LiveCurves("loss", clock=lambda: now[0])
    live(event(round=1, loss=1.0))  # until second 1
    for at, count in ((9.9, 1), (10.0, 2)):
        now[0] = at
        live(event(round=2, loss=1.0))
        assert len(display.figures) == count


def test_seeds_in_sequence_are_drawn_when_they_have_ended():
    live = fs.LiveCurves("loss")
    live(event(round=1, num_rounds=2, seeds=["0"], loss=1.0))
    assert lines(live.figure()) == {"mean": [[1, 1]]}
    live(event(round=2, num_rounds=2, seeds=["0"], loss=0.5))
    live(event(round=1, num_rounds=2, seeds=["1"], loss=3.0))
    assert lines(live.figure()) == {"mean": [[1, 1], [2, 0.5]]}
    live(event(round=2, num_rounds=2, seeds=["1"], loss=1.5))
    assert lines(live.figure()) == {"mean": [[1, 2], [2, 1]]}


@pytest.mark.parametrize("name", ["", "fedavg"])
def test_a_second_call_with_the_same_object_begins_anew(display, name):
    """The rounds that only the longer first call had are no rounds of the second one."""
    now = [0.0]
    live = fs.LiveCurves("loss", clock=lambda: now[0])
    for losses in ([4.0, 3.0, np.nan, 1.0], [8.0, 6.0]):
        notify([live], "begin", name)
        for done, loss in enumerate(losses, 1):
            live(event(name, done, loss=loss))
            now[0] += 1.0
    (drawn,) = lines(live.figure()).values()
    assert drawn == [[1, 8], [2, 6]]
    assert len(display.first) == 2  # the second cell has a figure of its own


def test_stopped_simulation_has_its_last_figure(display):
    live = fs.LiveCurves("loss", clock=iter([0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.1]).__next__)
    live(event(round=1, loss=1.0))
    live(event(round=2, loss=0.5))  # 0.1 s later: no figure
    assert len(display.figures) == 1
    live.finished("", None)
    assert lines(display.figures[-1]) == {"mean": [[1, 1], [2, 0.5]]}


def test_best_of_many_methods_are_drawn():
    live = fs.LiveCurves("accuracy")
    for i in range(12):
        live(event(f"lr={i}", num_rounds=1, accuracy=i / 12))
    figure = live.figure()
    assert list(lines(figure)) == [f"lr={i}" for i in range(2, 12)]
    assert "The best 10 of 12 by accuracy so far." in figure.get_supxlabel().replace("\n", " ")


def test_methods_with_a_failed_seed_are_not_among_the_best():
    """Losses of the methods: i for both seeds of method i; the first four then lose a seed."""
    live = fs.LiveCurves("loss")
    for i in range(12):
        live(event(f"lr={i}", 1, ("0", "1"), loss=[i, i]))
        live(event(f"lr={i}", 2, ("0", "1"), loss=[np.nan if i < 4 else i, i]))
    drawn = list(lines(live.figure()))
    assert drawn == [f"lr={i}" for i in (0, 1, *range(4, 12))]  # two places are left


def test_a_line_ends_where_a_loss_is_not_finite():
    """The accuracy of a model of NaN is that of one class."""
    live = fs.LiveCurves("accuracy")
    for done, loss in ((1, [1.0, 1.0]), (2, [1.0, np.nan]), (3, [0.5, np.nan])):
        live(event("fedavg", done, ("0", "1"), accuracy=[0.5, 0.1 * done], loss=loss))
    drawn = np.array(lines(live.figure())["FedAvg"])
    np.testing.assert_allclose(drawn[:, 1], [0.3, np.nan, np.nan])
    for i in range(11):
        live(event(f"lr={i}", num_rounds=1, accuracy=0.05, loss=1.0))
    assert "FedAvg" not in "".join(lines(live.figure()))  # the worst of 12


def test_nothing_is_drawn_outside_of_a_notebook_or_of_earlier_calls(display, monkeypatch):
    live = fs.LiveCurves()
    live(event(round=1, replayed=True, loss=1.0))
    assert display.figures == []
    live(event(round=2, loss=1.0))
    assert lines(display.figures[0]) == {"mean": [[1, 1], [2, 1]]}
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    terminal = fs.LiveCurves()
    terminal(event(loss=1.0))
    assert len(display.figures) == 1
    assert lines(terminal.figure()) == {"mean": [[1, 1]]}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"x": "bits"}, "x is 'bits'"), ({"yscale": "symlog"}, "yscale is 'symlog'")],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fs.LiveCurves(**options)


def test_unknown_metric_is_refused_at_the_first_evaluation():
    with pytest.raises(ValueError, match="metric is 'accuracy'; expected one of loss"):
        fs.LiveCurves("accuracy")(event(loss=1.0))


def _setup():
    data = fs.FederatedData({"y": np.ones(2, np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(lambda w, b, key: (w - b["y"]) ** 2, data, fs.full_batch(1))
    timeline = fs.timelines.full(4, 2, task.num_steps)
    return fs.Setup(
        task, timeline, np.zeros(3, np.float32), lambda w: {"error": abs(w - 1)}, eval_every=1
    )


def test_runs_have_the_figure_of_their_result_and_the_same_bits(display):
    keys = jax.random.split(jax.random.key(0), 3)
    algorithms = {"FedAvg": fs.fedavg(0.1), "slow": fs.fedavg(0.01)}
    live = fs.LiveCurves()
    result = fs.compare(algorithms, _setup(), keys, callbacks=[live])
    drawn, expected = lines(display.figures[-1]), lines(result.plot("error"))
    assert list(drawn) == list(expected) == ["FedAvg", "slow"]
    for name, points in drawn.items():  # of float32; the result has its shortest decimal numbers
        np.testing.assert_allclose(points, expected[name], rtol=1e-7)
    plain = fs.compare(algorithms, _setup(), keys)
    assert result.to_frame().equals(plain.to_frame())


@pytest.mark.slow
def test_sweep_and_seeds_with_setups_of_their_own(display):
    keys = jax.random.split(jax.random.key(0), 3)
    live = fs.LiveCurves("error", x="local_steps")
    fs.sweep(fs.fedavg, _setup(), [{"lr": 0.1}, {"lr": 0.2}], keys, callbacks=[live])
    drawn = lines(display.figures[-1])
    # 1 - 2 lr per step of the mean over equal seeds; two clients make two steps per round.
    for lr, label in ((0.1, "lr=0.1"), (0.2, "lr=0.2")):
        expected = [[2 * r, (1 - 2 * lr) ** r] for r in range(1, 5)]
        np.testing.assert_allclose(drawn[label], expected, atol=1e-6)
    live = fs.LiveCurves("error")
    one = _setup()
    own = lambda seed: fs.Setup(  # noqa: E731
        one.task, one.timeline, np.float32(seed), one.eval_fn, eval_every=1
    )
    fs.compare({"FedAvg": fs.fedavg(0.1)}, own, keys, callbacks=[live])
    # |seed - 1| for the seeds 0, 1, 2: 1, 0, 1.
    expected = [[r, 2 / 3 * 0.8**r] for r in range(1, 5)]
    np.testing.assert_allclose(lines(display.figures[-1])["FedAvg"], expected, atol=1e-6)


NOTEBOOK = """
import fedjax_sim as fs
setup = fs.presets.quickstart(rounds=40, seeds=3, model="softmax_regression")
algorithms = {"FedAvg": fs.fedavg(0.2), "SCAFFOLD": fs.scaffold(0.2)}
live = fs.LiveCurves(["test/accuracy", "train/loss"])
fs.compare(algorithms, setup, fs.presets.keys(3), callbacks=[fs.ProgressBar(), live]);
"""


@pytest.mark.slow
def test_notebook_shows_one_figure_of_the_whole_run(tmp_path):
    """A real kernel: bar and figure are one output each, and the figure is a picture."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(NOTEBOOK)]
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    bar, figure = book.cells[0].outputs
    assert bar["data"]["text/html"].count('<progress value="1.0000"') == 2
    png = base64.b64decode(figure["data"]["image/png"])
    (tmp_path / "figure.png").write_bytes(png)
    picture = matplotlib.image.imread(io.BytesIO(png))
    assert picture.shape[1] > 800  # two panels of 4.4 inches at 110 dots
    colors = {tuple((255 * x).round().astype(int)) for x in picture[:, :, :3].reshape(-1, 3)}
    assert {(0, 0x72, 0xB2), (0xD5, 0x5E, 0)} <= colors  # the lines of both algorithms
