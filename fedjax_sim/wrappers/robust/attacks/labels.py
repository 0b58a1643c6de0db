"""Label flip: attackers train honestly on wrong labels.

References:
    Karimireddy, He, Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
        2022, https://arxiv.org/abs/2006.09365 (y -> K - 1 - y).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.checks import check_at_most, check_count, check_share
from fedjax_sim.data import FederatedData, leaf_of, with_leaf
from fedjax_sim.wrappers.robust.attacks.attackers import mask_of


def flip_labels(
    data: FederatedData,
    attackers: Any,
    num_classes: int,
    share: float = 1.0,
    seed: int = 0,
    leaf: str = "y",
) -> FederatedData:
    """Returns data in which the labels of attackers are ``num_classes - 1 - y``.

    The examples change once, before training: build the task of a run under attack from them, and
    evaluate on honest data.

    Args:
        data: integer labels ``[N, ...]`` under ``leaf``.
        attackers: who attacks: a mask ``[M]`` or :class:`Attackers` that always attack.
        num_classes: K.
        share: of an attacker's examples, drawn by ``seed``; default all.
        seed: decides which examples, for a share below 1.
        leaf: key of the labels.

    Raises:
        ValueError: another number of clients, labels that are no integers in 0 .. K - 1, or a share
            outside [0, 1].

    Example:
        >>> data = FederatedData({"y": np.array([0, 1, 2, 2])}, np.array([0, 2, 4]))
        >>> flip_labels(data, [False, True], num_classes=3).examples["y"].tolist()
        [0, 1, 0, 0]
    """
    rows = poisoned_rows(data, attackers, share, seed)
    labels = leaf_of(data, leaf)
    if labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
        raise ValueError(
            f"{leaf!r} has dtype {labels.dtype}; expected integer labels of at least 0"
        )
    check_at_most(num_classes - 1, **{f"the largest of {leaf!r}": int(labels.max(initial=0))})
    flipped = np.where(per_row(rows, labels), num_classes - 1 - labels, labels)
    return with_leaf(data, leaf, flipped.astype(labels.dtype))


def poisoned_rows(data: FederatedData, attackers: Any, share: float, seed: int) -> np.ndarray:
    """Returns True for the rows ``[N]`` that attackers change.

    A client of n examples changes ``round(share n)`` of them, a uniformly random subset; a larger
    share adds rows to those of a smaller one.
    """
    mask = mask_of(attackers)
    if mask.shape != (data.num_clients,):
        raise ValueError(
            f"attackers has the shape {mask.shape}; expected ({data.num_clients},), one entry per "
            "client of the data"
        )
    check_share(share=share)
    check_count(seed=seed)
    offsets = np.asarray(data.offsets)
    rows = np.zeros(int(offsets[-1]), bool)
    for client in np.flatnonzero(mask):
        order = np.random.default_rng([seed, int(client)]).permutation(
            np.arange(*offsets[client:][:2])
        )
        rows[order[: int(np.floor(share * len(order) + 0.5))]] = True
    return rows


def per_row(rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns ``rows [N]`` in a shape that broadcasts against ``x [N, ...]``."""
    return rows.reshape(-1, *[1] * (x.ndim - 1))
