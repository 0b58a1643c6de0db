"""A run of PFLlib with its own code: partition, cohorts, initial model and accuracy per round.

In an environment with torch==2.13.0, numpy, scikit-learn, ujson, h5py, pillow:
git clone https://github.com/TsingZ0/PFLlib && git -C PFLlib checkout d832e76f6a23
python experiments/porting/pfllib_theirs.py PFLlib FOLDER_OF_MNIST pfllib.npz
"""

# pyright: reportMissingImports=false

import argparse
import gzip
import os
import pathlib
import random
import sys
import tempfile
from unittest import mock

import numpy as np
import torch

ROUNDS, CLIENTS, JOIN_RATIO = 8, 20, 0.2
SETTINGS = {  # the defaults of its main.py, but for the rounds and the join ratio
    "device": "cpu", "dataset": "MNIST", "num_classes": 10, "global_rounds": ROUNDS,
    "local_epochs": 1, "batch_size": 10, "local_learning_rate": 0.005, "num_clients": CLIENTS,
    "join_ratio": JOIN_RATIO, "random_join_ratio": False, "few_shot": 0, "algorithm": "FedAvg",
    "time_select": False, "goal": "test", "time_threthold": 10000, "save_folder_name": "items",
    "top_cnt": 100, "auto_break": False, "eval_gap": 1, "client_drop_rate": 0.0,
    "train_slow_rate": 0.0, "send_slow_rate": 0.0, "dlg_eval": False, "dlg_gap": 100,
    "batch_num_per_client": 2, "num_new_clients": 0, "fine_tuning_epoch_new": 0,
    "learning_rate_decay": False, "learning_rate_decay_gamma": 0.99,
}  # fmt: skip


def mnist(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the training and the test images, merged as PFLlib does, and their labels."""

    def read(name: str, offset: int) -> np.ndarray:
        return np.frombuffer(gzip.open(folder / name).read(), np.uint8, offset=offset)

    x = [read(f"{part}-images-idx3-ubyte.gz", 16) for part in ("train", "t10k")]
    y = [read(f"{part}-labels-idx1-ubyte.gz", 8) for part in ("train", "t10k")]
    return np.concatenate(x).reshape(-1, 1, 28, 28), np.concatenate(y).astype(np.int64)


def main() -> None:
    """Runs PFLlib and writes what another program needs to do the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("pfllib", "mnist", "out"):
        parser.add_argument(name, type=pathlib.Path)
    options = parser.parse_args()
    out, checkout = options.out.resolve(), options.pfllib.resolve()
    x, y = mnist(options.mnist)
    # The images of this network need nothing of torchvision, which PFLlib's modules import.
    for name in ("", ".models", ".transforms", ".datasets"):
        sys.modules["torchvision" + name] = mock.MagicMock()
    sys.path[:0] = [str(checkout / "system"), str(checkout / "dataset")]
    from flcore.servers.serveravg import FedAvg
    from flcore.trainmodel.models import FedAvgCNN

    # PFLlib has two packages `utils`; the data set's is loaded by its file.
    tools: dict = {}
    source = (checkout / "dataset" / "utils" / "dataset_utils.py").read_text()
    exec(compile(source, "dataset_utils.py", "exec"), tools)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  its rule draws from it
    # Row numbers in the place of images: the partition is then known.
    parts, labels, counts = tools["separate_data"](
        (np.arange(len(y)), y), CLIENTS, 10, True, False, "dir", class_per_client=2
    )
    train, test = tools["split_data"](parts, labels)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for name in ("dataset/MNIST/train", "dataset/MNIST/test", "system"):
            (work / name).mkdir(parents=True)
        os.chdir(work / "system")
        images = [
            [{"x": x[part["x"]] / np.float32(127.5) - 1, "y": part["y"]} for part in half]
            for half in (train, test)
        ]
        base = str(work / "dataset" / "MNIST") + "/"
        tools["save_file"](
            base + "config.json", base + "train/", base + "test/", *images, CLIENTS, 10, counts,
            True, False, "dir",
        )  # fmt: skip
        torch.manual_seed(0)
        model = FedAvgCNN(in_features=1, num_classes=10, dim=1024)
        initial = [value.detach().numpy().copy() for value in model.parameters()]
        server = FedAvg(argparse.Namespace(**SETTINGS, model=model), 0)
        cohorts, select = [], server.select_clients

        def recorded() -> list:
            chosen = select()
            cohorts.append([client.id for client in chosen])
            return chosen

        server.select_clients = recorded
        server.train()
    np.savez(
        out,
        accuracy=server.rs_test_acc,
        cohorts=cohorts[:ROUNDS],
        train=np.concatenate([part["x"] for part in train]),
        train_sizes=[len(part["x"]) for part in train],
        test=np.concatenate([part["x"] for part in test]),
        **{f"initial_{i}": value for i, value in enumerate(initial)},
    )


if __name__ == "__main__":
    main()
