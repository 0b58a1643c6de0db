"""Personal evaluation in run, compare, sweep and forecast; unseen clients; every wrapper."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bilinear import LR, C, head, joint, personal_models, setup
from jax.tree_util import Partial
from small_problems import KEY, assert_close, compiled

import fedjax_sim as fs
from fedjax_sim.compression import compressed, identity
from fedjax_sim.engine.evaluation import RunContext, evaluate, merge_evaluators, personal_evaluator
from fedjax_sim.local.transforms import transform_oracle, unchanged
from fedjax_sim.runs.storage.client_rows import client_frame

pytestmark = pytest.mark.usefixtures("x64")
KEYS = jax.random.split(KEY, 2)
STEPS = 2


def stacked(given):
    """The setup for two seeds."""
    params = jax.tree.map(lambda x: jnp.stack([x, x + 0.1]), given.params)
    return dataclasses.replace(given, params=params)


def unseen_evaluator(first_visit):
    """Clients with c = 3 and c = 1 that never train, evaluated on their models' leaves."""
    new = dataclasses.replace(setup(STEPS).task, oracle=None)
    oracle = setup(STEPS).task.oracle
    new = dataclasses.replace(new, oracle=Partial(oracle.func, jnp.array([3.0, 1.0])))
    data = fs.FederatedData({"one": np.ones(2)}, np.arange(3))
    return personal_evaluator(
        lambda params, examples: {name: x * examples["one"] for name, x in params.items()},
        data,
        unseen=new,
        first_visit=first_visit,
        per_client=True,
    )


@pytest.mark.slow
def test_unseen_clients():
    """Their head is the initial one; after a first visit, that of joint steps on their data."""
    both = merge_evaluators(new=unseen_evaluator(False), visited=unseen_evaluator(True))
    given = setup(STEPS, np.ones((3, 2), bool), both)
    state, history = compiled(lambda s: fs.run(fs.fedper(LR, where=head), s, KEY))(given)
    u, metrics = float(state.server.params["u"]), history.metrics
    assert metrics["new/per_client/v"][-1].tolist() == [0.5, 0.5]
    assert_close(metrics["new/per_client/u"][-1], [u, u], 1e-15)
    expected = [joint(STEPS)(c, u, 0.5)[1] for c in (3.0, 1.0)]
    assert_close(metrics["visited/per_client/v"][-1], expected, 1e-14)


def positions(client, key, max_steps):
    """F_i(x) = (x - i)^2 / 2, with numbers of clients of the own task."""
    del key, max_steps

    def grad(x, step):
        del step
        return x - client.astype(x.dtype)

    return fs.Oracle(grad, lambda x, step: x**2, lambda x: grad(x, 0))


def after_rounds(algorithm, first_visit=False):
    """Models of four clients that train and of two others, after three rounds of full gradients."""
    task, new = (fs.Task(positions, np.ones(n, np.int32), np.ones(n, int)) for n in (4, 2))
    metrics = lambda x, examples: {"x": x * examples["one"]}  # noqa: E731

    def evaluator(count, **options):
        data = fs.FederatedData({"one": np.ones(count)}, np.arange(count + 1))
        return personal_evaluator(metrics, data, per_client=True, **options)

    both = merge_evaluators(
        seen=evaluator(4), new=evaluator(2, unseen=new, first_visit=first_visit)
    )
    setup = fs.Setup(task, fs.timelines.full(3, 4, 1), jnp.array(8.0), both, eval_every=3)
    state, history = compiled(lambda s: fs.run(algorithm, s, KEY))(setup)
    return state.server, *(history.metrics[f"{x}/per_client/x"][-1] for x in ("seen", "new"))


@pytest.mark.parametrize(
    "make",
    [
        lambda lr: fs.topologies.dfedavgm(lr, fs.topologies.ring(4)),
        lambda lr: fs.topologies.sgp(
            lr, fs.topologies.directed(4, [(0, 1), (1, 2), (2, 0), (0, 3)])
        ),
        lambda lr: fs.topologies.hier_fedavg(lr, np.array([0, 0, 1, 1]), period=2),
    ],
    ids=["gossip", "push-sum", "edges"],
)
def test_unseen_clients_are_not_those_of_the_network_with_their_numbers(make):
    """They have the mean model; clients that train have their own, or that of their edge."""
    server, seen, new = after_rounds(make(0.2))
    assert_close(new, np.full(2, server.params), 1e-15)
    if hasattr(server, "edges"):
        expected = server.edges[jnp.array([0, 0, 1, 1])]
    else:
        expected = server.models / (server.mixed if jax.tree.leaves(server.mixed) else 1)
    assert_close(seen, expected, 1e-15)
    assert np.ptp(np.asarray(seen)) > 0.1


@pytest.mark.parametrize(
    "make",
    [
        lambda lr: fs.topologies.d_psgd(lr, fs.topologies.ring(4)),
        lambda lr: fs.topologies.hier_fedavg(lr, np.array([0, 0, 1, 1]), period=2),
    ],
    ids=["gossip", "edges"],
)
def test_first_visits_of_unseen_clients_begin_at_the_mean_model(make):
    """Not at the model of the last client that trains, beside which private leaves would move."""

    def oracle(client, key, max_steps):  # F_i(x, v) = ((x - i)^2 + (v - x)^2) / 2
        del key, max_steps

        def grad(w, step=0):
            del step
            x, v = w["shared"], w["own"]
            return {"shared": 2 * x - client.astype(x.dtype) - v, "own": v - x}

        return fs.Oracle(grad, lambda w, step: w["own"], grad)

    task, new = (fs.Task(oracle, np.ones(n, np.int32), np.ones(n, int)) for n in (4, 2))
    data = fs.FederatedData({"one": np.ones(2)}, np.arange(3))
    metrics = lambda w, examples: {"own": w["own"] * examples["one"]}  # noqa: E731
    evaluator = personal_evaluator(metrics, data, per_client=True, unseen=new, first_visit=True)
    params = {"shared": jnp.array(8.0), "own": jnp.array(1.0)}
    setup = fs.Setup(task, fs.timelines.full(3, 4, 1), params, evaluator, eval_every=3)
    algorithm = fs.private(make(0.2), lambda path, leaf: path[0] == "own", lr=0.5)
    state, history = compiled(lambda s: fs.run(algorithm, s, KEY))(setup)
    mean = float(state.server.params["shared"])
    assert_close(history.metrics["per_client/own"][-1], np.full(2, (1 + mean) / 2), 1e-14)


def test_fine_tuning_starts_from_the_model_of_the_edge():
    algorithm = fs.topologies.hier_fedavg(0.2, np.array([0, 0, 1, 1]), period=2)
    _, seen, _ = after_rounds(algorithm)
    _, tuned, _ = after_rounds(fs.fine_tuned(algorithm, 0.5, steps=1))
    assert_close(tuned, (np.asarray(seen) + np.arange(4)) / 2, 1e-15)


def test_unseen_clients_have_the_mean_of_weights_per_client():
    """Not the weights of the training clients with their numbers, here 0 and 0."""
    weights = jnp.array([0.0, 0.0, 2.0, 4.0])
    server, _, new = after_rounds(fs.ditto(0.2, weights), first_visit=True)
    x = np.asarray(server.params)  # of the last broadcast and the clients' first models
    assert_close(new, x - 0.2 * (x - np.arange(2)), 1e-15)  # the term is 0 at x
    server, _, new = after_rounds(fs.ditto(0.2, weights, personal_steps=2), first_visit=True)
    x, v = np.asarray(server.params), np.full(2, server.params)
    for _ in range(2):
        v = v - 0.2 * (v - np.arange(2) + 1.5 * (v - x))
    assert_close(new, v, 1e-15)


WRAPPERS = {
    "skip_nonfinite": fs.skip_nonfinite,
    "average_rounds": fs.average_rounds,
    "compressed": lambda algorithm: compressed(algorithm, identity(), identity()),
    "transform_oracle": lambda algorithm: transform_oracle(algorithm, unchanged),
    "freeze": lambda algorithm: fs.freeze(algorithm, lambda path, leaf: path == ("s",)),
    "averaged": lambda a: fs.running_statistics(a, lambda path, leaf: path == ("s",)),
    "private": lambda a: fs.running_statistics(a, lambda path, leaf: path == ("s",), "private"),
    "private_leaf": lambda algorithm: fs.private(algorithm, lambda path, leaf: path == ("s",), LR),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_keep_personal_models(wrap):
    """2 x + client state + gradient, from the inner message and state, with the wrapper's leaf."""

    def personal(message, own, oracle, work):
        return jax.tree.map(lambda x, y, g: 2 * x + y + g, message, own, oracle.grad(message, 0))

    plain = fs.feddyn(LR, 0.1)._replace(personal=personal, init_client=lambda x: x)
    params = {"w": jnp.array(3.0), "s": jnp.array(5.0)}
    oracle = fs.Oracle(
        lambda x, k: {"w": x["w"] ** 2, "s": jnp.zeros_like(x["s"])}, lambda x, k: x["w"],
        lambda x: x,
    )  # fmt: skip
    one = jnp.array(1, jnp.int32)
    work = fs.Work(one, one, one, one, one * 0, KEY, max_steps=1)
    algorithm = wrap(plain)
    message = algorithm.broadcast(algorithm.init(params), fs.Round(one, one, 2, KEY))
    model = algorithm.personal(message, algorithm.init_client(params), oracle, work)
    assert float(model["w"]) == 2 * 3 + 3 + 9
    part = {"freeze", "averaged", "private", "private_leaf"}
    name = next(name for name, other in WRAPPERS.items() if other is wrap)
    assert float(model["s"]) == (5.0 if name in part else 15.0)
    assert set(jax.tree.leaves(jax.tree.map(jnp.shape, model))) <= {()}
    without = wrap(fs.fedavg(LR)).personal
    assert (without is None) == (name not in ("private", "private_leaf"))


@pytest.mark.slow
def test_runs_comparisons_sweeps_and_forecasts_agree():
    """`run`, `compare` and `sweep` return equal statistics and equal values of clients."""
    given = setup(STEPS, np.ones((4, 2), bool), merge_evaluators(own=personal_models()))
    given = dataclasses.replace(given, eval_every=2)
    both = stacked(given)
    algorithm = fs.fedper(LR, where=head)
    compared = fs.compare({"fedper": algorithm, "fedavg": fs.fedavg(LR)}, both, KEYS)
    one = compiled(lambda s, k: fs.run(algorithm, s, k)[1])
    for i in range(2):
        model = jax.tree.map(lambda x, i=i: x[i], both.params)
        alone = one(dataclasses.replace(given, params=model), KEYS[i])
        history = compared.simulations["fedper"][0].history
        for name, value in alone.metrics.items():
            assert_close(history.metrics[name][i], value, 1e-13)
    clients = compared.simulations["fedper"][0].per_client()
    assert clients["split"].unique().tolist() == ["own"]
    assert len(clients) == 2 * 2 * 2  # seeds, evaluations, clients
    of_all = compared.per_client()
    assert of_all["algorithm"].value_counts().to_dict() == {"fedper": 8, "fedavg": 8}
    own = of_all.loc[of_all["algorithm"] == "fedper"].drop(columns="algorithm")
    assert own.reset_index(drop=True).equals(clients)
    common = compared.simulations["fedavg"][0].history.metrics
    assert_close(common["own/v/std"], np.zeros((2, 2)), 0.0)  # the server's model for all

    swept = fs.sweep(lambda lr: fs.fedper(lr, where=head), both, {"lr": [0.05, LR]}, KEYS)
    last = [run for run in swept.runs if run.configuration["lr"] == LR]
    for run, i in zip(last, range(2), strict=True):
        for name in ("own/v/mean", "own/v/weighted_mean", "own/per_client/v"):
            assert_close(run.history.metrics[name], history.metrics[name][i], 1e-13)
    assert "own/v/mean" in set(swept.to_frame()["metric"])
    of_sweep = swept.per_client()
    at_rate = of_sweep.loc[of_sweep["lr"] == LR].sort_values(["round", "seed", "client"])
    assert_close(at_rate["v"].to_numpy(), clients["v"].to_numpy(), 1e-13)
    needs = fs.forecast(algorithm, both, KEYS)
    assert needs.seconds.per_evaluation > 0
    assert needs.evaluations == 2
    assert client_frame(compared.simulations["fedper"][0].history, ["0", "1"]).shape[0] == 8


@pytest.mark.slow
def test_statistics_of_unequal_clients():
    """Three examples of the first client and one of the second."""
    data = fs.FederatedData({"one": np.ones(4)}, np.array([0, 3, 4]))
    values = personal_evaluator(
        lambda params, examples: {"v": params["v"] * examples["one"]}, data, batch_size=2
    )
    state = fs.init(fs.fedper(LR, where=head), setup(STEPS))
    state = state._replace(clients=state.clients._replace(personal={"u": None, "v": C}))
    context = RunContext(state, fs.fedper(LR, where=head), setup(STEPS).task, STEPS, KEY)
    result = evaluate(values, context)
    assert float(result["v/mean"]) == -0.5
    assert float(result["v/weighted_mean"]) == (3 * 1 - 2) / 4


def test_errors():
    data = fs.FederatedData({"one": np.ones(2)}, np.arange(3))
    metrics = lambda params, examples: {"v": params["v"] * examples["one"]}  # noqa: E731
    task = setup(STEPS).task
    values = personal_evaluator(metrics, data)
    algorithm = fs.fedper(LR, where=head)
    state = fs.init(algorithm, setup(STEPS))
    with pytest.raises(ValueError, match="receives a state without its algorithm and task"):
        evaluate(values, state)
    placed = dataclasses.replace(task, placement=object())
    with pytest.raises(ValueError, match="task has a placement"):
        evaluate(values, RunContext(state, algorithm, placed, STEPS, KEY))
    three = personal_evaluator(metrics, fs.FederatedData({"one": np.ones(3)}, np.arange(4)))
    with pytest.raises(ValueError, match="data has 3 clients; expected 2, those of the task"):
        evaluate(three, RunContext(state, algorithm, task, STEPS, KEY))
    with pytest.raises(ValueError, match="first_visit is True; expected a task of clients"):
        personal_evaluator(metrics, data, first_visit=True)
    with pytest.raises(ValueError, match="personal is a function; expected None with unseen"):
        personal_evaluator(metrics, data, lambda server, own: server, unseen=task)
    with pytest.raises(ValueError, match="algorithm sends a message without a model"):
        fs.fine_tuned(fs.fedsmoo(LR), LR, steps=1).init(setup(STEPS).params)


def test_states_without_leaves_of_their_own_are_refused():
    """As those of Ditto, whose personal models are computed by an evaluator."""
    with pytest.raises(ValueError, match="client is a ndarray; expected the state of a client"):
        fs.personal_model(np.ones(2), np.ones(2))  # type: ignore
