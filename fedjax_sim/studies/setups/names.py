"""Sampling rules and presets by name.  One more is one row here.

Data sets by name are in :mod:`fedjax_sim.datasets`, models in :mod:`fedjax_sim.models`, partitions
in :mod:`fedjax_sim.studies.setups.partitions`, algorithms in
:mod:`fedjax_sim.studies.setups.registry`, functions of the user in
:mod:`fedjax_sim.studies.setups.own_objects`.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array

from fedjax_sim import objectives
from fedjax_sim.models import Model, Shape
from fedjax_sim.objectives import Objective
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.timelines import geometric_steps, poisson, repeat_rounds, sampling, slots_for
from fedjax_sim.types import Timeline

# (options, key, clients' numbers of examples [M] and of local steps [M])
Sampling = Callable[[RunConfig, Array, Any, Any], Timeline]

# Shape of the examples -> model that "auto" chooses; softmax_regression for all others.
AUTO_MODELS: dict[Shape, str] = {
    (8, 8, 1): "mlp_small",
    (28, 28, 1): "femnist_cnn",
    (32, 32, 3): "lenet5",
    (64, 64, 3): "vit_tiny_64",
}
# The same for examples that are token ids: integers other than uint8, which are pixels.
AUTO_TOKEN_MODELS: dict[Shape, str] = {(80,): "lstm"}
# The same with a label at every position.
AUTO_SEQUENCE_MODELS: dict[Shape, str] = {(80,): "lstm_sequence"}


# Losses of targets that are numbers, for --loss; the first is the default.
REGRESSION_LOSSES: dict[str, Callable[[Model], Objective]] = {
    "squared": objectives.squared_error,
    "huber": objectives.huber,
}


def _geometric(config: RunConfig, key: Array, sizes: Any, steps: Any) -> Timeline:
    mean = int(np.max(steps))
    rounds = sampling.full(config.rounds, len(sizes), mean)
    # The bound of the local loop; 0.7 % of the rounds are cut.
    return geometric_steps(key, rounds, 1 / mean, max_steps=5 * mean)


def _poisson(config: RunConfig, key: Array, sizes: Any, steps: Any) -> Timeline:
    rounds, clients = config.rounds, len(sizes)
    probability = config.cohort_size / clients
    slots = slots_for(clients, probability, rounds, config.privacy_delta)
    return poisson(key, rounds, clients, probability, steps, slots=slots)


SAMPLINGS: dict[str, tuple[str, Sampling]] = {
    "uniform": (
        "a uniform subset",
        lambda c, key, sizes, steps: sampling.uniform(
            key, c.rounds, len(sizes), c.cohort_size, steps
        ),
    ),
    "weighted": (
        "a subset weighted by examples",
        lambda c, key, sizes, steps: sampling.weighted(
            key, c.rounds, np.asarray(sizes), c.cohort_size, steps
        ),
    ),
    "bernoulli": (
        "independent coin flips, --cohort-size clients on average",
        lambda c, key, sizes, steps: sampling.bernoulli(
            key, c.rounds, len(sizes), c.cohort_size / len(sizes), steps
        ),
    ),
    "poisson": (
        "as bernoulli, with the slots that a tenth of --privacy-delta requires instead of one per "
        "client",
        _poisson,
    ),
    "cyclic": (
        "clients in turn",
        lambda c, key, sizes, steps: sampling.cyclic(c.rounds, len(sizes), c.cohort_size, steps),
    ),
    "full": (
        "all clients",
        lambda c, key, sizes, steps: sampling.full(c.rounds, len(sizes), steps),
    ),
    "pairs": (
        "a uniform subset for every two rounds, as mime and fedlin need",
        lambda c, key, sizes, steps: repeat_rounds(
            sampling.uniform(key, -(-c.rounds // 2), len(sizes), c.cohort_size, steps), 2
        )[: c.rounds],
    ),
    "geometric": (
        "all clients, with a random number of steps per round, --local-steps on average, for "
        "scaffnew",
        _geometric,
    ),
    "full-or-uniform": (
        "all clients with probability --full-probability and in the first round, else a uniform "
        "subset, as the feedback pp_marina needs",
        lambda c, key, sizes, steps: sampling.full_or_uniform(
            key,
            c.rounds,
            len(sizes),
            c.cohort_size,
            c.full_probability or c.cohort_size / len(sizes),
            steps,
        ),
    ),
    "stratified": (
        "a uniform subset of every stratum (--num-strata)",
        lambda c, key, sizes, steps: sampling.stratified(
            key, c.rounds, len(sizes), c.cohort_size, steps, num_strata=c.num_strata or 1
        ),
    ),
}

# Name -> a comparison.
PRESETS: dict[str, RunConfig] = {
    # The common rate 0.2 is within 0.007 of each algorithm's best of 0.05, 0.1, 0.2 and 0.4, for
    # FedAvg, whose best is 0.4, within 0.024:
    #   fedjax-sim sweep quickstart --algorithms fedavg fedprox fedavgm fedadam scaffold
    #     --grid lr=0.05,0.1,0.2,0.4 --validation 0.1 --metric valid/accuracy
    # With a partition of a uniform prior, 0.2 or the rate in cli.registry.DEFAULTS was within 0.007
    # for the algorithms below, too, with 3 seeds
    # (G: --grid lr=0.05,0.1,0.2,0.4; V: --validation 0.1 --eval-every 100 --metric valid/accuracy;
    # P: --validation 0.1 --eval-every 100 --personal 100 --metric
    # personal/valid/accuracy/mean).  A best value at the edge of a grid was not followed further;
    # fedlin, whose accuracy still rises at 0.4, has 0.5.
    #   fedjax-sim sweep quickstart G V --algorithms fednova fedexp mimelite fedcm scaffold_m
    #     fedvarp
    #   fedjax-sim sweep quickstart G V --algorithms mime fedlin --sampling pairs
    #   fedjax-sim sweep quickstart G V --algorithms scaffnew --sampling geometric --local-steps 10
    #   fedjax-sim sweep quickstart G P --algorithms apfl ditto fedavg_ft fedbabu fedper fedrep ifca
    #     lg_fedavg perfedavg
    #   fedjax-sim sweep quickstart P --algorithms pfedme --grid lr=0.005,0.01,0.02,0.04
    #   fedjax-sim sweep quickstart V --algorithms fedadamw fedmuon diloco
    #     --grid lr=0.001,0.003,0.01,0.03
    #   fedjax-sim sweep quickstart V --algorithms fedavg --grid compress=top_k:0.1
    #     feedback=ef14,ef21 lr=0.05,0.1,0.2,0.4
    #   fedjax-sim sweep quickstart V --algorithms fedavg --grid compress=random_k:0.1
    #     feedback=diana lr=0.05,0.1,0.2,0.4
    # streaming_diloco has the rate of diloco; fedbn needs a model with normalisation.
    "quickstart": RunConfig(),
    # The rates are the best of 0.02, 0.05, 0.1, ..., 1.6 and 3.2 by the accuracy of clients'
    # validation parts, 3 seeds; none is at the edge:
    #   fedjax-sim sweep asynchronous
    #     --algorithms fedavg favano quafl fedbuff fedasync async_sgd
    #     --grid lr=0.02,0.05,0.1,0.2,0.4,0.8,1.6,3.2 --validation 0.1 --metric valid/accuracy
    "asynchronous": RunConfig(
        output=pathlib.Path("results/asynchronous"),
        rates=(
            "fedavg.lr=0.4",
            "favano.lr=0.4",
            "quafl.lr=0.4",
            "fedbuff.lr=0.8",
            "fedasync.lr=0.8",
            "async_sgd.lr=0.05",
        ),
        algorithms=("fedavg", "favano", "quafl", "fedbuff", "fedasync", "async_sgd"),
        clock="geometric",
        num_clients=30,
        local_steps=5,
        horizon=1000.0,
        seeds=3,
    ),
    # The rates are the best of 0.02, 0.05, 0.1 and 0.2 by the accuracy of clients' validation parts
    # after 30 rounds (SCAFFOLD diverges at 0.1 and 0.2):
    #   fedjax-sim sweep femnist --algorithms fedavg fedprox fedavgm fedadam scaffold
    #     --grid lr=0.02,0.05,0.1,0.2 --rounds 30 --eval-every 10 --seeds 1 --validation 0.1
    #     --metric valid/accuracy --eval-examples 1000
    "femnist": RunConfig(
        output=pathlib.Path("results/femnist"),
        rates=(
            "fedavg.lr=0.1",
            "fedprox.lr=0.1",
            "fedavgm.lr=0.1",
            "fedadam.lr=0.1",
            "scaffold.lr=0.05",
        ),
        dataset="femnist",
        partition="natural",
        rounds=200,
        local_epochs=1,
        batch_size=20,
        seeds=1,
        eval_every=10,
    ),
}
