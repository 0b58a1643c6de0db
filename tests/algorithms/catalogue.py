"""Every algorithm with sample hyper-parameters, and their compiled runs on the logistic problem.

An entry is ``name: (factory, {hyper-parameter: value})``; the factory gets each value as a traced
array.  The values are chosen to be none of the special ones (0, 1) at which a term vanishes.  An
algorithm that is not here fails a test of ``test_common.py``.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compressed_quadratics import as_unbiased
from jax.tree_util import Partial
from small_problems import NUM_CLIENTS, SIZES, compiled, logistic_params, logistic_task, rotated

import fedjax_sim as fs
from fedjax_sim import tree
from fedjax_sim.algorithms.staleness import expected_steps, hinge, polynomial, realised_steps
from fedjax_sim.compression import scaled_sign, top_k
from fedjax_sim.engine.execution import strategies
from fedjax_sim.prox import ElasticNet, composite
from fedjax_sim.tree import leaves


def fedavg_with_schedule(lr, decay) -> fs.FedAlgorithm:
    """FedAvg whose client rate decays hyperbolically over the rounds."""
    return fs.fedavg(lambda round: lr / (1 + decay * round.astype(jnp.result_type(decay))))


def local_adam(local_state):
    """FedAvg with Adam as the clients' optimizer."""
    return lambda lr, b1: fs.fedavg(
        local_optimizer=optax.adam(lr, b1, b2=0.9, eps=1e-2), local_state=local_state
    )


def elastic(factory):
    """A composite method that shrinks the whole model."""
    return lambda lr, l1, l2, server_lr: factory(lr, composite(ElasticNet(l1, l2)), server_lr)


def bias(path, leaf):
    """Private leaves of the split methods: the bias of the logistic model."""
    del leaf
    return path == ("b",)


def _lifted(params):
    return params | {"w": params["w"][None]}


def _lowered(params):
    return params | {"w": params["w"][0]}


class _Lifted(NamedTuple):
    inner: Any  # server state
    params: Any


def _server(inner):
    return _Lifted(inner, _lowered(inner.params))


def with_matrix(factory):
    """An algorithm to which the weights of the logistic model are a matrix of one row."""

    def make(**values):
        inner = factory(**values)

        def local(message, state, oracle, work):
            of_matrix = oracle._replace(
                grad=lambda x, step: _lifted(oracle.grad(_lowered(x), step)),
                loss=lambda x, step: oracle.loss(_lowered(x), step),
                full_grad=lambda x: _lifted(oracle.full_grad(_lowered(x))),
            )
            return inner.local(message, state, of_matrix, work)

        return inner._replace(
            init=lambda params: _server(inner.init(_lifted(params))),
            local=local,
            update=lambda state, mean, round: _server(inner.update(state.inner, mean, round)),
            broadcast=lambda state, round: inner.broadcast(state.inner, round),
            init_client=lambda params: inner.init_client(_lifted(params)),
        )

    return make


def three_logits(params, x):
    """Logits [B, 3] of the logistic model's z: z, sin z and -z."""
    z = x @ params["w"] + params["b"]
    return jnp.stack([z, jnp.sin(z), -z], axis=-1)


def two_features(params, x):
    """Features [B, 2] of norm at least 1: tanh z and 1 + (x_0 w_0 + b)^2."""
    z = x @ params["w"] + params["b"]
    return jnp.stack([jnp.tanh(z), 1 + jnp.square(x[:, 0] * params["w"][0] + params["b"])], axis=-1)


POOL = np.random.default_rng(5).normal(size=(7, 3)).astype(np.float32)


def _of_classes(function, *arguments):
    *models, examples, key = arguments
    return function(*models, examples | {"y": examples["y"].astype(jnp.int32)}, key)


def with_classes(factory):
    """An algorithm to whose terms the labels of the logistic problem are integers."""

    def make(**values):
        inner = factory(**values)

        def local(message, state, oracle, work):
            def mean(function, *step):
                return oracle.mean(Partial(_of_classes, function), *step)

            return inner.local(message, state, oracle._replace(mean=mean), work)

        return inner._replace(local=local)

    return make


def composite_entry(factory):
    return elastic(factory), {"lr": 0.2, "l1": 0.05, "l2": 0.1, "server_lr": 0.8}


def on_graph(factory, topology):
    """An entry of an algorithm without a server."""
    return functools.partial(factory, topology=topology), {"lr": 0.2}


# Clients 0 and 1 have more receivers than the others, so the columns alone have the sum 1.
DIRECTED = fs.topologies.directed(
    NUM_CLIENTS,
    [(i, (i + 1) % NUM_CLIENTS) for i in range(NUM_CLIENTS)] + [(0, 4), (1, 6), (0, 2)],
)
ADAMW = {"lr": 0.05, "correction": 0.4, "weight_decay": 0.1, "b1": 0.8, "b2": 0.9, "eps": 1e-2}
ALGORITHMS = {
    "fedsgd": (fs.fedsgd, {"lr": 0.3}),
    "fedavg": (fs.fedavg, {"lr": 0.2}),
    "fedavg_schedule": (fedavg_with_schedule, {"lr": 0.2, "decay": 0.5}),
    "fedavg_adam_reset": (local_adam("reset"), {"lr": 0.05, "b1": 0.8}),
    "fedavg_adam_keep": (local_adam("keep"), {"lr": 0.05, "b1": 0.8}),
    "fedavg_adam_mean": (local_adam("mean"), {"lr": 0.05, "b1": 0.8}),
    "fedprox": (fs.fedprox, {"lr": 0.2, "mu": 0.4}),
    "fedavgm": (fs.fedavgm, {"lr": 0.2, "server_lr": 0.7, "momentum": 0.6}),
    "fedadagrad": (
        fs.fedadagrad,
        {"lr": 0.2, "server_lr": 0.1, "initial_accumulator": 0.05, "eps": 1e-2},
    ),
    "fedadam": (fs.fedadam, {"lr": 0.2, "server_lr": 0.1, "b1": 0.8, "b2": 0.9, "eps": 1e-2}),
    "fedyogi": (fs.fedyogi, {"lr": 0.2, "server_lr": 0.1, "b1": 0.8, "b2": 0.9, "eps": 1e-2}),
    "scaffold_I": (functools.partial(fs.scaffold, option="I"), {"lr": 0.2, "server_lr": 0.8}),
    "scaffold_II": (functools.partial(fs.scaffold, option="II"), {"lr": 0.2, "server_lr": 0.8}),
    "fedswa": (fs.fedswa, {"lr": 0.2, "rho": 0.3, "alpha": 1.4}),
    "fedmoswa": (fs.fedmoswa, {"lr": 0.2, "rho": 0.3, "alpha": 1.4, "gamma": 0.3}),
    "feddyn": (fs.feddyn, {"lr": 0.2, "mu": 0.3}),
    "fedacg": (fs.fedacg, {"lr": 0.2, "momentum": 0.6, "mu": 0.3}),
    "fedsam": (fs.fedsam, {"lr": 0.2, "radius": 0.3}),
    "fedasam": (fs.fedasam, {"lr": 0.2, "radius": 0.3}),  # eta has no effect on vectors
    "fedgamma": (fs.fedgamma, {"lr": 0.2, "radius": 0.3, "server_lr": 0.8}),
    "mofedsam": (fs.mofedsam, {"lr": 0.2, "radius": 0.3, "mix": 0.4}),
    "fedlesam": (fs.fedlesam, {"lr": 0.2, "radius": 0.3}),
    "fedac": (functools.partial(fs.fedac, num_steps=4), {"lr": 0.1, "mu": 0.3}),
    "average_rounds": (lambda lr: fs.average_rounds(fs.fedavg(lr)), {"lr": 0.2}),
    # Their codecs do not draw: draws depend on the number of a client.
    "ef14": (lambda lr: fs.ef14(fs.fedavg(lr), top_k(2)), {"lr": 0.2}),
    "ef21": (lambda lr: fs.ef21(fs.fedavg(lr), scaled_sign()), {"lr": 0.2}),
    "ef21_p": (lambda lr: fs.ef21_p(fs.fedavg(lr), top_k(2)), {"lr": 0.2}),
    "diana": (
        lambda lr, rate: fs.diana(fs.fedavg(lr), as_unbiased(top_k(2)), rate),
        {"lr": 0.2, "rate": 0.4},
    ),
    "marina": (lambda lr: fs.marina(fs.fedavg(lr), as_unbiased(top_k(2)), 0.4), {"lr": 0.2}),
    "pp_marina": (lambda lr: fs.pp_marina(fs.fedavg(lr), as_unbiased(top_k(2))), {"lr": 0.2}),
    "averaged_fedavg": (fs.averaged_fedavg, {"lr": 0.2, "factor": 0.9}),
    "mb_sgd": (fs.mb_sgd, {"lr": 0.3}),
    "mb_ac_sgd": (fs.mb_ac_sgd, {"lr": 0.2, "mu": 0.3}),
    "agd": (fs.agd, {"smoothness": 4.0, "mu": 0.3}),
    "fedmid": composite_entry(fs.fedmid),
    "fedmid_osp": composite_entry(fs.fedmid_osp),
    "feddualavg": composite_entry(fs.feddualavg),
    "feddualavg_osp": composite_entry(fs.feddualavg_osp),
    "averaged_feddualavg": (
        lambda lr, l1, l2: fs.averaged_feddualavg(lr, composite(ElasticNet(l1, l2))),
        {"lr": 0.2, "l1": 0.05, "l2": 0.1},
    ),
    "fedavg_subgradient": composite_entry(fs.fedavg_subgradient),
    "favano_expected": (
        lambda lr, mean: fs.favano(lr, expected_steps(jnp.full(8, mean))),
        {"lr": 0.2, "mean": 0.7},
    ),
    "favano_realised": (
        lambda lr, p: fs.favano(lr, realised_steps(jnp.full(8, p))),
        {"lr": 0.2, "p": 0.9},
    ),
    "favano_mean": (
        lambda lr, mean: fs.favano(lr, expected_steps(jnp.full(8, mean)), output="mean"),
        {"lr": 0.2, "mean": 0.7},
    ),
    "quafl": (fs.quafl, {"lr": 0.2}),
    "fedbuff": (
        lambda lr, server_lr, power: fs.fedbuff(lr, server_lr, polynomial(power)),
        {"lr": 0.2, "server_lr": 0.7, "power": 0.6},
    ),
    "fedbuff_normalised": (
        lambda lr, server_lr, slope: fs.fedbuff(lr, server_lr, hinge(0, slope), normalised=True),
        {"lr": 0.2, "server_lr": 0.7, "slope": 0.4},
    ),
    "fedasync": (
        lambda lr, mix, power, mu: fs.fedasync(lr, mix, polynomial(power), mu),
        {"lr": 0.2, "mix": 0.6, "power": 0.6, "mu": 0.3},
    ),
    "async_sgd": (
        lambda lr, bound: fs.async_sgd(lr, patience=1, bound=bound),
        {"lr": 0.2, "bound": 0.15},
    ),
    "fedsmoo": (fs.fedsmoo, {"lr": 0.2, "mu": 0.3, "radius": 0.2}),
    "feddf": (
        functools.partial(fs.feddf, three_logits, POOL, steps=3, batch_size=2),
        {"lr": 0.2, "distill_lr": 0.05},
    ),
    "fedproto": (
        with_classes(functools.partial(fs.fedproto, two_features, 2, 2)),
        {"lr": 0.2, "weight": 0.6},
    ),
    "fedala": (
        functools.partial(fs.fedala, where=bias, weight_steps=2, start_steps=3),
        {"lr": 0.2, "weight_lr": 0.4},
    ),
    "fedntd": (
        with_classes(functools.partial(fs.fedntd, three_logits)),
        {"lr": 0.2, "weight": 0.6, "temperature": 1.7},
    ),
    "moon": (
        functools.partial(fs.moon, two_features),
        {"lr": 0.2, "weight": 0.6, "temperature": 0.7},
    ),
    "fedinit": (fs.fedinit, {"lr": 0.2, "relaxation": 0.3}),
    "fedspeed": (fs.fedspeed, {"lr": 0.2, "mu": 0.3, "radius": 0.2, "mix": 0.6}),
    "fedgloss": (
        fs.fedgloss,
        {"lr": 0.2, "server_lr": 0.8, "mu": 0.3, "radius": 0.2, "local_radius": 0.3},
    ),
    "fedper": (functools.partial(fs.fedper, where=bias), {"lr": 0.2}),
    "lg_fedavg": (functools.partial(fs.lg_fedavg, where=leaves.others(bias)), {"lr": 0.2}),
    "fedbn": (functools.partial(fs.fedbn, where=bias), {"lr": 0.2}),
    "fedrep": (
        functools.partial(fs.fedrep, head_share=0.4, where=bias),
        {"lr": 0.2, "head_lr": 0.3},
    ),
    "fedbabu": (functools.partial(fs.fedbabu, where=bias), {"lr": 0.2}),
    "fedavg_ft": (fs.fedavg_ft, {"lr": 0.2}),
    "ditto": (fs.ditto, {"lr": 0.2, "mu": 0.4, "personal_lr": 0.3}),
    "pfedme": (
        functools.partial(fs.pfedme, inner_steps=3),
        {"lr": 0.1, "mu": 2.0, "personal_lr": 0.15, "server_lr": 0.8},
    ),
    "apfl": (fs.apfl, {"lr": 0.2, "alpha": 0.4}),
    "apfl_adaptive": (
        functools.partial(fs.apfl, adaptive=True, order="after"),
        {"lr": 0.2, "alpha": 0.4},
    ),
    "perfedavg_FO": (fs.perfedavg, {"lr": 0.2, "adapt_lr": 0.3}),
    "perfedavg_HF": (
        functools.partial(fs.perfedavg, hessian="HF"),
        {"lr": 0.2, "adapt_lr": 0.3, "delta": 0.4},
    ),
    "ifca": (fs.ifca, {"lr": 0.2}),
    "fednova": (fs.fednova, {"lr": 0.2, "server_lr": 0.8, "momentum": 0.6, "mu": 0.3}),
    "fedexp": (fs.fedexp, {"lr": 0.2, "eps": 0.01}),
    "fedexp_average": (functools.partial(fs.fedexp, average_last=True), {"lr": 0.2, "eps": 0.01}),
    "fedvarp": (fs.fedvarp, {"lr": 0.2, "server_lr": 0.8}),
    "fedcm": (fs.fedcm, {"lr": 0.2, "server_lr": 0.8, "mix": 0.4}),
    "scaffold_m": (fs.scaffold_m, {"lr": 0.2, "server_lr": 0.8, "mix": 0.4}),
    "mimelite": (fs.mimelite, {"lr": 0.2, "momentum": 0.6}),
    "mime": (fs.mime, {"lr": 0.2, "momentum": 0.6}),
    "fedlin": (fs.fedlin, {"lr": 0.4}),
    "scaffnew": (fs.scaffnew, {"lr": 0.2, "probability": 0.3}),
    "fedadamw": (fs.fedadamw, ADAMW),
    "fedadamw_entry": (functools.partial(fs.fedadamw, blocks="entry", first_count="run"), ADAMW),
    "fedmuon": (
        with_matrix(fs.fedmuon),
        {"lr": 0.05, "mix": 0.6, "momentum": 0.7, "weight_decay": 0.1, "b1": 0.8, "b2": 0.9},
    ),
    "diloco": (
        fs.diloco,
        {"lr": 0.05, "server_lr": 0.7, "momentum": 0.6, "weight_decay": 0.1, "b1": 0.8, "b2": 0.9},
    ),
    "streaming_diloco": (
        fs.streaming_diloco,
        {"lr": 0.05, "server_lr": 0.6, "momentum": 0.6, "mix": 0.4},
    ),
    "q_fedavg": (fs.q_fedavg, {"lr": 0.2, "q": 1.4}),
    "term": (fs.term, {"lr": 0.2, "tilt": 1.3, "server_lr": 0.8}),
    "afl": (functools.partial(fs.afl, num_clients=NUM_CLIENTS), {"lr": 0.3, "ascent_lr": 0.2}),
    "d_psgd": on_graph(fs.topologies.d_psgd, fs.topologies.erdos_renyi(NUM_CLIENTS, 0.4)),
    "dfedavgm": (
        functools.partial(fs.topologies.dfedavgm, topology=fs.topologies.torus(2, 4)),
        {"lr": 0.2, "momentum": 0.6},
    ),
    "gradient_tracking": on_graph(
        fs.topologies.gradient_tracking, fs.topologies.one_peer_exponential(NUM_CLIENTS)
    ),
    "d2": on_graph(fs.topologies.d2, fs.topologies.ring(NUM_CLIENTS).lazy(0.2)),
    "sgp": on_graph(fs.topologies.sgp, DIRECTED),
    "hier_fedavg": (
        functools.partial(fs.topologies.hier_fedavg, edges=np.arange(NUM_CLIENTS) // 3, period=2),
        {"lr": 0.2},
    ),
}

# One of each kind: plain, adaptive server, client states, composite, stale, contacts. They take
# every check in the quick tests; the others take the expensive ones in the slow tests.
REPRESENTATIVES = {"fedavg", "fedadam", "scaffold_II", "feddualavg", "fedasync", "favano_realised"}
# They consist of parts that the quick tests of other algorithms run, or take long to compile: the
# battery is slow for them.
COMPOSED = {
    "fedavg_adam_mean", "scaffold_I", "mofedsam", "fedgamma", "feddualavg_osp", "favano_mean",
    "fedbuff_normalised", "fedper", "lg_fedavg", "fedbabu", "fedavg_ft", "apfl_adaptive",
    "perfedavg_HF", "streaming_diloco",
    "fedavg_adam_reset", "fedavg_adam_keep", "fednova", "fedexp", "fedexp_average", "fedvarp",
    "fedcm", "scaffold_m", "mimelite", "fedlin", "scaffnew", "fedadamw", "fedadamw_entry",
    "fedmuon", "diloco", "ef14", "ef21", "ef21_p", "diana", "marina",
    "pp_marina",
    "ditto", "pfedme", "apfl", "perfedavg_FO", "q_fedavg", "term", "afl",
    "fedavg_schedule", "fedavgm", "fedadagrad", "fedyogi", "fedasam", "fedlesam", "fedacg",
    "average_rounds", "averaged_feddualavg", "mb_ac_sgd", "fedmid_osp", "fedavg_subgradient",
    "fedrep", "async_sgd", "fedinit", "fedspeed", "fedgloss",
    "fedntd", "moon", "fedala", "feddf", "fedproto",
    "d_psgd", "dfedavgm", "d2", "sgp", "hier_fedavg",
}  # fmt: skip
# Their rules depend on the staleness, so the battery compares them on a timeline that has some.
STALE = {"fedbuff", "fedbuff_normalised", "fedasync", "async_sgd"}
# Clients without a server, whose neighbours are numbers of clients.
GOSSIP = {"d_psgd", "dfedavgm", "gradient_tracking", "d2", "sgp"}
# A contact changes them even without steps: the model that the client keeps is averaged.
CONTACTS = {"favano_expected", "favano_realised", "favano_mean", "quafl"} | GOSSIP


# Another structure of uploads, of the server's state, of clients' states or of the local loop than
# the representatives have: wrappers and ways to execute are tested with them, too.
STRUCTURES = REPRESENTATIVES | {
    "fedavg_adam_keep", "fednova", "fedac", "fedsmoo", "fedbuff_normalised", "async_sgd",
    "scaffnew", "marina", "ef21_p", "fedmuon", "fedadamw_entry", "perfedavg_HF", "pfedme", "ditto",
    "ifca", "fedrep", "apfl_adaptive", "afl", "moon",
}  # fmt: skip


def for_each(quick=ALGORITHMS.keys() - COMPOSED, without=(), among=ALGORITHMS):
    """Parametrizes a test by the algorithms' names; those not in ``quick`` are slow tests."""
    params = [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in ALGORITHMS
        if name in among and name not in without
    ]
    return pytest.mark.parametrize("name", params, scope="module")


NUM_SLOTS = 6
STRATEGIES = {
    "vmapped": strategies.vmapped,
    "sequential": strategies.sequential,
    # 3 slots per device: the last chunk is filled up.
    "sharded": lambda: strategies.sharded(
        jax.make_mesh((2,), ("clients",), devices=jax.devices()[:2]), strategies.chunked(2)
    ),
}


def task() -> fs.Task:
    """Minibatches of 2 that depend on the visit's key."""
    return logistic_task(rotated(2))


@functools.cache
def current_timeline() -> fs.Timeline:
    """4 rounds of 6 of the 8 clients, of whom a third drop out; no round is empty."""
    sampled = fs.timelines.uniform(
        jax.random.key(1), 4, NUM_CLIENTS, NUM_SLOTS, rotated(2).num_steps(SIZES)
    )
    timeline = fs.timelines.dropout(jax.random.key(5), sampled, 0.3)
    mask = np.asarray(timeline.mask)
    assert mask.any(axis=1).all()
    assert not mask[0].all()
    return timeline


@functools.cache
def late_timeline() -> fs.Timeline:
    """Visits of the partial timeline, up to 3 rounds late, in a ring of old broadcasts."""
    version = np.maximum(np.arange(4)[:, None] - np.array([3, 1, 2, 0, 3, 1]), 0)
    return with_ring(
        dataclasses.replace(current_timeline(), version=jnp.asarray(version, jnp.int32))
    )


def with_ring(timeline) -> fs.Timeline:
    """Declares a staleness of up to 3, whether or not there is any."""
    return dataclasses.replace(timeline, max_staleness=3)


@functools.cache
def paired_timeline() -> fs.Timeline:
    """The first two cohorts of the current timeline, each in two rounds."""
    return fs.timelines.repeat_rounds(current_timeline()[:2], 2)


@functools.cache
def full_timeline() -> fs.Timeline:
    """4 rounds of all clients, with equal numbers of steps in each round."""
    timeline = fs.timelines.full(4, NUM_CLIENTS, 5)
    steps = np.broadcast_to(np.array([3, 5, 2, 4], np.int32)[:, None], (4, NUM_CLIENTS))
    return dataclasses.replace(timeline, num_steps=jnp.asarray(steps))


@functools.cache
def full_or_partial_timeline() -> fs.Timeline:
    """All clients in every other of 4 rounds, three and five of them in the others."""
    mask = np.ones((4, NUM_CLIENTS), bool)
    mask[1, :5] = mask[3, ::3] = False
    return dataclasses.replace(full_timeline(), mask=jnp.asarray(mask))


@functools.cache
def equal_timeline() -> fs.Timeline:
    """4 rounds of 6 of the 8 clients, of whom a third drop out, with 3 steps per visit."""
    sampled = fs.timelines.uniform(jax.random.key(1), 4, NUM_CLIENTS, NUM_SLOTS, 3)
    return fs.timelines.dropout(jax.random.key(5), sampled, 0.3)


# Algorithms whose check refuses the current timeline.
OWN_TIMELINES = {
    "averaged_feddualavg": equal_timeline,
    "marina": full_timeline,
    "pp_marina": full_or_partial_timeline,
    "mime": paired_timeline,
    "fedlin": paired_timeline,
    "scaffnew": full_timeline,
    "streaming_diloco": full_timeline,
} | dict.fromkeys(GOSSIP, full_timeline)


def current(name) -> fs.Timeline:
    """A timeline without staleness that the algorithm admits."""
    return OWN_TIMELINES.get(name, current_timeline)()


def timeline_of(name) -> fs.Timeline:
    """The timeline on which strategies are compared."""
    return late_timeline() if name in STALE else current(name)


@functools.cache
def synchronous_only(name) -> bool:
    return algorithm(name, hyper(name)).requires.synchronous is not None


def declared(name, timeline) -> fs.Timeline:
    """The timeline in the form that the algorithm's base program has."""
    return timeline if synchronous_only(name) else with_ring(timeline)


def hyper(name, **changed):
    values = ALGORITHMS[name][1] | changed
    return {key: jnp.asarray(value, jnp.result_type(float)) for key, value in values.items()}


def algorithm(name, values):
    return ALGORITHMS[name][0](**values)


def train(name, values, task, timeline, key, strategy="vmapped"):
    setup = fs.Setup(task, timeline, logistic_params())
    return fs.run(algorithm(name, values), setup, key, execution=STRATEGIES[strategy]())[0]


@functools.cache
def program(name, strategy="vmapped"):
    """One compiled run per algorithm and strategy, which all tests of a process share."""
    return compiled(functools.partial(train, name, strategy=strategy))


def trained(name, timeline=None, key=2, data=None, **changed):
    """The final state of the base program: vmapped clients, a ring of broadcasts if possible."""
    timeline = declared(name, timeline_of(name) if timeline is None else timeline)
    values = hyper(name, **changed)
    return program(name)(values, data or task(), timeline, jax.random.key(key))


def model(name, **changed):
    """The final model at the rate 0.2 without staleness; shares the base program."""
    values = {"lr": 0.2, **changed}
    return jax.device_get(trained(name, current_timeline(), **values).server.params)


def moved(one, other) -> float:
    """The distance of two models."""
    return float(tree.norm(tree.sub(one, other)))
