"""Dynamics of clients on quadratics against NumPy; evaluations change no run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_problems as problems
from jax.tree_util import Partial

import fedjax_sim as fs
from fedjax_sim.algorithms.staleness import realised_steps
from fedjax_sim.compression import random_k, top_k
from fedjax_sim.diagnostics.client_updates import client_models, model_change
from fedjax_sim.diagnostics.dynamics import MEASURES, client_dynamics
from fedjax_sim.engine import first_state
from fedjax_sim.engine.evaluation import RunContext, at_rounds, evaluate, merge_evaluators
from fedjax_sim.engine.execution import chunked

NUM_CLIENTS, DIM, STEPS, LR, ROUNDS = 5, 3, 4, 0.2, 4
HESSIANS, CENTRES = problems.random_quadratics(NUM_CLIENTS, DIM)
START = np.array([1.0, -2.0, 0.5])
TOLERANCE = 1e-6  # of eigenvalues: with the tests' options of the compiler Lanczos loses digits
KEY = jax.random.key(0)
ALGORITHM = fs.fedavg(LR)
RING = fs.topologies.ring(NUM_CLIENTS)


def setup_with(eval_fn, **fields) -> fs.Setup:
    """Cohorts of 3 of 5 clients; a client of round 2 and all of round 4 drop out."""
    timeline = fs.timelines.cyclic(ROUNDS, NUM_CLIENTS, 3, STEPS)
    mask = np.array(timeline.mask)
    mask[1, 0] = mask[3] = False
    timeline = dataclasses.replace(timeline, mask=mask)
    task = problems.quadratic_task(HESSIANS, CENTRES, STEPS)
    return fs.Setup(task, timeline, jnp.asarray(START), eval_fn, **fields)


def updates_at(x: np.ndarray, clients) -> np.ndarray:
    """x minus the clients' models after their local steps."""
    shrink = [np.linalg.matrix_power(np.eye(DIM) - LR * h, STEPS) for h in HESSIANS[clients]]
    pairs = zip(shrink, CENTRES[clients], strict=True)
    return np.stack([(np.eye(DIM) - s) @ (x - c) for s, c in pairs])


def expected_at(x: np.ndarray, clients) -> dict[str, np.ndarray]:
    updates = updates_at(x, clients)
    mean, lengths = updates.mean(axis=0), np.linalg.norm(updates, axis=1)
    return {
        "drift": lengths,
        "disagreement": np.linalg.norm(updates - mean, axis=1),
        "alignment": updates @ mean / (lengths * np.linalg.norm(mean)),
        "eigenvalue": np.linalg.eigvalsh(HESSIANS[clients])[:, -1],
        "noise": np.zeros(len(clients)),
    }


@pytest.mark.slow
def test_values_are_those_of_numpy_and_change_no_run(x64):
    """All clients in chunks; the cohort at once with stored updates; and no evaluation."""
    local = ("drift", "disagreement", "alignment")
    dynamics = {
        "all": client_dynamics(iterations=DIM, execution=chunked(2)),
        "cohort": client_dynamics(local, clients="cohort", store_updates=True),
        "model": lambda params: {"x": params},
    }
    watched, plain = setup_with(merge_evaluators(**dynamics)), setup_with(None)
    run = problems.compiled(lambda setup: fs.run(ALGORITHM, setup, KEY))
    state, history = run(watched)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(run(plain)[0]), strict=True):
        np.testing.assert_array_equal(a, b)
    metrics = jax.tree.map(np.asarray, history.metrics)
    everyone = np.arange(NUM_CLIENTS)
    for t in range(ROUNDS):
        x = metrics["model/x"][t]
        expected = expected_at(x, everyone)
        updates = updates_at(x, everyone)
        units = updates / np.linalg.norm(updates, axis=1)[:, None]
        totals = {
            "drift/q10": np.quantile(expected["drift"], 0.1),
            "alignment/q50": np.median(expected["alignment"]),
            "mean_update": np.linalg.norm(updates.mean(axis=0)),
            "alignment/pairwise": (units @ units.T)[~np.eye(NUM_CLIENTS, dtype=bool)].mean(),
        }
        for name in MEASURES:
            values = metrics[f"all/per_client/{name}"][t]
            np.testing.assert_allclose(values, expected[name], rtol=TOLERANCE, atol=1e-13)
            for statistic, reduce in {"mean": np.mean, "std": np.std, "max": np.max}.items():
                totals[f"{name}/{statistic}"] = reduce(expected[name])
        for name, value in totals.items():
            np.testing.assert_allclose(metrics[f"all/{name}"][t], value, TOLERANCE, 1e-12)
        # Of the cohort, those that reported, at the model after the round.
        reported = watched.timeline.clients[t][watched.timeline.mask[t]]
        assert metrics["cohort/evaluated"][t] == (len(reported) > 0)
        sizes = metrics["cohort/per_client/num_examples"][t]
        np.testing.assert_array_equal(np.flatnonzero(sizes), np.sort(reported))
        if len(reported):
            expected = expected_at(x, reported)
            for name in local:
                values = metrics[f"cohort/per_client/{name}"][t][reported]
                np.testing.assert_allclose(values, expected[name], rtol=1e-10)
                median = metrics[f"cohort/{name}/q50"][t]
                np.testing.assert_allclose(median, np.median(expected[name]), rtol=1e-10)


@pytest.mark.parametrize("clients", ["all", "cohort"])
def test_integers_of_64_bits(clients, x64):
    """NumPy's, of a timeline of lists or numbers of steps, which strict promotion does not mix."""
    setup = setup_with(client_dynamics(("drift",), clients=clients))
    lists = {
        name: np.asarray(getattr(setup.timeline, name)).tolist()
        for name in ("clients", "version", "num_steps")
    }
    wide = dataclasses.replace(
        setup,
        timeline=dataclasses.replace(setup.timeline, **lists),
        task=dataclasses.replace(setup.task, num_steps=np.full(NUM_CLIENTS, STEPS)),
    )
    run = problems.compiled(lambda setup: fs.run(ALGORITHM, setup, KEY)[1].metrics)
    problems.assert_identical(run(wide), run(setup))


def noisy_oracle(centre, client, key, max_steps):
    """Gradients with Gaussian noise of variance client + 1 in each of the coordinates."""
    del max_steps

    def grad(x, step):
        noise = jax.random.normal(jax.random.fold_in(key, step), x.shape)
        return x - centre + jnp.sqrt(client.astype(float) + 1) * noise

    return fs.Oracle(grad=grad, loss=None, full_grad=lambda x: x - centre)


def test_the_noise_is_the_variance_of_a_gradient():
    task = fs.Task(Partial(noisy_oracle, jnp.ones(DIM)), np.ones(3, int), np.ones(3, int))
    state = fs.RunState(jnp.array(0), ALGORITHM.init(jnp.zeros(DIM)), (), (), jnp.array(0))
    context = RunContext(state, ALGORITHM, task, 1, KEY)
    noise = client_dynamics(("noise",), num_batches=4000)
    values = problems.compiled(lambda: evaluate(noise, context))()
    # The relative standard deviation of the estimate is sqrt(2 / (4000 * 3)), 1.3 %.
    np.testing.assert_allclose(values["per_client/noise"], DIM * np.arange(1.0, 4.0), rtol=0.05)
    assert not {"mean_update", "drift/mean"} & set(values)


@pytest.mark.slow
def test_values_of_single_clients_are_rows_of_a_table():
    dynamics = at_rounds(client_dynamics(("drift",), clients="cohort"), 2)
    setup = setup_with(merge_evaluators(dynamics=dynamics), eval_every=1)
    result = fs.simulate(ALGORITHM, setup, KEY)
    table = result.per_client()
    reported = setup.timeline.clients[1][setup.timeline.mask[1]]  # nobody in round 4
    np.testing.assert_array_equal(table["client"], np.sort(reported))
    assert set(table["round"]) == {2}
    assert set(table["split"]) == {"dynamics"}
    history = result.to_frame()
    means = history.loc[history["metric"] == "dynamics/drift/mean", ["round", "value"]]
    assert means["round"].tolist() == [2]
    np.testing.assert_allclose(means["value"], table["drift"].mean(), rtol=1e-6)


def test_contradictions_are_refused():
    with pytest.raises(ValueError, match=r"measures is \['speed'\]; expected some of drift"):
        client_dynamics(("speed",))
    with pytest.raises(ValueError, match=r"clients is \[1, 1\]; expected different numbers"):
        client_dynamics(clients=[1, 1])
    with pytest.raises(ValueError, match=r"clients is 0\.5; expected an integer"):
        client_dynamics(clients=[0.5])
    with pytest.raises(ValueError, match="num_batches is 1; expected at least 2"):
        client_dynamics(num_batches=1)
    task = problems.quadratic_task(HESSIANS, CENTRES, STEPS)
    state = fs.RunState(jnp.array(0), ALGORITHM.init(jnp.zeros(DIM)), (), (), jnp.array(0))
    context = RunContext(state, ALGORITHM, task, STEPS, KEY)
    with pytest.raises(ValueError, match="clients contains 5; expected numbers below 5"):
        evaluate(client_dynamics(clients=[5]), context)
    with pytest.raises(ValueError, match="timeline is None; expected the rounds of the run"):
        evaluate(client_dynamics(clients="cohort"), context)
    timeline = fs.timelines.full(1, NUM_CLIENTS, STEPS)
    chosen = fs.selection.select(ALGORITHM, fs.selection.power_of_choice(2))
    selected = context._replace(algorithm=chosen, timeline=timeline)
    with pytest.raises(ValueError, match="clients is 'cohort' with a selection, whose choice"):
        evaluate(client_dynamics(clients="cohort"), selected)
    with pytest.raises(ValueError, match="state without its algorithm and task"):
        evaluate(client_dynamics(), RunContext(state))
    with pytest.raises(ValueError, match=r"shapes \(2, 3\); expected the form of the model"):
        model_change(ALGORITHM, jnp.zeros(3), jnp.zeros((2, 3)))


@pytest.mark.slow
def test_diverged_clients_are_not_aligned():
    task = problems.quadratic_task(HESSIANS, CENTRES, STEPS)
    with jax.debug_nans(False):
        server = ALGORITHM.init(jnp.full(DIM, jnp.nan))
        state = fs.RunState(jnp.array(0), server, (), (), jnp.array(0))
        context = RunContext(state, ALGORITHM, task, 1, KEY)
        values = evaluate(client_dynamics(("alignment",)), context)
    assert np.isnan([values["alignment/mean"], values["alignment/pairwise"]]).all()


@pytest.mark.slow
def test_seeds_of_a_stateful_algorithm_with_examples():
    """Two seeds of SCAFFOLD: sharpness of logistic losses, and the models of the clients."""
    params, data = problems.logistic_params(), problems.logistic_data()
    two = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params)
    dynamics = client_dynamics(("drift", "eigenvalue"), iterations=4)
    timeline = problems.partial_timeline()
    setup = fs.Setup(problems.logistic_task(), timeline, two, dynamics, eval_every=4)
    keys, algorithm = jax.random.split(KEY, 2), fs.scaffold(0.1)
    result = fs.simulate(algorithm, setup, keys)
    assert result.history is not None
    values = {
        name: result.history.metrics[f"per_client/{name}"] for name in ("drift", "eigenvalue")
    }
    for seed, model in enumerate(zip(*result.models().values(), strict=True)):
        b, w = model
        for client in range(problems.NUM_CLIENTS):
            x = data.examples["x"][data.offsets[client] : data.offsets[client + 1]]
            x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
            p = 1 / (1 + np.exp(-x @ np.append(w, b)))
            hessian = (x * (p * (1 - p))[:, None]).T @ x / len(x)
            top = values["eigenvalue"][seed, -1, client]
            np.testing.assert_allclose(top, np.linalg.eigvalsh(hessian)[-1], rtol=1e-4)
    state = fs.tree.take(result.state, 1)
    one = dataclasses.replace(setup, params=fs.tree.take(two, 1))
    models = client_models(algorithm, one, state, keys[1])
    moved = jax.tree.map(lambda x, y: x - y, models, state.server.params)
    lengths = np.sqrt(np.sum(moved["w"] ** 2, axis=1) + moved["b"] ** 2)
    np.testing.assert_allclose(lengths, values["drift"][1, -1], rtol=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "iterate"),
    [
        (fs.fedacg(LR), lambda server: server.params),
        (fs.average_rounds(fs.fedavg(LR)), lambda server: server.inner.params),
    ],
    ids=["look-ahead", "average"],
)
def test_models_of_clients_start_from_what_the_algorithm_sends(algorithm, iterate):
    """Their mean over all clients is the server's next iterate."""
    timeline = fs.timelines.full(3, NUM_CLIENTS, STEPS)
    setup = dataclasses.replace(setup_with(None), timeline=timeline)
    state, _ = fs.run(algorithm, dataclasses.replace(setup, timeline=timeline[:2]), KEY)
    after, _ = fs.run(algorithm, setup, KEY)
    models = client_models(algorithm, setup, state, KEY)
    np.testing.assert_allclose(models.mean(axis=0), iterate(after.server), rtol=1e-5)


@pytest.mark.parametrize(
    "algorithm",
    [
        fs.fednova(LR),
        fs.q_fedavg(LR),
        fs.term(LR, 1.0),
        fs.fedspeed(LR),
        fs.fedsgd(LR),
        fs.mb_sgd(LR),
        fs.agd(2.0, 0.5),
        fs.async_sgd(LR),
        fs.fedasync(LR),
        fs.fedbuff(LR, 1.0),
        fs.mime(LR),
        fs.fedlin(LR),
        fs.average_rounds(fs.fednova(LR)),
        fs.afl(LR, NUM_CLIENTS, 0.1),
        fs.fedvarp(LR),
        fs.favano(LR, realised_steps(np.full(NUM_CLIENTS, 0.5))),
        fs.favano(LR, realised_steps(np.full(NUM_CLIENTS, 0.5)), output="mean"),
        fs.per_step_uploads(fs.fedavg(LR), LR),
        fs.ef21(fs.fedavg(LR), top_k(1)),
        fs.diana(fs.fedavg(LR), random_k(1), 0.5),
        fs.marina(fs.fedavg(LR), random_k(1), 0.5),
        fs.pp_marina(fs.fedavg(LR), random_k(1)),
        fs.robust.worker_momentum(fs.fedavg(LR), 0.9),
        fs.topologies.d_psgd(LR, RING),
        fs.topologies.sgp(LR, RING),
        fs.topologies.dfedavgm(LR, RING),
        fs.topologies.hier_fedavg(LR, np.arange(NUM_CLIENTS) % 2, period=3),
    ],
)
def test_uploads_that_show_no_model_are_refused(algorithm):
    """Models came from gradients, from changes per step, and with the wrong sign (async_sgd)."""
    setup = setup_with(None)
    state = first_state(algorithm, setup)
    with pytest.raises(ValueError, match="uploads that do not show a client's model"):
        client_models(algorithm, setup, state, KEY)


@pytest.mark.parametrize("clients", [[5], [0, -1], [0.5], []])
def test_models_of_clients_that_do_not_exist_are_refused(clients):
    """JAX would clamp the number and return the model of another client."""
    setup = setup_with(None)
    with pytest.raises(ValueError, match=r"clients is .*; expected numbers of clients, 0 .. 4"):
        client_models(ALGORITHM, setup, fs.init(ALGORITHM, setup), KEY, clients)
