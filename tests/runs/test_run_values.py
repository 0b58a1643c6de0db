"""Small functions of runs, with values worked out by hand."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.tree_util import Partial

import fedjax_sim as fs
from fedjax_sim import runs
from fedjax_sim.data import ClientSource
from fedjax_sim.runs import history
from fedjax_sim.runs.callbacks.direction import better
from fedjax_sim.runs.callbacks.trackers import _flat
from fedjax_sim.runs.events import strongest
from fedjax_sim.runs.interrupt import deferred_interrupt, exit_code, raising
from fedjax_sim.runs.pace import Pace
from fedjax_sim.runs.planning.measuring import count_evaluations, shortest
from fedjax_sim.runs.progress_bar import _Line, _seconds
from fedjax_sim.runs.storage.functions import sealed
from fedjax_sim.runs.storage.identity import source_digest
from fedjax_sim.runs.storage.traces import trace
from fedjax_sim.runs.sweeps.grid import expand_all, groups, widths

LINE = _Line("", started=0.0, updated=7.0, fraction=0.5, compiled=(5.0, 0.25))
GRID = runs.expand({"lr": [0.1, 0.2], "batch_size": [10, 20]})


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (strongest, [["interrupt", "stop", None]], "interrupt"),
        (runs.seed_names, [None, 2], ["0", "1"]),
        (runs.seed_names, [[7, 8], 2], ["7", "8"]),
        (runs.seed_column, [["0", "1"]], [0, 1]),
        (runs.seed_column, [["-1", "1"]], [-1, 1]),
        (runs.seed_column, [["0", "a"]], ["0", "a"]),
        (runs.seed_column, [["1", "01"]], ["1", "01"]),
        (_seconds, [LINE], "7 s, 4 s left"),
        (_seconds, [LINE._replace(fraction=1.0)], "7 s"),
        (
            runs.expand,
            [{"lr": [0.1, 0.2], "cohort_size": [5]}],
            [{"lr": 0.1, "cohort_size": 5}, {"lr": 0.2, "cohort_size": 5}],
        ),
        (
            expand_all,
            [{"a": {"lr": [0.1]}, "b": {"mu": [0.0]}}, ["a", "b"]],
            [{"algorithm": "a", "lr": 0.1}, {"algorithm": "b", "mu": 0.0}],
        ),
        (
            expand_all,
            [{"lr": [0.1]}, ["a", "b"]],
            [{"algorithm": "a", "lr": 0.1}, {"algorithm": "b", "lr": 0.1}],
        ),
        (lambda *x: next(widths(*x)), [49, 3, 2], 25),
        (lambda *x: next(widths(*x)), [49, 3, 1], 49),
        (lambda *x: list(widths(*x)), [3, 1, 1], [3, 2, 1]),
        (lambda *x: runs.cut(*x).slices, [3, 2, 1, 2, 2], (((0, 0),), ((2, 0),))),
        (
            lambda config: list(_flat(config)),
            [{"algorithm": {"numbers": {"lr": 0.1}}, "a, b": [1, 2]}],
            [("algorithm.numbers.lr", "0.1"), ("a_ b", "[1, 2]")],
        ),
    ],
)
def test_values(function, arguments, expected):
    assert function(*arguments) == expected


def test_groups_of_a_grid():
    found = [(group.static, group.values["lr"].tolist()) for group in groups(GRID, {"batch_size"})]
    assert found == [({"batch_size": 10}, [0.1, 0.2]), ({"batch_size": 20}, [0.1, 0.2])]


def test_better_values():
    """NaN is worse than every number."""
    new, old = np.array([1.0, np.nan, 1.0]), np.array([np.nan, 1.0, 2.0])
    assert better(new, old).tolist() == [True, False, False]


def test_metrics_that_a_round_has():
    metrics = {"slow/loss": 0.0, "slow/evaluated": False, "test/loss": 2.0}
    assert [name for name in metrics if history.due(metrics, name)] == ["test/loss"]
    of_seeds = {"slow/loss": np.zeros(2), "slow/evaluated": np.zeros(2, bool), "loss": np.ones(2)}
    found, skipped = history.measured(of_seeds)
    assert (list(found), skipped) == (["loss"], {"slow/loss"})
    metrics = {"loss": np.array([[4.0, 1.0], [6.0, 3.0]]), "classes": np.ones((2, 2, 10))}
    both = fs.History(np.array([[1, 2], [1, 2]]), metrics, {})
    assert history.latest(both) == {"loss": 2.0}  # the mean of 1 and 3
    assert history.as_number(np.array([True, False])).tolist() == [1, 0]


def test_lengths_of_segments():
    """One round first; after one that took 1 s of 30, at most 8, and 10 fit into a third."""
    pace = Pace(100, 10, seconds=30.0)
    assert pace.after(0, 400) == 1
    pace.took(1, 1.0)
    assert [pace.after(done, 400) for done in (1, 8, 399)] == [9, 10, 400]


def test_shortest_of_several_calls():
    times = iter([0.0, 0.5, 0.5, 0.7, 0.7, 1.5])
    assert shortest(lambda i: None, 9, lambda: next(times)) == 0.2


def test_number_of_evaluations():
    """Evaluations after rounds 10, 20 and 25, and of a rare evaluator the whole one after 20."""
    data = fs.FederatedData({"y": np.ones(2, np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(lambda w, b, key: (w - b["y"]) ** 2, data, fs.full_batch(1))

    def norm(params):
        return {"norm": abs(params)}

    setup = fs.Setup(task, fs.timelines.full(25, 2, 1), np.float32(0), norm, eval_every=10)
    assert count_evaluations(setup) == (3, 0)
    rare = fs.evaluation.at_rounds(norm, 20)
    assert count_evaluations(dataclasses.replace(setup, eval_fn=rare)) == (1, 2)


def test_interrupts():
    with deferred_interrupt() as interrupted:
        assert not interrupted()
    with raising():
        assert exit_code() == 130


def test_functions_by_what_they_trace_to():
    one, other = (Partial(lambda x: 2 * x, 1.0) for _ in range(2))
    assert jax.tree.structure(one) != jax.tree.structure(other)
    assert jax.tree.structure(sealed(one, "2x")) == jax.tree.structure(sealed(other, "2x"))
    x = jax.ShapeDtypeStruct((), "float32")
    twice, thrice = (trace(lambda x, a=a: a * x, x)[0] for a in (2, 3))
    assert twice == trace(lambda y: 2 * y, x)[0]
    assert twice != thrice


def test_digests_of_sources():
    def source(x):
        return ClientSource(np.array([1, 2]), lambda i, j: x[[0, 1, 3][i] : [0, 1, 3][j]])

    assert source_digest(source(np.arange(3))) == source_digest(source(np.arange(3)))
    assert source_digest(source(np.arange(3))) != source_digest(source(np.arange(1, 4)))
