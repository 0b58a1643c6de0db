"""Every algorithm with sample hyper-parameters, and their compiled runs on the logistic problem.

An entry is ``name: (factory, {hyper-parameter: value})``; the factory gets each value as a traced
array.  The values are chosen to be none of the special ones (0, 1) at which a term vanishes.
"""

import functools

import jax
import jax.numpy as jnp
from small_problems import (
    compiled,
    logistic_params,
    logistic_task,
    partial_timeline,
    stale_timeline,
)

import fedjax_sim as fs
from fedjax_sim.algorithms import (
    async_sgd,
    average_rounds,
    averaged_fedavg,
    averaged_feddualavg,
    favano,
    fedac,
    fedacg,
    fedadagrad,
    fedadam,
    fedasam,
    fedasync,
    fedavg,
    fedavg_subgradient,
    fedavgm,
    fedbuff,
    feddualavg,
    feddualavg_osp,
    feddyn,
    fedgamma,
    fedlesam,
    fedmid,
    fedmid_osp,
    fedmoswa,
    fedprox,
    fedsam,
    fedsgd,
    fedsmoo,
    fedswa,
    fedyogi,
    mb_ac_sgd,
    mb_sgd,
    mofedsam,
    quafl,
    scaffold,
)
from fedjax_sim.algorithms.staleness import expected_steps, hinge, polynomial, realised_steps
from fedjax_sim.execution import strategies
from fedjax_sim.prox import ElasticNet, composite


def fedavg_with_schedule(lr, decay) -> fs.FedAlgorithm:
    """FedAvg whose client rate decays hyperbolically over the rounds."""
    return fedavg(lambda round: lr / (1 + decay * round.astype(decay.dtype)))


def elastic(factory):
    """A composite method whose model is shrunk, all of it."""
    return lambda lr, l1, l2, server_lr: factory(lr, composite(ElasticNet(l1, l2)), server_lr)


def composite_entry(factory):
    return elastic(factory), {"lr": 0.2, "l1": 0.05, "l2": 0.1, "server_lr": 0.8}


ALGORITHMS = {
    "fedsgd": (fedsgd, {"lr": 0.3}),
    "fedavg": (fedavg, {"lr": 0.2}),
    "fedavg_schedule": (fedavg_with_schedule, {"lr": 0.2, "decay": 0.5}),
    "fedprox": (fedprox, {"lr": 0.2, "mu": 0.4}),
    "fedavgm": (fedavgm, {"lr": 0.2, "server_lr": 0.7, "momentum": 0.6}),
    "fedadagrad": (
        fedadagrad,
        {"lr": 0.2, "server_lr": 0.1, "initial_accumulator": 0.05, "eps": 1e-2},
    ),
    "fedadam": (fedadam, {"lr": 0.2, "server_lr": 0.1, "b1": 0.8, "b2": 0.9, "eps": 1e-2}),
    "fedyogi": (fedyogi, {"lr": 0.2, "server_lr": 0.1, "b1": 0.8, "b2": 0.9, "eps": 1e-2}),
    "scaffold_I": (functools.partial(scaffold, option="I"), {"lr": 0.2, "server_lr": 0.8}),
    "scaffold_II": (functools.partial(scaffold, option="II"), {"lr": 0.2, "server_lr": 0.8}),
    "fedswa": (fedswa, {"lr": 0.2, "rho": 0.3, "alpha": 1.4}),
    "fedmoswa": (fedmoswa, {"lr": 0.2, "rho": 0.3, "alpha": 1.4, "gamma": 0.3}),
    "feddyn": (feddyn, {"lr": 0.2, "weight": 0.3}),
    "fedacg": (fedacg, {"lr": 0.2, "momentum": 0.6, "weight": 0.3}),
    "fedsam": (fedsam, {"lr": 0.2, "radius": 0.3}),
    "fedasam": (fedasam, {"lr": 0.2, "radius": 0.3}),  # eta has no effect on vectors
    "fedgamma": (fedgamma, {"lr": 0.2, "radius": 0.3, "server_lr": 0.8}),
    "mofedsam": (mofedsam, {"lr": 0.2, "radius": 0.3, "mix": 0.4}),
    "fedlesam": (fedlesam, {"lr": 0.2, "radius": 0.3}),
    "fedac": (functools.partial(fedac, num_steps=4), {"lr": 0.1, "mu": 0.3}),
    "average_rounds": (lambda lr: average_rounds(fedavg(lr)), {"lr": 0.2}),
    "averaged_fedavg": (averaged_fedavg, {"lr": 0.2, "factor": 0.9}),
    "mb_sgd": (mb_sgd, {"lr": 0.3}),
    "mb_ac_sgd": (mb_ac_sgd, {"lr": 0.2, "mu": 0.3}),
    "fedmid": composite_entry(fedmid),
    "fedmid_osp": composite_entry(fedmid_osp),
    "feddualavg": composite_entry(feddualavg),
    "feddualavg_osp": composite_entry(feddualavg_osp),
    "averaged_feddualavg": (
        lambda lr, l1, l2: averaged_feddualavg(lr, composite(ElasticNet(l1, l2))),
        {"lr": 0.2, "l1": 0.05, "l2": 0.1},
    ),
    "fedavg_subgradient": composite_entry(fedavg_subgradient),
    "favano_expected": (
        lambda lr, mean: favano(lr, expected_steps(jnp.full(8, mean))),
        {"lr": 0.2, "mean": 0.7},
    ),
    "favano_realised": (
        lambda lr, p: favano(lr, realised_steps(jnp.full(8, p))),
        {"lr": 0.2, "p": 0.9},
    ),
    "quafl": (quafl, {"lr": 0.2}),
    "quafl_as_coded": (functools.partial(quafl, rate_factor=True), {"lr": 0.2}),
    "fedbuff": (
        lambda lr, server_lr, power: fedbuff(lr, server_lr, polynomial(power)),
        {"lr": 0.2, "server_lr": 0.7, "power": 0.6},
    ),
    "fedbuff_normalised": (
        lambda lr, server_lr, slope: fedbuff(lr, server_lr, hinge(0, slope), normalised=True),
        {"lr": 0.2, "server_lr": 0.7, "slope": 0.4},
    ),
    "fedasync": (
        lambda lr, mix, power, mu: fedasync(lr, mix, polynomial(power), mu),
        {"lr": 0.2, "mix": 0.6, "power": 0.6, "mu": 0.3},
    ),
    "async_sgd": (
        lambda lr, bound: async_sgd(lr, patience=1, bound=bound),
        {"lr": 0.2, "bound": 0.15},
    ),
    "fedsmoo": (fedsmoo, {"lr": 0.2, "weight": 0.3, "radius": 0.2}),
}

# Those whose rules see the staleness: the battery gives them a timeline that has some.
STALE = {"fedbuff", "fedbuff_normalised", "fedasync", "async_sgd"}
# A contact changes them even if no step was done: the model that the client holds is averaged.
CONTACTS = {"favano_expected", "favano_realised", "quafl", "quafl_as_coded"}


def timeline_of(name) -> fs.Timeline:
    return stale_timeline() if name in STALE else partial_timeline()


STRATEGIES = {
    "vmapped": strategies.vmapped,
    "chunked": lambda: strategies.chunked(3),  # 4 slots: the last chunk is filled up
    "sequential": strategies.sequential,
    "sharded": lambda: strategies.sharded(jax.make_mesh((4,), ("clients",))),
}


def hyper(name):
    values = ALGORITHMS[name][1]
    return {key: jnp.asarray(value, jnp.result_type(float)) for key, value in values.items()}


def algorithm(name, values):
    return ALGORITHMS[name][0](**values)


def train(name, values, task, timeline, key, strategy="vmapped"):
    run_cohort = STRATEGIES[strategy]()
    params = logistic_params()
    return fs.run(algorithm(name, values), task, timeline, params, key, cohort=run_cohort)[0]


@functools.cache
def program(name, strategy="vmapped"):
    """One compiled run per algorithm and strategy, shared by the tests below."""
    return compiled(functools.partial(train, name, strategy=strategy))


def exact_task():
    """The same problem without draws, by full batches: half the time to compile.

    The timeline still says how many steps each visit has.
    """
    return logistic_task(fs.full_batch(partial_timeline().max_steps))


def trained(name, timeline=None, task=None, strategy="vmapped"):
    timeline = timeline_of(name) if timeline is None else timeline
    task = logistic_task() if task is None else task
    return program(name, strategy)(hyper(name), task, timeline, jax.random.key(2))
