"""Shakespeare's plays by role: the next character at every position, as in TensorFlow Federated.

This is the task of FedOpt (Reddi et al., 2021, https://arxiv.org/abs/2003.00295, App. C.2) on the
text of McMahan et al. (2017): 715 roles, 10 per round, batches of 4, one local epoch.  A client has
snippets, the passages that its role speaks.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedjax_sim.data import next_tokens, padded_chunks
from fedjax_sim.datasets import shakespeare
from fedjax_sim.datasets.dataset import DataError, Dataset, number_groups, rows_by_group

LENGTH = 80  # positions of one example
IGNORE = -1  # label of positions whose next token is padding
PAD, UNKNOWN, BEGIN, END, VOCABULARY_SIZE = 0, 87, 88, 89, 90
_NAMES = ("<pad>", *shakespeare.CHARACTERS, "<unknown>", "<bos>", "<eos>")

Snippets = Mapping[str, Sequence[str]]  # of each role


def from_folder(folder: Path) -> Dataset | None:
    """Reads LEAF's files as :func:`fedjax_sim.datasets.shakespeare.from_folder`, for this task."""
    dataset = shakespeare.from_folder(folder)
    return None if dataset is None else all_positions(dataset)


def from_snippets(train: Snippets, test: Snippets) -> Dataset:
    """Returns sequences of 80 characters with the next character at every position, by role.

    Each snippet becomes begin, characters, end; it is padded to a multiple of 81 tokens and cut
    into pieces of 81, whose first 80 are the input and whose last 80 are the labels.
    """
    parts = {
        key: {
            role: [_ids(shakespeare.encode(text)) for text in texts] for role, texts in own.items()
        }
        for key, own in (("train", train), ("test", test))
    }
    return _dataset(parts)


def all_positions(dataset: Dataset) -> Dataset:
    """Returns the task of :func:`from_snippets` for the text behind LEAF's windows."""
    # LEAF has joined the passages of a role, so most roles have one long snippet per part.
    if dataset.name != "shakespeare" or dataset.group_names is None:
        raise DataError(f"dataset is {dataset.name}; expected load('shakespeare')")
    parts = {}
    groups = (dataset.train_groups, dataset.test_groups)
    for key, part, own in zip(
        ("train", "test"), (dataset.train, dataset.test), groups, strict=True
    ):
        assert own is not None
        parts[key] = {
            dataset.group_names[group]: [
                _ids(snippet) for snippet in shakespeare.joined(part["x"][rows], part["y"][rows])
            ]
            for group, rows in rows_by_group(own).items()
        }
    return _dataset(parts)


def _ids(tokens: np.ndarray) -> np.ndarray:
    """From the ids of LEAF's windows to TFF's, which differ for unknown characters."""
    return np.where(tokens == shakespeare.UNKNOWN, UNKNOWN, tokens).astype(np.int32)


def _sequences(snippets: Sequence[np.ndarray]) -> np.ndarray:
    """Returns pieces of 81 tokens, int32 ``[n, 81]``."""
    return padded_chunks(snippets, LENGTH + 1, begin=BEGIN, end=END, pad=PAD)


def _dataset(parts: dict[str, dict[str, list[np.ndarray]]]) -> Dataset:
    examples, roles = {}, {}
    for key, own in parts.items():
        pieces = {role: _sequences(snippets) for role, snippets in own.items()}
        if not sum(map(len, pieces.values())):
            raise DataError(f"{key} has no snippets; expected some")
        examples[key] = next_tokens(np.concatenate([*pieces.values()]), pad=PAD, ignore=IGNORE)
        roles[key] = [role for role, rows in pieces.items() for _ in rows]
    groups = number_groups(roles["train"], roles["test"])
    return Dataset(
        "shakespeare_tff", examples["train"], examples["test"], VOCABULARY_SIZE, *groups,
        source="files", class_names=_NAMES,
    )  # fmt: skip
