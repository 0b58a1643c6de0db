"""Flower's FedProx baseline on MNIST with its own code: what was drawn, and accuracy per round.

In an environment with torch==2.13.0, flwr==1.42.0, flwr-datasets==0.6.1, easydict:
git clone https://github.com/adap/flower && git -C flower checkout fdef7afb1dca
python experiments/porting/flower_theirs.py flower FOLDER_OF_MNIST flower.npz
"""

# pyright: reportMissingImports=false

import argparse
import gzip
import pathlib
import random
import sys
from unittest import mock

import datasets
import numpy as np
import torch
from easydict import EasyDict
from flwr.server.strategy.aggregate import aggregate
from flwr_datasets.partitioner import DistributionPartitioner
from torch.utils.data import DataLoader

# Of its pyproject.toml, but for the rounds.
ROUNDS, CLIENTS, COHORT, EPOCHS, LR, MU, STRAGGLERS, BATCH = 20, 1000, 10, 10, 0.03, 1.0, 0.9, 10
SEED, SPREAD, LABELS, PER_CLIENT, PER_LABEL = 42, 2.0, 10, 2, 5


def read(folder: pathlib.Path, name: str, offset: int) -> np.ndarray:
    """Returns the bytes of an IDX file behind its header."""
    return np.frombuffer(gzip.open(folder / name).read(), np.uint8, offset=offset)


def partition(labels: np.ndarray) -> list[np.ndarray]:
    """Returns the clients' training rows: two labels, sizes by a log-normal law, 90 %."""
    rng = np.random.default_rng(SEED)
    sizes = rng.lognormal(1.0, SPREAD, CLIENTS * PER_CLIENT).reshape(LABELS, -1)
    rule = DistributionPartitioner(
        distribution_array=sizes,
        num_partitions=CLIENTS,
        num_unique_labels_per_partition=PER_CLIENT,
        partition_by="label",
        preassigned_num_samples_per_label=PER_LABEL,
    )
    rule.dataset = datasets.Dataset.from_dict({"label": labels, "row": np.arange(len(labels))})
    parts = [rule.load_partition(i).train_test_split(0.1, seed=SEED) for i in range(CLIENTS)]
    return [np.array(part["train"]["row"]) for part in parts]


def main() -> None:
    """Runs the baseline and writes what another program needs to do the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("flower", "mnist", "out"):
        parser.add_argument(name, type=pathlib.Path)
    options = parser.parse_args()
    # Its loader of data needs torchvision and a download; the arrays below are the same.
    for name in ("", ".transforms"):
        sys.modules["torchvision" + name] = mock.MagicMock()
    sys.path.insert(0, str(options.flower / "baselines" / "fedprox"))
    from fedprox import client_app, model

    examples = {}
    for part in ("train", "t10k"):
        x = read(options.mnist, f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
        y = read(options.mnist, f"{part}-labels-idx1-ubyte.gz", 8)
        x = (torch.from_numpy(x / np.float32(255)) - 0.1307) / 0.3081
        pairs = zip(x, y.astype(int), strict=True)
        examples[part] = [{"image": image, "label": label} for image, label in pairs]
    rows = partition(np.array([example["label"] for example in examples["train"]]))
    test = DataLoader(examples["t10k"], batch_size=1000)

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  its clients draw their epochs from it
    torch.manual_seed(0)
    net = model.LogisticRegression(LABELS)
    weights = initial = [value.copy() for value in model.get_weights(net)]
    configs = EasyDict(run_config={"fit": {"drop_client": False}, "algorithm": {"mu": MU}})
    cohorts, epochs, accuracy = [], [], []
    for _ in range(ROUNDS):
        cohorts.append(random.sample(range(CLIENTS), COHORT))
        replies = []
        for client in cohorts[-1]:
            loader = DataLoader([examples["train"][i] for i in rows[client]], BATCH, shuffle=True)
            late = np.random.choice([0, 1], size=1, p=[1 - STRAGGLERS, STRAGGLERS])  # noqa: NPY002
            with mock.patch.object(client_app, "train", wraps=model.train) as train:
                # A network of its own, as in a process: what it returns is a view of its memory.
                own = model.LogisticRegression(LABELS)
                runner = client_app.FlowerClient(own, loader, None, EPOCHS, LR, late, configs)
                reply, number, _ = runner.fit(weights, {"current_round": 1})
                epochs.append(train.call_args.kwargs["epochs"])
            replies.append((reply, number))
        weights = aggregate(replies)
        model.set_weights(net, weights)
        accuracy.append(model.test(net, test, torch.device("cpu"))[1])
        print(len(accuracy), accuracy[-1], flush=True)
    np.savez(
        options.out,
        accuracy=accuracy,
        cohorts=cohorts,
        epochs=np.reshape(epochs, (ROUNDS, COHORT)),
        train=np.concatenate(rows),
        train_sizes=[len(part) for part in rows],
        **{f"initial_{i}": value for i, value in enumerate(initial)},
    )


if __name__ == "__main__":
    main()
