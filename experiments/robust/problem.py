"""MNIST on 25 clients, of which the first ones attack, with IID data or two labels per client.

As in Karimireddy, He and Jaggi (2022): all clients in every round, one minibatch of 32 per visit,
worker momentum 0.9.  The model is softmax regression.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import fedjax_sim as fs

CLIENTS, CLASSES, BATCH_SIZE = 25, 10, 32
LR, BETA = 0.3, 0.9
RADIUS = LR  # of centred clipping: uploads are rates times gradients, whose norm is about 1
ALIE_Z = 1.5  # of the authors' program; the largest undetected z for 5 of 25 is 0.25
SPLITS = ("IID", "two labels")

# (number of attackers) -> rule
BASES: dict[str, Callable[[int], fs.robust.Rule]] = {
    "mean": lambda f: fs.robust.mean(),
    "median": fs.robust.median,
    "trimmed mean": fs.robust.trimmed_mean,
    "Krum": fs.robust.krum,
    "Bulyan": fs.robust.bulyan,
    # The authors' start, the mean, made the stored results.
    "geometric median": lambda f: fs.robust.rfa(iterations=8, f=f),
    "centred clipping": lambda f: fs.robust.centred_clipping(RADIUS, f=f),
}
MIXED = ("median", "trimmed mean", "Krum", "geometric median", "centred clipping")
RULES: dict[str, Callable[[int], fs.robust.Rule]] = {
    **BASES,
    **{f"NNM, {name}": lambda f, name=name: fs.robust.nnm(BASES[name](f), f) for name in MIXED},
    **{
        f"bucketing, {name}": lambda f, name=name: fs.robust.bucketing(BASES[name](f))
        for name in MIXED
    },
}

Attack = Callable[[fs.FedAlgorithm, Any], fs.FedAlgorithm]
ATTACKS: dict[str, Attack] = {
    "none": lambda algorithm, attackers: algorithm,
    "sign flip": fs.robust.attacks.sign_flip,
    "label flip": lambda algorithm, attackers: algorithm,  # of the data
    "ALIE": lambda algorithm, attackers: fs.robust.attacks.alie(algorithm, attackers, z=ALIE_Z),
    "inner product": fs.robust.attacks.inner_product,
    "mimic": fs.robust.attacks.mimic,
}


def attackers_of(count: int) -> fs.robust.attacks.Attackers:
    """The first clients attack."""
    return fs.robust.attacks.some_clients(range(count), CLIENTS)


def factory(attack: str, attackers: int, rule: str) -> fs.FedAlgorithm:
    """FedAvg of one local step with worker momentum, a rule, and an attack."""
    momentum = fs.robust.worker_momentum(fs.fedavg(LR), BETA)
    algorithm = fs.robust.aggregate(momentum, RULES[rule](attackers))
    return ATTACKS[attack](algorithm, attackers_of(attackers))


def setup_maker(
    train: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray], rounds: int, evaluations: int
) -> Callable[..., fs.Setup]:
    """A function of attack, attackers, split and seed that returns the setup of one seed."""
    model = fs.models.softmax_regression(train["x"][0].size, CLASSES)
    metrics = fs.evaluation.evaluator(fs.objectives.classification_metrics(model), dict(test))

    def make_setup(attack: str, attackers: int, split: str, seed: int) -> fs.Setup:
        if split == "IID":
            rows = fs.data.partition.iid(len(train["y"]), CLIENTS, seed)
        else:
            rows = fs.data.partition.shards(train["y"], CLIENTS, 2, seed)
        data = fs.from_assignment(dict(train), rows)
        if attack == "label flip":
            data = fs.robust.attacks.flip_labels(data, attackers_of(attackers), CLASSES)
        task = fs.empirical_task(
            fs.objectives.cross_entropy(model), data, fs.with_replacement(BATCH_SIZE, num_steps=1)
        )
        timeline = fs.timelines.full(rounds, CLIENTS, task.num_steps)
        params = jax.tree.map(np.asarray, model.init(jax.random.key(seed)))
        return fs.Setup(task, timeline, params, metrics, max(rounds // evaluations, 1))

    return make_setup
