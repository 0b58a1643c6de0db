"""Advice on quadratics, logistic regression and a network, beside their runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from small_problems import quadratic_task, random_quadratics

import fedjax_sim as fs
from fedjax_sim.engine import History
from fedjax_sim.runs import SweepRun
from fedjax_sim.studies.advice import THEOREMS
from fedjax_sim.studies.advice import conditions as names
from fedjax_sim.studies.advice.conditions import Sizes
from fedjax_sim.studies.advice.gap import Gap, SettingRun
from fedjax_sim.studies.advice.measurement import Measurement, measure_constants
from fedjax_sim.studies.advice.predictions import Setting
from fedjax_sim.studies.advice.sources import Source
from fedjax_sim.studies.advice.theorems import GRADIENT
from fedjax_sim.theory import ProblemConstants

KEYS = jax.random.split(jax.random.key(1), 2)
CHEAP = {"local_steps": (1, 4), "num_samples": 16}


def theorems(*chosen):
    return [theorem for theorem in THEOREMS if theorem.name in chosen]


def noisy_quadratic(scales, noise, client, key, max_steps):
    """F(x) = sum_i scales_i x_i^2 / 2 of every client, with Gaussian noise of gradients."""
    del client, max_steps

    def grad(x, step):
        return scales * x + noise * jax.random.normal(jax.random.fold_in(key, step), x.shape)

    def loss(x):
        return scales @ x**2 / 2

    return fs.Oracle(grad, lambda x, step: loss(x), lambda x: scales * x, loss)


@pytest.mark.slow
def test_measured_rounds_stay_below_predicted_ones():
    """One quadratic, all constants known in closed form; bounds hold over the runs."""
    scales, noise, M, K = np.array([0.5, 1.0, 2.0], np.float32), 0.05, 4, 2
    oracle = Partial(noisy_quadratic, jnp.asarray(scales), jnp.asarray(noise))
    task = fs.Task(oracle, np.ones(M, np.int32), np.full(M, K, np.int32))
    start = np.array([1.0, -1.0, 0.5], np.float32)
    setup = fs.Setup(task, fs.timelines.full(60, M, K), start, eval_every=1)
    known = ProblemConstants(sigma=noise * np.sqrt(3), sigma4=noise * 15**0.25)
    chosen = theorems("FedAvg, convex", "FedAvg, strongly convex", "FedAc-I, strongly convex")
    advice = fs.advise(setup, target=0.1, known=known, theorems=chosen, **CHEAP)

    expected = {"L": 2.0, "mu": 0.5, "Q": 0.0, "zeta": 0.0, "B": 1.5, "Delta": 1.0}
    expected |= {"B_h": 1.5 / np.sqrt(2), "zeta_star": 0.0, "lojasiewicz_mu": 1.0}
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(advice.constants, name), value, rtol=1e-5, atol=1e-6)
        assert advice.sources[name].kind == "exact"
    assert advice.sources["sigma"].kind == "given"
    assert advice.sources["G"].kind == "unknown"
    assert all(prediction.applies for prediction in advice.predictions)
    sizes = {"local_steps": K, "rounds": 60, "clients": M}
    for regime in ("convex", "strongly convex"):
        lr = fs.theory.fedavg.prescribed_lr(advice.constants, regime, **sizes)
        here = advice.prediction(f"FedAvg, {regime}").here
        np.testing.assert_allclose(here.lr, lr, rtol=1e-5)
    frame = advice.to_frame().set_index("theorem")
    assert frame.loc["FedAvg, convex", "quantity"] == "mean of F - F* over all shadow iterates"

    gap = advice.compare(KEYS, grid={"lr": [0.05, 0.4], "local_steps": [K]})
    summary = gap.summary().set_index("run")
    prescribed = summary.loc[[theorem.name for theorem in chosen]]
    assert (prescribed["measured_rounds"] <= prescribed["predicted_rounds"]).all()
    assert (prescribed["measured"] <= prescribed["bound"]).all()
    assert (prescribed["rounds_run"] == np.minimum(prescribed["predicted_rounds"], 60)).all()
    # 1 / (1 - 0.4 * 2) contracts far faster than rates of at most 1 / (4 L).
    assert summary.loc["tuned: lr 0.4, local_steps 2", "measured_rounds"] <= 3
    frame = gap.to_frame()
    shadow = frame[frame["quantity"] != "model"]
    assert set(zip(shadow["run"], shadow["quantity"], strict=True)) == {
        ("FedAvg, convex", "mean over shadow iterates"),
        ("FedAvg, strongly convex", "weighted mean of shadow iterates"),
    }
    labels = [line.get_label() for line in gap.plot().axes[0].lines]
    assert {"bound: FedAvg, convex", "FedAc-I, strongly convex", "target"} <= set(labels)
    panels = advice.plot().axes
    assert [axes.get_ylabel() for axes in panels] == ["bound of F - F*"]
    assert "prescribes" in str(advice)
    assert "FedAc-I, strongly convex" in advice._repr_html_()
    assert "tuned: lr 0.4" in gap._repr_html_()


def measured(setup, rounds, **options):
    """Values of the last of ``rounds`` rounds by theorem, and the settings."""
    advice = fs.advise(setup, local_steps=[2], num_samples=2, **options)
    grid = {"lr": [0.1], "local_steps": [2]}
    gap = advice.compare(KEYS[:1], theorems=[t.name for t in options["theorems"]], grid=grid)
    table = gap.summary().set_index("run")
    assert set(table["rounds_run"]) == {rounds}
    return table["measured"], {p.theorem.name: p.prescribed for p in advice.predictions}


@pytest.mark.slow
def test_values_at_weighted_means_of_shadow_iterates():
    """Without noise the shadow iterates of x^2 / 2 are (1 - lr)^t, t = 0 .. K R - 1."""
    oracle = Partial(noisy_quadratic, jnp.ones(1), jnp.zeros(()))
    task = fs.Task(oracle, np.ones(2, np.int32), np.full(2, 2, np.int32))
    setup = fs.Setup(task, fs.timelines.full(6, 2, 2), jnp.ones(1))
    third, strong = "FedAvg, convex, third order", "FedAvg, strongly convex"
    values, settings = measured(setup, 6, theorems=theorems(third, strong))
    t = np.arange(12)
    weights = {third: (1 + 1 / 12) ** -(t + 1.0), strong: (1 - settings[strong].lr / 2) ** (11 - t)}
    for name, w in weights.items():
        mean = np.average((1 - settings[name].lr) ** t, weights=w)
        np.testing.assert_allclose(values[name], mean**2 / 2, rtol=1e-5)  # 12 steps in float32


@pytest.mark.slow
def test_gradients_before_each_step_are_measured():
    """F = 1 - cos w from w = 1: Theorems 2.22 and 2.23 are about k = 0 .. K - 1."""
    task = fs.shared_task(
        lambda w, batch, key: 1 - jnp.cos(w) + 0 * batch, jnp.zeros(2), 2, fs.full_batch(2)
    )
    setup = fs.Setup(task, fs.timelines.full(1, 2, 2), jnp.array(1.0))
    chosen = theorems("FedAvg, nonconvex", "FedAvg, nonconvex, third order")
    values, settings = measured(setup, 1, theorems=chosen)
    for theorem in chosen:
        later = 1 - settings[theorem.name].lr * np.sin(1)
        expected = (np.sin(1) ** 2 + np.sin(later) ** 2) / 2
        np.testing.assert_allclose(values[theorem.name], expected, rtol=1e-5)  # float32


@pytest.mark.slow
def test_heterogeneous_quadratics_exclude_theorems_on_one_objective():
    hessians, centres = random_quadratics(4, 3)
    task = quadratic_task(hessians, centres, 3)
    setup = fs.Setup(task, fs.timelines.full(40, 4, 3), jnp.ones(3))
    chosen = theorems("FedAvg, strongly convex", "FedAvg, small client rate", "FedAvg, nonconvex")
    advice = fs.advise(setup, theorems=chosen, **CHEAP)
    strong, small, nonconvex = advice.predictions
    assert [text.partition(":")[0] for text in strong.failed] == [names.ONE_OBJECTIVE]
    assert [text.partition(":")[0] for text in nonconvex.failed] == [
        names.ONE_OBJECTIVE,
        "G is known",
    ]
    # Conditions read as statements, so the text has to say that they fail.
    header = "does not apply, since these conditions fail:"
    assert f"{header}\n    {names.ONE_OBJECTIVE}: " in str(advice)
    assert advice.sources["zeta"].kind == "estimate"
    np.testing.assert_allclose(advice.constants.L, np.linalg.eigvalsh(hessians).max(), rtol=1e-5)
    lowest = np.linalg.eigvalsh(hessians).min()
    np.testing.assert_allclose(advice.constants.lojasiewicz_mu, 2 * lowest, rtol=1e-5)
    mean = hessians.mean(axis=0)
    best = np.linalg.solve(mean, np.einsum("mij,mj->i", hessians, centres) / 4)
    bound = 4 * advice.constants.L * np.sum((1 - best) ** 2) / 2 / 40  # 4 L B_h^2 / R
    np.testing.assert_allclose(small.here.bound, bound, rtol=1e-4)
    with pytest.raises(ValueError, match=r"known\.L is 0\.5; expected at least 1"):
        fs.advise(setup, known=ProblemConstants(L=0.5), theorems=[], **CHEAP)
    with pytest.raises(ValueError, match=r"expected one of \['FedAvg, strongly convex'"):
        advice.compare(KEYS, theorems=["FedProx"])
    with pytest.raises(ValueError, match="no theorem prescribes a setting"):
        advice.compare(KEYS, theorems=["FedAvg, nonconvex"])


@pytest.mark.slow
def test_logistic_regression_with_constants_that_hold_everywhere():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 2))
    y, l2 = (x @ [1.0, -1.0] + rng.normal(size=12) > 0).astype(float), 0.1

    def losses(w, batch, key):
        z = batch["x"] @ w
        return jax.nn.softplus(z) - batch["y"] * z + l2 / 2 * w @ w

    rows = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}
    task = fs.shared_task(losses, rows, 4, fs.with_replacement(3, 2))
    setup = fs.Setup(task, fs.timelines.full(20, 4, 2), jnp.ones(2))
    linear = fs.diagnostics.linear_models
    bounds = linear.linear_model_bounds(x, [0, 12], linear.LOGISTIC, l2=l2, intercept=False)
    chosen = theorems("FedAvg, convex")
    known = bounds.constants(batch_size=3)._replace(zeta=None, zeta_mean=None)
    advice = fs.advise(setup, known=known, theorems=chosen, **CHEAP)
    assert {n: advice.sources[n].kind for n in ("L", "sigma", "zeta", "B")} == {
        "L": "given", "sigma": "given", "zeta": "exact", "B": "exact"
    }  # fmt: skip
    w = np.zeros(2)
    for _ in range(20):  # Newton
        p = 1 / (1 + np.exp(-x @ w))
        hessian = (x * (p * (1 - p))[:, None]).T @ x / 12 + l2 * np.eye(2)
        w -= np.linalg.solve(hessian, x.T @ (p - y) / 12 + l2 * w)
    B, L = np.linalg.norm(w - 1), np.linalg.eigvalsh(x.T @ x / 12)[-1] / 4 + l2
    sigma = np.sqrt((x**2).sum(axis=1).mean() / 3)
    np.testing.assert_allclose(advice.constants.B, B, rtol=1e-5)
    np.testing.assert_allclose(advice.constants.L, L, rtol=1e-5)
    np.testing.assert_allclose(advice.constants.sigma, sigma, rtol=1e-5)
    lr = min(1 / (4 * L), 2 * B / (np.sqrt(40) * sigma))
    lr = min(lr, (B**2 / (20 * L)) ** (1 / 3) / (2 * sigma) ** (2 / 3))
    np.testing.assert_allclose(advice.prediction("FedAvg, convex").here.lr, lr, rtol=1e-5)
    assert advice.predictions[0].undecided == [
        f"{names.INDEPENDENT}: not checked; with_replacement satisfies it, epochs do not"
    ]


def test_a_single_client_has_one_objective():
    """Although its gradients depend on its number, by the rows of its data."""
    data = fs.FederatedData(np.array([2.0], np.float32), np.array([0, 1]))
    task = fs.empirical_task(lambda w, x, key: (w - x) ** 2, data, fs.full_batch(1))
    measurement = measure_constants(task, jnp.array(0.0), KEYS[0])
    assert measurement.constants.zeta == 0
    assert measurement.sources["zeta"] == measurement.sources["zeta_mean"]
    assert measurement.sources["zeta"].kind == "exact"


def test_keys_of_several_runs_are_refused():
    data = fs.FederatedData({"x": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(lambda w, batch, key: (batch["x"] - w) ** 2, data, fs.full_batch(1))
    setup = fs.Setup(task, fs.timelines.full(2, 2, 1), np.float32(0))
    with pytest.raises(ValueError, match=r"key has shape \(3,\); expected one key"):
        fs.advise(setup, jax.random.split(jax.random.key(0), 3))


@pytest.mark.slow
def test_partial_advice_for_a_network():
    """Suprema over all models stay unknown; the theorem on gradients needs estimates of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 3)).astype(np.float32)
    data = fs.FederatedData({"x": x, "y": np.sign(x.sum(1))}, np.arange(0, 33, 4))

    def losses(w, batch, key):
        return (jnp.tanh(batch["x"] @ w["in"]) @ w["out"] - batch["y"]) ** 2 / 2

    params = {"in": rng.normal(size=(3, 4)), "out": rng.normal(size=4)}
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    task = fs.empirical_task(losses, data, fs.with_replacement(2, 2))
    timeline = fs.timelines.uniform(jax.random.key(0), 30, 8, 4, task.num_steps)
    setup = fs.Setup(task, timeline, params)
    chosen = theorems("FedAvg, convex", "FedMoSWA, nonconvex")
    options = {"theorems": chosen, "iterations": 8, **CHEAP}
    advice = fs.advise(setup, lower_bound=0.0, **options)
    convex, momentum = advice.predictions
    reasons = " ".join(convex.failed)
    assert f"{names.FULL}: rounds have 4 of 8 clients" in reasons
    assert f"{names.CONVEX}: a client's Hessian has the eigenvalue -" in reasons
    assert "B is known: " in reasons
    assert convex.here is None
    start = losses(params, data.examples, None)
    np.testing.assert_allclose(advice.constants.Delta, np.mean(start), rtol=1e-5)
    assert advice.sources["Delta"].kind == "bound"
    assert {advice.sources[name].kind for name in ("L", "Q", "G", "zeta")} == {"estimate"}
    assert any(text.startswith("L is at most") for text in momentum.undecided)
    gap = advice.compare(KEYS, grid={"lr": [0.1], "local_steps": [2]})
    row = gap.summary().iloc[0]
    assert row["metric"] == "squared gradient norm"
    assert 0 < row["measured"] < row["bound"]
    with pytest.raises(ValueError, match=r"lower_bound is 99\.0; expected"):
        fs.advise(setup, lower_bound=99.0, **options)


@pytest.fixture
def gap():
    """Two seeds of a theorem on gradients, of which one diverges, beside a sweep of two rates."""
    (theorem,) = theorems("FedMoSWA, nonconvex")
    rounds = np.array([1, 2])

    def history(*values):
        return History(np.broadcast_to(rounds, np.shape(values)), {GRADIENT: values}, {})

    prescribed = history(np.array([1.0, np.nan]), np.array([1.0, 0.5]))
    runs = [
        SweepRun({"lr": lr}, str(seed), History(rounds, {GRADIENT: np.array(values)}, {}), 0)
        for lr, each in {0.1: ([0.9, 0.8], [0.9, 0.8]), 0.2: ([0.5, 0.2], [0.5, 0.3])}.items()
        for seed, values in enumerate(each)
    ]
    unknown = Source("unknown", "")
    measurement = Measurement(ProblemConstants(), {}, unknown, False, None, None, 1)
    setting = Setting(local_steps=1, rounds=2, lr=0.1, bound=1.0)
    prescribed = SettingRun(theorem, setting, Sizes(4, 4, 1, 2), prescribed)
    sweep = fs.Sweep(runs, False, 0, 0, 0.0, 0.0)
    return Gap([prescribed], sweep, {theorem.measure: 0.25}, measurement)


def test_a_mean_over_seeds_does_not_leave_out_one_that_diverged(gap):
    """Without it the mean would be 0.5, that of the other one."""
    row = gap.summary().set_index("run").loc["FedMoSWA, nonconvex"]
    assert np.isnan(row["measured"])
    assert row["rounds_run"] == 2


def test_a_target_that_one_seed_misses_chooses_by_the_values_at_the_end(gap):
    """Both rates need infinitely many rounds, so the first of the grid was the best."""
    configuration, rows = gap.tuned(GRADIENT)
    assert configuration == {"lr": 0.2}
    assert rows["value"].tolist() == [0.5, 0.2, 0.5, 0.3]


def test_targets_that_the_initial_model_meets_are_refused():
    """F(x) = (x - 2)^2 / 2 + 1/2 from 0: the gap is 2 and the squared gradient 4."""
    data = fs.FederatedData({"x": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(lambda w, b, key: (b["x"] - w) ** 2 / 2, data, fs.full_batch(1))
    setup = fs.Setup(task, fs.timelines.full(20, 2, num_steps=1), np.float32(0))
    with pytest.raises(ValueError, match=r"^target is 2\.5; expected less than F\(x_0\) - F\*, 2"):
        fs.advise(setup, target=2.5, **CHEAP)
    with pytest.raises(ValueError, match=r"^gradient_target is 4\.0; expected less than .*, 4$"):
        fs.advise(setup, gradient_target=4.0, **CHEAP)
    fs.advise(setup, gradient_target=3.9, **CHEAP)
