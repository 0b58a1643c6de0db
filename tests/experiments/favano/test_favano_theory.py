"""FAVANO's quadratics beside its theory, and the table of units of time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments.favano import quadratics, theory, theory_bounds
from experiments.favano.clock_inputs import batch_of
from fedjax_sim.theory import step_counts

pytestmark = pytest.mark.usefixtures("compiled_without_optimizations")


@pytest.mark.usefixtures("x64")
class TestTheory:
    def test_constants_of_the_quadratics(self):
        """At random models the assumptions hold, the one on gradients with equality."""
        made = quadratics.problem(0)
        known = made.constants
        rng = np.random.default_rng(1)
        for _ in range(3):
            x = rng.normal(size=quadratics.DIM)
            total = made.hessian @ x
            each = made.scales[:, None] * total + made.linear
            np.testing.assert_allclose(each.mean(axis=0), total, rtol=1e-10, atol=1e-12)
            second = np.mean(np.sum(each**2, axis=1))
            expected = known.dissimilarity**2 + known.dissimilarity_factor**2 * (total @ total)
            np.testing.assert_allclose(second, expected, rtol=1e-12)  # some ten operations
        largest = np.linalg.norm(made.hessian, 2) * made.scales.max()
        assert pytest.approx(largest, rel=1e-12) == known.L
        assert known.dissimilarity_factor > 1

    @pytest.mark.slow
    def test_noise_has_its_length(self):
        made, x = quadratics.problem(0), jnp.ones(quadratics.DIM)
        exact = made.scales[3] * made.hessian @ np.ones(quadratics.DIM) + made.linear[3]
        keys = jax.random.split(jax.random.key(0), 400)
        grads = jax.vmap(lambda key: quadratics.oracle(made, 3, key, 5).grad(x, 13))(keys)
        noise = np.asarray(grads) - exact
        np.testing.assert_allclose(np.linalg.norm(noise, axis=1), quadratics.SIGMA, rtol=1e-12)
        # 400 signs have a mean of 0.05 standard deviation.
        assert abs(noise.mean(axis=0)).max() < 4 * 0.05 * quadratics.SIGMA

    def test_runs_have_the_laws_of_their_constants(self):
        runs = quadratics.batch(5, 4, server_steps=3, repetitions=2)
        for i, fraction in enumerate(quadratics.SLOW_FRACTIONS):
            law = step_counts.geometric(quadratics.success(fraction), 4)
            for row in range(2 * i, 2 * i + 2):
                np.testing.assert_allclose(runs.chances[row].sum(axis=1), 1, rtol=1e-12)
                mean = runs.chances[row] @ np.arange(1, 5)
                np.testing.assert_allclose(mean, law.mean, rtol=1e-12)
                np.testing.assert_array_equal(runs.mean[row], law.mean)

    @pytest.mark.slow
    def test_bounds_hold_and_can_fail(self, tmp_path, monkeypatch):
        monkeypatch.setattr(theory, "COHORTS", (5,))
        monkeypatch.setattr(theory, "CAPS", (3,))
        monkeypatch.setattr(theory, "DRAWN", (3, 0.5, 1.0, "stochastic"))
        options = theory.Options(server_steps=25, repetitions=3, output=tmp_path)
        theory.main(options)
        folder = tmp_path / "favano" / "theory"
        table = pd.read_csv(folder / "theory.csv")
        assert len(table) == 12  # versions, speeds, rates
        assert table["holds"].all()
        assert (table["bound / mean"] > 1).all()
        assert (table["kappa': bound / potential"] > 1).all()
        assert (table["kappa: bound / potential"] > table["kappa': bound / potential"]).all()
        for name in ("sum of potentials: bound / sum", "mean model's step: bound / step"):
            assert (table[name] > 1).all()
        curves = pd.read_csv(folder / "theory-curves.csv")
        assert list(curves.columns[:2]) == ["s", "server steps"]
        assert (curves["gradient"] < curves["theorem"]).all()
        assert {path.name for path in folder.iterdir()} == {
            "theory-curves.csv",
            *(f"theory{end}" for end in (".csv", ".md", ".json", ".png")),
            *(f"units{end}" for end in (".csv", ".md", ".json", ".png")),
        }
        units = pd.read_csv(folder / "units.csv").set_index(["slow", "method"])["time per step"]
        # Exact for FedAvg, to the digits of a table computed elsewhere; FedBuff's mean over
        # 10,000 time units has the filling of the first buffer, 1 %.
        for slow, fedavg, fedbuff in (("1/3", 418.9, 6.07), ("8/9", 461.4, 20.3)):
            assert units[slow, "FedAvg"] == pytest.approx(fedavg, abs=0.05)
            assert units[slow, "FedBuff"] == pytest.approx(fedbuff, rel=0.02)

        made = quadratics.problem(0)
        known = theory_bounds.admitted(made, 5, 3, 0.5, "stochastic")
        traces = np.ones((3, 5, 4)) * np.array([1e-3, 1e-9, 1.0, 1e-9])
        row = functools.partial(
            theory_bounds.row, known=known, version="stochastic", fraction=0.5, share=1.0
        )
        assert row(traces)["holds"]
        high = row(traces)["bound"]
        assert not row(traces * np.array([2 * high / 1e-3, 1, 1, 1]))["holds"]
        assert not row(traces * np.array([1, 1, 1, 1e9]))["holds"]  # the mean model's step
        jump = traces.copy()
        jump[:, 3, 1] = 1.0  # beyond what that step's progress can do
        assert not row(jump)["holds"]

    @pytest.mark.slow
    def test_progress_against_numpy(self, monkeypatch):
        """Without noise it is a number; both alphas, half of the clients slow, from the start."""
        monkeypatch.setattr(quadratics, "SIGMA", 0.0)
        made, K, lr = quadratics.problem(0), 3, 0.05
        runs = quadratics.batch(2, K, server_steps=2, repetitions=2)
        success = quadratics.success(0.5)
        for version in theory.VERSIONS:
            lrs = np.full((1, len(runs.key)), lr)
            traces = quadratics.over_all(made, runs, lrs, version, K)[0]
            expected = 0.0
            for client, stop in enumerate(success):
                chances = [stop, stop * (1 - stop), (1 - stop) ** 2]
                mean = np.dot(chances, [1, 2, 3])
                x, total = made.start.copy(), np.zeros(quadratics.DIM)
                for k, chance in enumerate(chances, start=1):
                    gradient = made.scales[client] * made.hessian @ x + made.linear[client]
                    total, x = total + gradient, x - lr * gradient
                    alpha = k if version == "stochastic" else mean
                    expected += chance * np.sum(total**2) / alpha**2
            np.testing.assert_allclose(traces[2, 0, 2], expected, rtol=1e-10)  # float64

    @pytest.mark.slow
    def test_trace_against_numpy(self):
        """Two contacts by hand: the mean model's gradient and the potential."""
        made = quadratics.problem(0)
        runs = quadratics.batch(2, 3, server_steps=2, repetitions=2)
        lr = 0.05
        lrs = np.full((1, len(runs.key)), lr)
        traces = quadratics.over_all(made, runs, lrs, "deterministic", 3)[0]
        row = 2  # half slow
        n = quadratics.NUM_CLIENTS
        server, held = made.start, np.tile(made.start, (n, 1))
        timeline = batch_of(runs.timeline, row)
        key = runs.key[row]
        before = made.start
        for t in range(3):
            mu = (server + held.sum(axis=0)) / (n + 1)
            gradient = made.hessian @ mu
            phi = np.sum((server - mu) ** 2) + np.sum((held - mu) ** 2)
            # Float64, some hundred operations.
            np.testing.assert_allclose(traces[row, t, 0], gradient @ gradient, rtol=1e-10)
            np.testing.assert_allclose(traces[row, t, 1], phi, rtol=1e-8, atol=1e-20)
            if t:
                step = np.sum((mu - before) ** 2)
                np.testing.assert_allclose(traces[row, t - 1, 3], step, rtol=1e-8)
            if t == 2:
                break
            before = mu
            joined = server.copy()
            chosen = np.asarray(timeline.clients[t])
            for slot, client in enumerate(chosen):
                # The engine's draws: round, client, then the minibatches' branch.
                visit = jax.random.fold_in(jax.random.fold_in(key, t), int(client))
                grad = quadratics.oracle(made, int(client), jax.random.fold_in(visit, 0), 3).grad
                x = held[client].copy()
                for k in range(int(timeline.num_steps[t, slot])):
                    x = x - lr * np.asarray(grad(jnp.asarray(x), k))
                joined += held[client] + (x - held[client]) / runs.mean[row, client]
            server = joined / (len(chosen) + 1)
            held[chosen] = server
