"""Tuning: samplers propose, batches share a program, the best of a batch continue from states."""

import dataclasses
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import optuna
import pytest
from call_records import on_devices
from small_problems import NUM_CLIENTS, logistic_task
from sweep_problems import KEYS, alone, logistic_trial, quadratic_trial, schedules

import fedjax_sim as fs
from fedjax_sim.runs import is_unfinished

RATES = {"lr": optuna.distributions.FloatDistribution(1e-3, 1.0, log=True)}
# Batching changes the order of sums only: some hundred operations of 6e-8 each.
SINGLE = 2e-5


def loss(x):
    return {"loss": jnp.sum(x**2), "x": x}


def quadratic_setup(num_seeds=2, **changes) -> fs.Setup:
    setup = quadratic_trial(num_seeds=num_seeds, num_rounds=12).setup
    return dataclasses.replace(setup, **({"eval_fn": loss, "eval_every": 2} | changes))


def tuned(setup=None, space=RATES, factory=fs.fedavg, keys=KEYS[:2], **changes) -> fs.Tuning:
    arguments = {"metric": "loss", "mode": "min", "trials": 9, "batch": 9} | changes
    setup = quadratic_setup() if setup is None else setup
    return fs.tune(factory, setup, space, keys, **arguments)


def expected(setup, rates, seed):
    """Losses by rate and evaluation of runs on their own."""
    run = alone(quadratic_trial()._replace(setup=setup))
    return np.array([run({"lr": lr}, seed)[0].metrics["loss"] for lr in rates])


def test_runs_are_those_of_the_proposed_configurations():
    found = tuned(trials=6, batch=4)
    rates = [one.configuration["lr"] for one in found.tried]
    assert len(set(rates)) == 6
    losses = np.stack([expected(quadratic_setup(), rates, seed) for seed in (0, 1)])
    np.testing.assert_allclose([one.score for one in found.tried], losses[..., -1].mean(0), SINGLE)
    of_first = [run.history.metrics["loss"] for run in found.sweep.runs if run.seed == "0"]
    np.testing.assert_allclose(of_first, losses[0], SINGLE)
    best = np.argmin(losses[..., -1].mean(0))
    assert found.best == found.tried[best]
    assert found.study.best_params == found.best.configuration
    assert found.to_frame()[["lr", "rounds"]].values.tolist() == [[lr, 12] for lr in rates]
    assert found.sweep.compilations == 1  # also of the batch of 2


def test_the_best_of_a_batch_continue():
    """The configurations that continue are those of runs on their own."""
    setup = quadratic_setup()
    found = tuned(halving=fs.Halving((2, 6), eta=3))
    rates = [one.configuration["lr"] for one in found.tried]
    means = np.stack([expected(setup, rates, seed) for seed in (0, 1)]).mean(0)  # after 2, 4, ...
    second = np.argsort(means[:, 0])[:3]
    third = second[np.argmin(means[second, 2])]
    rounds = np.full(9, 2)
    rounds[second], rounds[third] = 6, 12
    assert [one.rounds for one in found.tried] == rounds.tolist()
    assert [one.complete for one in found.tried] == (rounds == 12).tolist()
    scores = [means[i, n // 2 - 1] for i, n in enumerate(rounds)]
    np.testing.assert_allclose([one.score for one in found.tried], scores, SINGLE)
    states = [trial.state.name for trial in found.study.trials]
    assert states == ["COMPLETE" if n == 12 else "PRUNED" for n in rounds]
    told = [sorted(trial.intermediate_values) for trial in found.study.trials]
    assert told == [[r for r in (2, 6) if r <= n] for n in rounds]
    assert found.best.configuration["lr"] == rates[third]
    assert len(found.sweep.runs) == 18


def test_tables_and_figures_leave_out_what_was_cut():
    """Losses grow with the rounds, so the last values of runs that were cut are the smallest."""
    grows = lambda x: loss(x) | {"loss": 1 / (0.1 + jnp.sum(x**2))}  # noqa: E731
    setup = quadratic_setup(eval_fn=grows)
    found = tuned(setup, halving=fs.Halving((2,), eta=3))
    cut = {one.configuration["lr"] for one in found.tried if not one.complete}
    values = {run.configuration["lr"]: run.history.metrics["loss"][-1] for run in found.sweep.runs}
    assert min(values, key=values.__getitem__) in cut  # the case that matters
    whole = found.sweep.whole()
    assert {run.configuration["lr"] for run in whole.runs} == values.keys() - cut
    assert [run.cut for run in found.sweep.runs].count(True) == 2 * len(cut) == 12
    assert f"{found.best.configuration['lr']:.4g}" in str(found.sweep)
    drawn = found.sweep.plot("loss", x="lr").axes[0]
    shown = {x for line in drawn.lines for x in np.asarray(line.get_xdata(), float)}
    assert not shown & cut
    assert len(found.sweep.to_frame()["lr"].unique()) == 9


def test_the_last_rounds_may_be_fewer_than_between_two_evaluations():
    """Rungs after 4 and 8 of 12 rounds, evaluations after 4, 8 and 12; and of 11 rounds."""
    for num_rounds in (12, 11):
        setup = quadratic_setup(eval_every=4)
        setup = dataclasses.replace(setup, timeline=setup.timeline[:num_rounds])
        found = tuned(setup, trials=4, batch=4, halving=fs.Halving((4, 8), eta=2))
        assert sorted(one.rounds for one in found.tried) == [4, 4, 8, num_rounds]
        for one in found.tried:
            means = expected(setup, [one.configuration["lr"]], 0)[0]
            means = (means + expected(setup, [one.configuration["lr"]], 1)[0]) / 2
            place = [4, 8, num_rounds].index(one.rounds)
            assert one.score == pytest.approx(means[place], rel=SINGLE)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3])
def test_states_of_clients_and_old_broadcasts_continue(devices):
    """Controls, a timeline per seed, and broadcasts of earlier rounds, to rounding."""
    task = logistic_task(fs.full_batch(4))
    timelines = schedules(task, 2, num_rounds=8)
    late = np.asarray(timelines.version) - (np.arange(8)[:, None] > 1)  # broadcasts of one before
    timelines = dataclasses.replace(timelines, version=late, max_staleness=1)
    trial = logistic_trial(fs.scaffold, timelines, task=task, eval_every=2)
    metrics = lambda params: {"norm": jnp.sum(params["w"] ** 2)}  # noqa: E731
    trial = trial._replace(setup=dataclasses.replace(trial.setup, eval_fn=metrics))
    space = {"lr": optuna.distributions.FloatDistribution(0.05, 0.5)}
    with on_devices(jax.devices()[:devices]):
        found = fs.tune(
            fs.scaffold, trial.setup, space, KEYS[:2], metric="norm", mode="max", trials=4,
            batch=4, halving=fs.Halving((2, 4), eta=2), options=fs.Options(probes=trial.probes),
        )  # fmt: skip
    assert sorted(one.rounds for one in found.tried) == [2, 2, 4, 8]
    run = alone(trial)
    for one in found.sweep.runs:
        history, _ = run(one.configuration, int(one.seed))
        evaluations = len(one.history.round)
        np.testing.assert_allclose(
            one.history.metrics["norm"], history.metrics["norm"][:evaluations], SINGLE
        )
        moved = np.asarray(history.probes["moved"])[: 2 * evaluations]
        np.testing.assert_allclose(one.history.probes["moved"], moved, 0, SINGLE * abs(moved).max())


def test_a_second_call_reads_what_the_folder_has(tmp_path):
    changes = {"halving": fs.Halving((2,)), "storage": fs.Storage(tmp_path, keep_models=True)}
    first = tuned(**changes)
    again = tuned(trials=12, **changes)  # the first batch is known, the second is new
    assert again.tried[:9] == first.tried
    assert (again.sweep.resumed, len(again.sweep.runs)) == (18, 24)
    read = tuned(**changes)
    assert (read.tried, read.sweep.compilations, read.sweep.resumed) == (first.tried, 0, 18)
    assert all(run.model is not None for run in read.sweep.runs)


def test_a_cut_run_is_no_run_of_all_rounds(tmp_path):
    """A sweep in the same folder trains what the tuning had cut."""
    found = tuned(halving=fs.Halving((2,)), storage=tmp_path)
    grid = [one.configuration for one in found.tried]
    result = fs.sweep(fs.fedavg, quadratic_setup(), grid, KEYS[:2], storage=tmp_path)
    assert result.resumed == 2 * sum(one.complete for one in found.tried) == 6
    assert {run.history.round[-1] for run in result.runs} == {12}


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": "size"},  # largest where the loss is smallest
        {"mode": "max"},
        {"halving": fs.Halving((2,), eta=2)},
        {"halving": fs.Halving((2, 6))},
        {"halving": fs.Halving((4,))},
    ],
    ids=["metric", "mode", "eta", "rungs", "later"],
)
@pytest.mark.parametrize("first", [fs.Halving((2,)), None], ids=["halved", "whole"])
def test_a_folder_of_another_tuning_decides_nothing(changes, first, tmp_path):
    """Runs that another metric or other rungs cut are not taken for those that this call cuts."""
    setup = quadratic_setup(eval_fn=lambda x: loss(x) | {"size": -jnp.sum(x**2)})
    tuned(setup, halving=first, storage=tmp_path)
    changes = {"halving": fs.Halving((2,))} | changes
    found = tuned(setup, storage=tmp_path, **changes)
    alone = tuned(setup, **changes)
    assert [one.rounds for one in found.tried] == [one.rounds for one in alone.tried]
    scores, of_alone = ([one.score for one in tuning.tried] for tuning in (found, alone))
    np.testing.assert_allclose(scores, of_alone, SINGLE)
    again = tuned(setup, storage=tmp_path, **changes)
    assert (again.tried, again.sweep.compilations) == (found.tried, 0)


def test_divergence_scores_infinitely_badly():
    space = {"lr": optuna.distributions.CategoricalDistribution([0.1, 1e30])}
    sampler = optuna.samplers.RandomSampler(seed=1)
    with jax.debug_nans(False):
        found = tuned(space=space, trials=8, batch=8, sampler=sampler)
    assert {one.configuration["lr"]: one.score < 10 for one in found.tried} == {
        0.1: True,
        1e30: False,
    }
    assert max(one.score for one in found.tried) == np.inf
    assert found.best.configuration == {"lr": 0.1}
    worst = found._replace(tried=[one for one in found.tried if one.score == np.inf])
    with pytest.raises(ValueError, match=r"none of \d configurations did all rounds"):
        _ = worst.best


def test_a_diverged_run_is_bad_whatever_its_metric_is():
    """As an accuracy, whose argmax of NaN is a class."""

    def score(x):
        return {"accuracy": jnp.where(jnp.isfinite(x).all(), 0.5, 1.0)}

    space = {"lr": optuna.distributions.CategoricalDistribution([0.1, 1e30])}
    sampler = optuna.samplers.RandomSampler(seed=1)
    setup = quadratic_setup(eval_fn=score)
    with jax.debug_nans(False):
        found = tuned(setup, space, metric="accuracy", mode="max", trials=8, sampler=sampler)
    assert {(one.configuration["lr"], one.score) for one in found.tried} == {
        (0.1, 0.5), (1e30, -np.inf),
    }  # fmt: skip


def test_choices_are_programs_of_their_own_and_repeated_proposals_run_once():
    made = []

    def setup(cohort_size):
        made.append(cohort_size)
        task = quadratic_setup().task
        timeline = fs.timelines.uniform(
            jax.random.key(2), 4, NUM_CLIENTS, cohort_size, task.num_steps
        )
        return quadratic_setup(timeline=timeline)

    space = {
        "cohort_size": optuna.distributions.IntDistribution(2, 3),
        "lr": optuna.distributions.CategoricalDistribution([0.1, 0.2]),
    }
    found = tuned(setup, space, trials=12, batch=6, halving=fs.Halving((2,), eta=2))
    assert len(found.tried) == 12
    different = {tuple(one.configuration.values()) for one in found.tried}
    assert len(found.sweep.runs) == 2 * len(different) <= 8
    assert set(made) == {size for size, _ in different} == {2, 3}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"space": {}}, "space is {}; expected distributions of Optuna by name"),
        ({"space": lambda trial: {"rounds": 2}}, "space has 'rounds'; expected another name"),
        ({"space": {"lr": (0.1, 1.0)}}, "space['lr'] is (0.1, 1.0); expected a distribution"),
        ({"metric": "x"}, "metric is 'x'; expected a number of the evaluation: loss"),
        ({"metric": "accuracy", "mode": None}, "metric is 'accuracy'; expected a number"),
        ({"mode": "best"}, "mode is 'best'; expected 'min', 'max' or None"),
        ({"trials": 0}, "trials is 0; expected"),
        ({"batch": 1.5}, "batch is 1.5; expected"),
        ({"halving": fs.Halving((3,))}, "halving.rounds is (3,); expected increasing multiples"),
        ({"halving": fs.Halving((4, 2))}, "halving.rounds is (4, 2); expected increasing"),
        ({"halving": fs.Halving((12,))}, "below the setup's 12 rounds"),
        ({"halving": fs.Halving((2,), eta=1)}, "halving.eta is 1; expected at least 2"),
        (
            {"sampler": optuna.samplers.GridSampler({"lr": [0.1]})},
            "sampler is a GridSampler",
        ),
        ({"options": fs.Options(eval_initial=True)}, "options.eval_initial is True"),
        ({"halving": (2, 6)}, "halving is (2, 6); expected fs.Halving((10, 30))"),
        ({"halving": fs.Halving(2)}, "halving.rounds is 2; expected a tuple of rounds"),
        ({"sampler": optuna.samplers.TPESampler}, "expected a sampler of Optuna"),
        ({"sampler": "tpe"}, "sampler is 'tpe'; expected a sampler of Optuna"),
        ({"setup": 3}, "setup is a int; expected a fedjax_sim.Setup"),
        ({"keys": jax.random.key(0)}, "keys has shape (); expected [n]"),
        ({"keys": 3}, "keys is 3; expected jax.random.key(0)"),
        ({"factory": {"a": fs.fedavg, "b": fs.fedprox}}, "factory is a mapping of algorithms"),
    ],
)
def test_refused(changes, expected):
    with pytest.raises(ValueError, match=re.escape(expected)):
        tuned(**changes)


def test_every_seed_may_have_a_setup_of_its_own():
    """The best of a batch are those of a sweep over the same configurations."""

    def setup(seed):
        whole = quadratic_setup()
        return dataclasses.replace(whole, params=whole.params[seed] * (1 + seed))

    found = tuned(setup, halving=fs.Halving((2, 6)))
    grid = [one.configuration for one in found.tried]
    whole = fs.sweep(fs.fedavg, setup, grid, KEYS[:2])
    losses = np.array([run.history.metrics["loss"] for run in whole.runs]).reshape(9, 2, 6).mean(1)
    second = np.argsort(losses[:, 0])[:3]
    rounds = np.full(9, 2)
    rounds[second] = 6
    rounds[second[np.argmin(losses[second, 2])]] = 12
    assert [one.rounds for one in found.tried] == rounds.tolist()
    scores = [losses[i, n // 2 - 1] for i, n in enumerate(rounds)]
    np.testing.assert_allclose([one.score for one in found.tried], scores, SINGLE)


def test_names_may_depend_on_choices():
    """A function of a trial; the runs are those of its configurations."""

    def space(trial):
        lr = trial.suggest_float("lr", 0.05, 0.5, log=True)
        if trial.suggest_categorical("proximal", (False, True)):
            return {"lr": lr, "mu": trial.suggest_float("mu", 0.1, 1.0)}
        return {"lr": lr, "mu": 0.0}

    seen = []
    callback = types.SimpleNamespace(tried=seen.append)
    arguments = {"metric": "loss", "mode": "min", "trials": 6, "batch": 3, "callbacks": [callback]}
    found = fs.tune(fs.fedprox, quadratic_setup(), space, KEYS[:2], **arguments)
    assert seen == found.tried
    assert found.sweep.compilations == 1
    params = [trial.params for trial in found.study.trials]
    assert [one.configuration["mu"] for one in found.tried] == [p.get("mu", 0.0) for p in params]
    assert 0 < sum(p["proximal"] for p in params) < 6
    grid = [one.configuration for one in found.tried]
    whole = fs.sweep(fs.fedprox, quadratic_setup(), grid, KEYS[:2])
    losses = [run.history.metrics["loss"][-1] for run in whole.runs]
    means = np.reshape(losses, (6, 2)).mean(axis=1)
    np.testing.assert_allclose([one.score for one in found.tried], means, SINGLE)


def test_groups_of_other_sizes_share_programs():
    """Groups of 3 and 4 configurations have one, which fills the smaller group."""

    def setup(cohort_size):
        task = quadratic_setup().task
        timeline = fs.timelines.uniform(
            jax.random.key(2), 4, NUM_CLIENTS, cohort_size, task.num_steps
        )
        return quadratic_setup(timeline=timeline)

    sizes = iter([2] * 3 + [3] * 4 + [2] * 4 + [3] * 3)

    def space(trial):
        return {"cohort_size": next(sizes), "lr": trial.suggest_float("lr", 0.05, 0.5)}

    found = tuned(setup, space, trials=14, batch=7)
    assert found.sweep.compilations == 2  # one per cohort size, not one per number of them
    for one in found.tried[:7:3]:
        own = setup(one.configuration["cohort_size"])
        loss = np.mean([expected(own, [one.configuration["lr"]], seed)[0, -1] for seed in (0, 1)])
        np.testing.assert_allclose(one.score, loss, SINGLE)


def test_halving_reports_how_far_a_batch_is():
    events = []
    tuned(halving=fs.Halving((4,)), callbacks=[types.SimpleNamespace(progress=events.append)])
    fractions = [event.fraction for event in events]
    assert fractions[0] == 0
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1)
    assert {event.num_rounds for event in events} == {12}
    assert {event.round for event in events} >= {0, 4, 12}


def test_settings_are_those_of_their_own_kind_and_may_be_lists():
    """1, 1.0 and True are equal and no settings of one setup; a list has no hash."""
    made = []

    def setup(setting):
        made.append(setting)
        return quadratic_setup()

    settings = [1, 1.0, True, [1, 2]]

    def space(trial):
        return {"lr": 0.1 + trial.number / 100, "setting": settings[trial.number % 4]}

    found = tuned(setup, space, trials=8, batch=8)
    assert [one.configuration["setting"] for one in found.tried] == 2 * settings
    assert sorted(map(repr, made)) == sorted(map(repr, settings))  # each once


def test_arrays_are_settings_by_all_of_their_numbers():
    """The text of an array of more than a thousand numbers has the first and last ones only."""

    def space(trial):
        number = trial.suggest_int("number", 1, 3)
        return {"lr": 0.05, "scales": np.where(np.arange(2000) == 700, number, 1)}

    sampler = optuna.samplers.RandomSampler(seed=0)
    found = tuned(
        space=space, factory=lambda lr, scales: fs.fedavg(lr * float(scales[700])),
        trials=6, batch=1, sampler=sampler,
    )  # fmt: skip
    rates = [0.05 * one.configuration["scales"][700] for one in found.tried]
    assert len(set(rates)) > 1
    means = np.stack([expected(quadratic_setup(), rates, seed) for seed in (0, 1)]).mean(0)
    np.testing.assert_allclose([one.score for one in found.tried], means[:, -1], SINGLE)


def test_infinite_scores_are_bad_in_both_directions():
    """The sampler is not told that the best score is infinite."""

    def error(x):
        value = jnp.sum(x**2)
        return {"score": jnp.where(value < 0.1, jnp.inf, value)}

    setup = quadratic_setup(eval_fn=error)
    found = tuned(setup, metric="score", mode="max")
    scores = np.array([one.score for one in found.tried])
    assert set(scores[~np.isfinite(scores)]) == {-np.inf}
    assert found.best.score == found.study.best_value == scores.max()


@pytest.mark.parametrize(
    ("halving", "every", "message"),
    [
        (
            None,
            8,
            "'slow/loss', which is evaluated every 8 rounds; expected one .* after round 12",
        ),
        (fs.Halving((2, 4)), 4, "every 4 rounds; expected one that is evaluated after round 2, "),
    ],
)
def test_metrics_that_are_skipped_where_runs_are_scored_are_refused(halving, every, message):
    """A skipped evaluation is 0, which would be the best loss."""
    slow = fs.evaluation.at_rounds(loss, every)
    setup = quadratic_setup(eval_fn=fs.evaluation.merge_evaluators(slow=slow, test=loss))
    with pytest.raises(ValueError, match=message):
        tuned(setup, metric="slow/loss", halving=halving)


def test_metrics_of_some_rounds_are_scored():
    slow = fs.evaluation.at_rounds(loss, 4)
    setup = quadratic_setup(eval_fn=fs.evaluation.merge_evaluators(slow=slow, test=loss))
    arguments = {"trials": 3, "halving": fs.Halving((4,))}
    scores = [tuned(setup, metric=f"{name}/loss", **arguments) for name in ("slow", "test")]
    assert scores[0].tried == scores[1].tried


def test_callbacks_begin_after_the_checks():
    begun = []
    callback = types.SimpleNamespace(begin=begun.append)
    with pytest.raises(ValueError, match="metric is 'x'"):
        tuned(metric="x", callbacks=[callback])
    assert not begun


@pytest.mark.parametrize("returned", [{}, None, 0.1])
def test_a_function_that_returns_no_configuration_is_refused(returned):
    with pytest.raises(ValueError, match=r"space returned .*; expected the values of a config"):
        tuned(space=lambda trial: returned)


def test_setups_of_different_lengths_cannot_be_compared():
    def setup(length):
        return quadratic_setup(timeline=quadratic_setup().timeline[:length])

    space = {"length": optuna.distributions.CategoricalDistribution([4, 8]), **RATES}
    with pytest.raises(ValueError, match="setup has 4 or 8 rounds; expected one number"):
        tuned(setup, space)


def test_an_interrupt_keeps_the_batches_before(tmp_path):
    class AfterTheFirstBatch:
        seen = 0

        def __call__(self, event):
            self.seen += 1
            return "interrupt" if self.seen > 36 else None

    found = tuned(trials=12, batch=3, callbacks=[AfterTheFirstBatch()], storage=tmp_path)
    assert found.sweep.interrupted
    assert 3 <= len(found.tried) < 12
    assert is_unfinished(tmp_path)
    assert len(tuned(trials=12, batch=3, storage=tmp_path).tried) == 12
    assert not is_unfinished(tmp_path)
