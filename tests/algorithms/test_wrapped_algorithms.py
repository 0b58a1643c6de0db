"""Wrapped algorithms: the order of slots, leaves, compression and noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import (
    ALGORITHMS,
    REPRESENTATIVES,
    algorithm,
    bias,
    hyper,
    program,
    task,
    timeline_of,
    trained,
)
from small_problems import (
    NUM_CLIENTS,
    assert_close,
    assert_identical,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
    rotated,
)

import fedjax_sim as fs
from fedjax_sim.algorithms._shared import UPLOADS_COUNTS, UPLOADS_MODELS
from fedjax_sim.compression import random_k, top_k
from fedjax_sim.engine.execution import strategies
from fedjax_sim.objectives import binary_cross_entropy
from fedjax_sim.runs.storage.outcome import visit
from fedjax_sim.types import Model, Round

pytestmark = pytest.mark.usefixtures("x64")

each_representative = pytest.mark.parametrize("name", sorted(REPRESENTATIVES))


# ---- the order of the slots


def updates(name):
    """The state, the stack of uploads and the round of every update of a run."""
    record = {"update": lambda update: (update.state, update.mean, update.round._replace(key=()))}

    def run(values, task, timeline):
        setup = fs.Setup(task, timeline, logistic_params())
        ordered = fs.fixed_order(algorithm(name, values))
        probes = fs.Probes(server=record)
        return fs.run(ordered, setup, jax.random.key(2), probes=probes)[1].probes["update"]

    return compiled(run)(hyper(name), task(), timeline_of(name))


@pytest.mark.slow
@each_representative
def test_slots_in_another_order_between_empty_ones(name, x64):
    recorded = updates(name)
    update = compiled(fs.fixed_order(algorithm(name, hyper(name))).update)
    num_rounds, num_slots = recorded[1].clients.shape
    for t in range(num_rounds):
        state, stack, round = jax.tree.map(lambda leaf, t=t: leaf[t], recorded)
        round = Round(round.number, round.num_uploads, round.num_clients, jax.random.key(t))
        order = np.r_[num_slots, np.random.default_rng(t).permutation(num_slots), num_slots + 1]

        def rearranged(leaf, order=order):
            garbage = jnp.full((2, *leaf.shape[1:]), 7, leaf.dtype)
            return jnp.concatenate([leaf, garbage])[order]

        other = jax.tree.map(rearranged, stack)
        other = other._replace(arrived=other.arrived & (order < num_slots))
        assert_identical(update(state, other, round), update(state, stack, round))


@pytest.mark.slow
def test_without_a_fixed_order_bits_differ(x64):
    """Otherwise the test above would show nothing."""
    ends = []
    for name in ("fedavg", "scaffold_II", "fedadam"):
        state = program(name, "sharded")(hyper(name), task(), timeline_of(name), jax.random.key(2))
        ends.append((state.server.params["w"], trained(name).server.params["w"]))
    assert any((np.asarray(one) != np.asarray(other)).any() for one, other in ends)


# ---- frozen leaves and running statistics


def closed_losses(params, examples, key):
    return logistic_losses({**logistic_params(), "w": params["w"]}, examples, key)


@each_representative
def test_frozen_run_is_the_run_of_a_model_that_closes_over_the_leaves(name):
    @compiled
    def go(values, timeline, key):
        plain = algorithm(name, values)
        states = []
        for method, losses, params in [
            (fs.freeze(plain, bias), logistic_losses, logistic_params()),
            # A part, since predicates of leaves that a whole model does not have are refused.
            (plain, closed_losses, {"b": None, "w": logistic_params()["w"]}),
        ]:
            task = fs.empirical_task(losses, logistic_data(), rotated(2))
            setup = fs.Setup(task, timeline, params)
            states.append(fs.run(method, setup, key, execution=strategies.vmapped())[0])
        return states

    frozen, closed = go(hyper(name), timeline_of(name)[:2], jax.random.key(2))
    assert_identical(frozen.server.params["w"], closed.server.params["w"])
    assert_identical(frozen.server.params["b"], logistic_params()["b"])
    assert_identical(jax.tree.leaves(frozen.clients), jax.tree.leaves(closed.clients))
    # Neither the state of the algorithm nor that of a client has an entry for the frozen leaf.
    assert_identical(jax.tree.leaves(frozen.server.inner), jax.tree.leaves(closed.server))
    assert np.abs(frozen.server.params["w"] - logistic_params()["w"]).max() > 1e-5


def is_statistic(path, leaf):
    del leaf
    return path[0] in ("mean", "var")


def train(params, x, key, weights):
    """Logistic regression on features that are standardised by the batch."""
    del key
    weights = weights.astype(x.dtype)
    share = weights / weights.sum()
    mean = share @ x
    var = share @ (x - mean) ** 2
    outputs = (x - mean) / jnp.sqrt(var + 1e-2) @ params["w"] + params["b"]
    if "mean" not in params:
        return outputs, None
    batch = {"mean": mean, "var": var}
    statistics = {name: 0.5 * params[name] + 0.5 * value for name, value in batch.items()}
    return outputs, {"w": None, "b": None, **statistics}


def apply(params, x):
    x = (x - params["mean"]) / jnp.sqrt(params["var"] + 1e-2)
    return x @ params["w"] + params["b"]


@pytest.mark.slow
@each_representative
def test_running_statistics_do_not_change_the_run(name):
    """The other leaves are those of a model without statistics; variances stay variances."""
    start = logistic_params()
    with_statistics = {**start, "mean": jnp.zeros(3), "var": jnp.ones(3)}

    @compiled
    def go(values, timeline, key):
        plain = algorithm(name, values)
        states = []
        for method, statistics, params in [
            (fs.running_statistics(plain, is_statistic), is_statistic, with_statistics),
            (plain, None, start),
        ]:
            model = Model(lambda key: None, apply, train, statistics)
            task = fs.empirical_task(binary_cross_entropy(model), logistic_data(), rotated(2))
            setup = fs.Setup(task, timeline, params)
            states.append(fs.run(method, setup, key, execution=strategies.vmapped())[0])
        return states

    averaged, plain = go(hyper(name), timeline_of(name), jax.random.key(2))
    # XLA orders some sums otherwise.
    states = [(averaged.server.inner, averaged.clients), (plain.server, plain.clients)]
    assert_close(*map(jax.tree.leaves, states), 1e-12)
    mean, var = (averaged.server.params[key] for key in ("mean", "var"))
    assert np.isfinite(mean).all()
    assert (np.abs(mean) > 1e-3).all()
    assert (var > 0).all()
    assert (var < 3).all()


# ---- compression with memory


# Those that the docstring of ef14 names.
TAKEN = """
apfl async_sgd diloco ditto fedacg fedadagrad fedadam fedasam fedavg fedavg_ft fedavg_subgradient
fedavgm feddyn fedlesam fedprox fedsam fedsgd fedswa fedyogi perfedavg pfedme
""".split()


def form(params):
    leaves, structure = jax.tree.flatten(params)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def traced_visit(algorithm):
    """Message, upload and client state, as shapes."""
    timeline = fs.timelines.full(1, NUM_CLIENTS, 3)
    task = fs.Task(lambda *_: None, np.ones(NUM_CLIENTS, np.int32), timeline.num_steps[0])  # pyright: ignore
    setup = fs.Setup(task, timeline, logistic_params())
    return jax.eval_shape(lambda x: visit(algorithm, setup, x), logistic_params())


# Of the form of the model, but models, of several kinds, or added up over the rounds.
MODELS = ("favano_expected", "favano_realised", "quafl")
KINDS = ("fedlin", "mime")
ADDED_UP = """
diana ef21 feddyn fedgamma fedgloss fedsmoo fedvarp marina pp_marina scaffnew scaffold_I scaffold_II
scaffold_m
""".split()


@pytest.mark.parametrize("wrap", [fs.ef14, fs.ef21])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_other_uploads_are_refused_with_the_reason(name, wrap):
    """Shapes suffice to see it, before compilation."""
    plain = algorithm(name, hyper(name))
    if plain.aggregation is not None:
        with pytest.raises(ValueError, match="algorithm has another aggregation than the mean"):
            wrap(plain, top_k(1))
        return
    has_form = form(traced_visit(plain)[1]) == form(logistic_params())
    added_up = wrap is fs.ef21 and name in ADDED_UP
    if has_form and name not in MODELS + KINDS and not added_up:
        upload = traced_visit(wrap(plain, top_k(1)))[1]
        assert form(upload) == form(logistic_params())
        return
    assert added_up or name not in TAKEN
    reason = r"expected that of the model|of a part of the model|uploads models, which"
    if name in KINDS:
        reason = "algorithm has uploads of several kinds: gradients in rounds 0, 2, "
    elif added_up:
        reason = "algorithm adds uploads up over the rounds: the "
    with pytest.raises(ValueError, match=reason):
        traced_visit(wrap(plain, top_k(1)))


def test_the_docstring_names_what_is_taken():
    named = (fs.ef14.__doc__ or "").replace(",", " ").split()
    assert set(TAKEN) <= set(named)


@pytest.mark.parametrize("wrap", [fs.ef14, fs.ef21])
def test_uploads_of_models_are_refused_at_once(wrap):
    with pytest.raises(ValueError, match="algorithm uploads models, which its server averages"):
        wrap(fs.quafl(0.1), top_k(1))


@pytest.mark.parametrize("name", ["feddyn", "fedlesam"])
def test_marina_refuses_clients_with_states(name):
    with pytest.raises(ValueError, match="algorithm has clients that keep state"):
        traced_visit(fs.marina(algorithm(name, hyper(name)), random_k(1), 0.5))


# ---- differential privacy


REFUSED = {
    UPLOADS_COUNTS: {
        "agd", "fedadamw", "fedadamw_entry", "fedbuff", "fedbuff_normalised", "feddualavg",
        "feddualavg_osp", "averaged_feddualavg", "fedmid", "fedmid_osp", "fedmuon", "fednova",
        "fedproto", "ifca", "mb_ac_sgd", "mb_sgd", "q_fedavg", "term",
    },
    UPLOADS_MODELS: {"averaged_fedavg", "fedasync"},
    "algorithm uploads models": {"favano_expected", "favano_mean", "favano_realised", "quafl"},
    "states of their optimizers": {"fedavg_adam_mean"},
    "losses": {"afl"},
    "squared norms": {"fedexp", "fedexp_average"},
    "whether they are whole": {"pp_marina"},
    "another aggregation than the mean": {
        "d2", "d_psgd", "dfedavgm", "feddf", "gradient_tracking", "hier_fedavg", "sgp",
    },
}  # fmt: skip
# Weight decay, or a regulariser in the gradient, moves a model without data.
MOVE_WITHOUT_DATA = {"diloco", "fedavg_subgradient"}
PARAMS = {"w": jnp.array([1.0, -2.0, 3.0]), "b": jnp.array(0.5)}


def test_every_algorithm_is_accepted_or_refused_with_its_reason():
    refused = {reason: set() for reason in REFUSED}
    for name in ALGORITHMS:
        made = algorithm(name, hyper(name))
        try:
            assert fs.privacy.privatize(
                made, 1.0, 1.0, expected_uploads=4
            ).requires.synchronous == (made.requires.synchronous)
        except ValueError as error:
            (reason,) = [reason for reason in REFUSED if reason in str(error)]
            refused[reason].add(name)
    assert refused == REFUSED


@pytest.mark.slow
def test_accepted_algorithms_upload_0_for_a_client_that_changes_nothing():
    """The clients' losses and gradients are 0; refused algorithms upload something else."""
    zero, key = jnp.array(0, jnp.int32), jax.random.key(0)
    nothing = lambda x, *step: jax.tree.map(jnp.zeros_like, x)  # noqa: E731
    constant = lambda x, *step: jnp.array(0.0)  # noqa: E731
    one = lambda *models: jnp.array(1.0)  # noqa: E731
    oracle = fs.Oracle(nothing, constant, nothing, constant, lambda function, *step: one)
    work = fs.Work(zero, zero, zero + 3, zero + 10, zero, key, max_steps=4)
    silent = set()
    for name in ALGORITHMS:
        with jax.disable_jit(), jax.enable_x64(False):  # nothing is compiled for three steps
            made = algorithm(name, hyper(name))
            message = made.broadcast(made.init(PARAMS), fs.Round(zero, zero + 4, 8, key))
            upload, _ = made.local(message, made.init_client(PARAMS), oracle, work)
        if not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(upload)):
            silent.add(name)
    accepted = ALGORITHMS.keys() - set().union(*REFUSED.values())
    # AFL uploads losses, FedExP squared norms, which are 0 here; PP-MARINA's server counts uploads,
    # that of FedDF and of edges receives all of them.
    of_other_kinds = {"afl", "pp_marina", "feddf", "hier_fedavg"} | REFUSED["squared norms"]
    assert accepted - MOVE_WITHOUT_DATA == silent - of_other_kinds


def test_wrappers_are_refused_inside_and_outside():
    private = fs.privacy.privatize(fs.fedavg(0.1), 1.0, 1.0, expected_uploads=2)
    statistics = fs.running_statistics(fs.fedavg(0.1), lambda path, leaf: path == ("mean",))
    for made, reason in [
        (private, "algorithm is privatize"),
        (fs.skip_nonfinite(fs.fedavg(0.1)), "whether their upload is finite"),
        (statistics, "running statistics of their data"),
    ]:
        with pytest.raises(ValueError, match=reason):
            fs.privacy.privatize(made, 1.0, 1.0, expected_uploads=2)
    task = fs.Task(lambda client, key, max_steps: None, np.ones(2, int), np.ones(2, int))
    setup = fs.Setup(task, fs.timelines.full(1, 2, 1), PARAMS)
    fs.init(private, setup)
    for wrapped in [
        fs.average_rounds(private),
        fs.running_statistics(private, lambda path, leaf: path == ("b",)),
        fs.freeze(private, lambda path, leaf: path == ("b",)),
        fs.compression.compressed(private, fs.compression.identity()),
    ]:
        with pytest.raises(ValueError, match="expected privatize as the last wrapper"):
            fs.init(wrapped, setup)
    # Statistics that clients keep do not leave them; the model's check stays recognisable.
    kept = fs.running_statistics(fs.fedavg(0.1), lambda path, leaf: path == ("b",), "private")
    inside = fs.privacy.privatize(kept, 1.0, 1.0, expected_uploads=2)
    assert inside.requires.statistics is not None
    fs.init(inside, setup)
    with pytest.raises(ValueError, match="expected privatize as the last wrapper"):
        fs.init(fs.average_rounds(inside), setup)
    with pytest.raises(ValueError, match="expected it as the last wrapper"):
        fs.ef21(private, fs.compression.top_k(1))
