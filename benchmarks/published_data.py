"""Clients of the published setups, as their sources divide the examples."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import fedjax_sim as fs
from fedjax_sim.datasets import PAD

Examples = dict[str, np.ndarray]


class Clients(NamedTuple):
    """Training examples by client, and test examples."""

    train: fs.FederatedData
    test: Examples


def cifar10_shards(num_clients: int = 100, num_shards: int = 200) -> Clients:
    """B1: shards of examples sorted by label, equally many random ones per client.

    BlazeFL's ``shards_partition``.
    """
    data = fs.datasets.load("cifar10")
    shards = np.array_split(np.argsort(data.train["y"], kind="stable"), num_shards)
    order = np.random.default_rng(42).permutation(num_shards)
    rows = [np.concatenate([shards[i] for i in own]) for own in np.split(order, num_clients)]
    return Clients(fs.from_assignment(data.train, rows), data.test)


def cifar10_iid(num_clients: int = 1000) -> Clients:
    """P1: 50 random examples per user."""
    data = fs.datasets.load("cifar10")
    rows = fs.data.partition.iid(len(data.train["y"]), num_clients, seed=0)
    return Clients(fs.from_assignment(data.train, rows), data.test)


def mnist_power_law(num_clients: int = 1000) -> Clients:
    """F1: two digits per client, sizes by a power law, nine tenths of each for training.

    The generator of Li et al. (2020, https://arxiv.org/abs/1812.06127), whose files FedML and FLUTE
    use: client i has 5 images of the digits i and i + 1 (mod 10), and of each a part of the rest in
    proportion to a log-normal weight of deviation 2.  Pixels are standardised one by one.
    """
    x, y = _pooled(fs.datasets.load("mnist"))
    x = x.reshape(len(x), -1).astype(np.float32)
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 0.001)
    rng = np.random.default_rng(0)
    weights = rng.lognormal(0, 2, (10, num_clients // 10, 2))
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(y == digit))
        owners = [(i, (digit - i) % 10) for i in range(num_clients) if (digit - i) % 10 < 2]
        share = np.array([weights[digit, i // 10, second] for i, second in owners])
        rest = len(rows) - 5 * len(owners)
        sizes = 5 + (rest * share / weights[digit].sum()).astype(int)
        pieces = np.split(rows, np.cumsum(sizes))
        for (i, _), piece in zip(owners, pieces, strict=False):
            parts[i].append(piece)
    shuffled = [rng.permutation(np.concatenate(own)) for own in parts]
    train = [own[: int(0.9 * len(own))] for own in shuffled]
    rest = np.concatenate([own[int(0.9 * len(own)) :] for own in shuffled])
    examples = {"x": x, "y": y}
    return Clients(
        fs.from_assignment(examples, train), {key: leaf[rest] for key, leaf in examples.items()}
    )


def mnist_dirichlet(num_clients: int = 20, batch: int = 10) -> Clients:
    """L1: each digit divided by Dirichlet(0.1), three quarters of each client's for training.

    PFLlib's ``generate_MNIST.py noniid - dir``.  Clients with a mean share get no further digits,
    which bounds their sizes.  Training drops a client's last, short batch.
    """
    x, y = _pooled(fs.datasets.load("mnist"))
    rng = np.random.default_rng(1)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    while not all(sum(map(len, own)) for own in parts):
        parts = [[] for _ in range(num_clients)]
        for digit in range(10):
            rows = rng.permutation(np.flatnonzero(y == digit))
            share = rng.dirichlet(np.full(num_clients, 0.1))
            share *= [sum(map(len, own)) < len(y) / num_clients for own in parts]
            cuts = (np.cumsum(share / share.sum()) * len(rows)).astype(int)[:-1]
            for own, piece in zip(parts, np.split(rows, cuts), strict=True):
                own.append(piece)
    shuffled = [rng.permutation(np.concatenate(own)) for own in parts]
    sizes = [int(0.75 * len(own)) for own in shuffled]
    train = [own[: n - n % batch] for own, n in zip(shuffled, sizes, strict=True)]
    test = np.concatenate([own[n:] for own, n in zip(shuffled, sizes, strict=True)])
    examples = {"x": x, "y": y}
    return Clients(
        fs.from_assignment(examples, train), {key: leaf[test] for key, leaf in examples.items()}
    )


def femnist_cycled(num_clients: int = 3400) -> Clients:
    """F2: the writers of the files in turn, until there are enough clients."""
    data = fs.datasets.load("femnist", deduplicate=True)
    assert data.train_groups is not None
    writers, _ = fs.data.partition.by_group(data.train_groups)
    rows = [writers[i % len(writers)] for i in range(num_clients)]
    return Clients(fs.from_assignment(data.train, rows, disjoint=False), data.test)


def cifar100_by_superclass(num_clients: int = 500) -> Clients:
    """F3: equally many examples per client, superclasses by Dirichlet(0.1)."""
    data = fs.datasets.load("cifar100")
    rows = fs.data.partition.dirichlet(
        data.train["coarse"], num_clients, 0.1, seed=0, disjoint=True
    )
    parts = ({key: part[key] for key in ("x", "y")} for part in (data.train, data.test))
    train, test = parts
    return Clients(fs.from_assignment(train, rows), test)


def shakespeare_sequences(num_clients: int = 715, num_sequences: int = 16_068) -> Clients:
    """F4: sequences of 80 characters and their next characters, log-normal numbers per client.

    Overlapping pieces of the text of the roles in the files; a client's pieces are consecutive.
    Pieces repeat where the files have fewer.
    """
    data = fs.datasets.load("shakespeare")

    def sequences(part: Examples) -> Examples:
        tokens = np.concatenate([part["x"].astype(np.int32), part["y"][:, None]], axis=1)
        return fs.data.tokens.next_tokens(tokens, pad=PAD)

    train = sequences(data.train)
    rows = np.linspace(0, len(train["y"]) - 1, num_sequences).astype(int)
    share = np.random.default_rng(0).lognormal(0, 1, num_clients)
    cuts = (np.cumsum(share / share.sum()) * (num_sequences - num_clients)).astype(int)[:-1]
    cuts += np.arange(1, num_clients)  # at least one each
    test = {key: leaf[::80] for key, leaf in sequences(data.test).items()}
    return Clients(fs.from_assignment(train, np.split(rows, cuts), disjoint=False), test)


def channel_statistics(images: np.ndarray) -> tuple[Sequence[float], Sequence[float]]:
    """Returns mean and standard deviation of all pixels by channel, on the scale of [0, 1]."""
    pixels = images.reshape(-1, images.shape[-1])
    return (pixels.mean(axis=0) / 255).tolist(), (pixels.std(axis=0) / 255).tolist()


def _pooled(data: fs.datasets.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Training and test examples together."""
    x, y = (np.concatenate([data.train[key], data.test[key]]) for key in ("x", "y"))
    return x, y
