"""Setups of other simulators whose run times were published, as their sources describe them."""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import fedjax_sim as fs
from benchmarks import published_data as data
from benchmarks.published_data import Clients
from benchmarks.published_models import dropout_cnn, sigmoid_regression
from fedjax_sim.types import Weighting

FLUTE = "https://github.com/microsoft/msrflute"
INITIAL = "the initial model is ours: LeCun-normal, He-normal or Glorot-uniform kernels"


class PublishedSetup(NamedTuple):
    """FedAvg with plain SGD on one data set, and others' run times."""

    title: str
    sources: tuple[str, ...]
    hardware: str  # theirs
    seconds: Mapping[str, float]  # others' run times, by program
    make_clients: Callable[..., Clients]  # (number of clients; default that of the source)
    make_model: Callable[[Clients], fs.models.Model]
    cohort: int
    batch: int
    lr: float
    rounds: int  # of the source
    measured_rounds: int  # by default; fewer are extrapolated
    eval_every: int
    assumptions: tuple[str, ...]
    epochs: int = 1
    weighting: Weighting = fs.weight_by_examples
    per_round: bool = False  # their seconds are those of one round
    evaluates_training: bool = False  # also the loss of all training examples
    slices: int = 1  # parts of a run after which it can be resumed


SETUPS = {
    "B1": PublishedSetup(
        title="CIFAR-10, LeNet, 100 clients in each of 5 rounds",
        sources=(
            "https://github.com/blazefl/benchmarks (blazefl-case, flower-case)",
            "https://github.com/blazefl/blazefl (figure of the README)",
        ),
        hardware="32 cores and 4 Quadro RTX 6000",
        seconds={"BlazeFL": 25.0, "Flower": 65.0},
        make_clients=data.cifar10_shards,
        make_model=lambda _: fs.data.augmentation.normalized(fs.models.lenet5(), 0.5, 0.5),
        cohort=100,
        batch=50,
        epochs=5,
        lr=0.1,
        rounds=5,
        measured_rounds=5,
        eval_every=1,
        assumptions=(
            "seconds read from a bar chart",
            "shards of BlazeFL's configuration; its Flower case has IID clients and momentum 0.9",
            INITIAL,
        ),
    ),
    "F1": PublishedSetup(
        title="MNIST, logistic regression, 10 of 1,000 clients, 100 rounds",
        sources=(
            f"{FLUTE} (README; experiments/cv_lr_mnist)",
            "https://arxiv.org/abs/1812.06127 (generator of the clients)",
        ),
        hardware="GPUs, number not given; CPU where named",
        seconds={"FLUTE": 95.0, "FedML": 189.0, "FLUTE-cpu": 200.0, "Flower-cpu": 1814.0},
        make_clients=data.mnist_power_law,
        make_model=lambda _: sigmoid_regression(784, 10),
        cohort=10,
        batch=10,
        lr=0.03,
        rounds=100,
        measured_rounds=100,
        eval_every=20,
        assumptions=(
            "clients drawn by the generator of their files with another seed",
            "the softmax of sigmoids is that of their program",
            "the initial model is zero",
        ),
    ),
    "L1": PublishedSetup(
        title="MNIST, CNN 5x5 32-64-512, 20 clients in every round",
        sources=(
            "https://github.com/TsingZ0/PFLlib (README, quickstart: -data MNIST -m CNN -gr 2000)",
            "https://github.com/TsingZ0/PFLlib/issues/253 (seconds of round 0)",
        ),
        hardware="RTX 5090",
        seconds={"PFLlib": 17.2},
        make_clients=data.mnist_dirichlet,
        make_model=lambda _: fs.data.augmentation.normalized(
            fs.models.cnn((28, 28, 1), 10, channels=(32, 64), kernel_size=5, hidden=(512,)),
            0.5,
            0.5,
        ),
        cohort=20,
        batch=10,
        lr=0.005,
        rounds=2000,
        measured_rounds=20,
        eval_every=1,
        assumptions=(
            "a round has an evaluation of all training and test examples, as theirs",
            "clients drawn by their rule with another generator",
            "always the same examples are dropped from a client's last, short batch",
            "the time of one user's first round; it contains the start of CUDA",
            INITIAL,
        ),
        per_round=True,
        evaluates_training=True,
        slices=4,
    ),
    "P1": PublishedSetup(
        title="CIFAR-10 IID, CNN 3x3 32-64-128 with dropout, 50 of 1,000 users, 1,500 rounds",
        sources=(
            "https://github.com/apple/pfl-research (benchmarks/image_classification/configs/"
            "baseline.yaml, benchmarks/model/pytorch/cnn.py)",
        ),
        hardware="A100",
        seconds={"pfl": 240.0},
        make_clients=data.cifar10_iid,
        make_model=lambda clients: fs.data.augmentation.normalized(
            dropout_cnn((32, 32, 3), 10), *data.channel_statistics(clients.train.examples["x"])
        ),
        cohort=50,
        batch=10,
        lr=0.1,
        rounds=1500,
        measured_rounds=30,
        eval_every=10,
        assumptions=("about 4 minutes", "images in their true layout"),
        weighting=fs.uniform_weights,
    ),
    "F2": PublishedSetup(
        title="FEMNIST, CNN 3x3 32-64-128 with dropout, 10 of 3,400 writers, 1,500 rounds",
        sources=(f"{FLUTE} (README; experiments/cv_cnn_femnist)",),
        hardware="GPUs, number not given",
        seconds={"FLUTE": 502.0, "FedML": 20_992.0},
        make_clients=data.femnist_cycled,
        make_model=lambda _: dropout_cnn((28, 28, 1), 62),
        cohort=10,
        batch=20,
        lr=0.1,
        rounds=1500,
        measured_rounds=1500,
        eval_every=50,
        assumptions=(
            "3,400 clients cycled from 105 writers, 140 images on average; the full data set has "
            "about 200, and a larger test part",
            "1,500 rounds of the README; its configuration file has 800",
        ),
        slices=10,
    ),
    "F3": PublishedSetup(
        title="CIFAR-100, ResNet-18 with group normalisation, 10 of 500 clients, 4,000 rounds",
        sources=(f"{FLUTE} (README; experiments/cv_resnet_fedcifar100)",),
        hardware="GPUs, number not given",
        seconds={"FLUTE": 6_121.0, "FedML": 57_336.0},
        make_clients=data.cifar100_by_superclass,
        make_model=lambda _: fs.models.resnet(
            100, channels=(64, 128, 256, 512), blocks=(2, 2, 2, 2), large_stem=True
        ),
        cohort=10,
        batch=20,
        lr=0.1,
        rounds=4000,
        measured_rounds=10,
        eval_every=50,
        assumptions=(
            "two groups and 100 logits; the program, unlike the README, has batch normalisation "
            "and 1,000 logits",
            "32 x 32 pixels in [0, 1] without augmentation; stem of stride 4 for large images",
            "superclasses by Dirichlet(0.1), instead of the Pachinko allocation",
            INITIAL,
        ),
    ),
    "F4": PublishedSetup(
        title="Shakespeare, 2 x LSTM-256, 10 of 715 clients, 1,200 rounds",
        sources=(
            f"{FLUTE} (README; experiments/nlp_rnn_fedshakespeare)",
            "https://arxiv.org/abs/2003.00295 (number of clients and examples)",
        ),
        hardware="GPUs, number not given",
        seconds={"FLUTE": 1_310.0, "FedML": 24_381.0},
        make_clients=data.shakespeare_sequences,
        make_model=lambda _: fs.models.lstm(),
        cohort=10,
        batch=4,
        lr=0.8,
        rounds=1200,
        measured_rounds=10,
        eval_every=50,
        assumptions=(
            "16,068 examples taken as sequences of 80 characters; log-normal numbers per client",
            "overlapping pieces of the text of five roles",
        ),
    ),
}


def small(setup: PublishedSetup, num_clients: int, rounds: int) -> PublishedSetup:
    """Returns a setup with few clients and rounds, to try the code."""
    return setup._replace(
        make_clients=functools.partial(setup.make_clients, num_clients),
        cohort=min(setup.cohort, num_clients),
        measured_rounds=rounds,
        eval_every=1,
        slices=min(setup.slices, rounds),
    )
