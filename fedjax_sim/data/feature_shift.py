"""Feature shift: clients whose examples differ by a rotation or by noise, not by their labels.

Both functions change the examples once, before training.  The parts of one client (training, test)
take the same entry of ``turns`` or ``std``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedjax_sim.checks import check_count, check_one_number, seeded
from fedjax_sim.data.federated import FederatedData, leaf_of, with_leaf


def rotate(
    data: FederatedData, turns: Sequence[int] | np.ndarray, leaf: str = "x"
) -> FederatedData:
    """Clients whose images are rotated by ``90 turns[i]`` degrees, counter-clockwise.

    Args:
        data: images ``[N, H, W]`` or ``[N, H, W, C]`` under ``leaf``.
        turns: ``[M]`` quarter turns of each client; ``np.arange(M) % 4``: four equal groups.
        leaf: key of the images.

    Returns:
        FederatedData with the same labels and offsets.

    Raises:
        ValueError: turns that are not ``[M]`` integers, a missing leaf, another shape; images that
            are not square, with an odd number of turns.

    References:
        Ghosh et al., "An efficient framework for clustered federated learning" (IFCA), 2020,
        Sec. 6 (rotated MNIST); Lopez-Paz and Ranzato, "Gradient episodic memory", 2017.

    Example:
        >>> data = FederatedData({"x": np.array([[[1, 2], [3, 4]]] * 2)}, np.array([0, 1, 2]))
        >>> rotate(data, [0, 1]).client(1)["x"][0].tolist()
        [[2, 4], [1, 3]]
    """
    x, turns = leaf_of(data, leaf), np.asarray(turns)
    if turns.shape != (data.num_clients,) or turns.dtype.kind not in "iu":
        raise ValueError(
            f"turns has shape {turns.shape} and dtype {turns.dtype}; expected integers "
            f"[{data.num_clients}], one per client"
        )
    if x.ndim not in (3, 4):
        raise ValueError(f"{leaf!r} has shape {x.shape}; expected images [N, H, W] or [N, H, W, C]")
    if x.shape[1] != x.shape[2] and (turns % 2).any():
        raise ValueError(
            f"{leaf!r} has images of {x.shape[1]} x {x.shape[2]}; expected square ones, or even "
            "numbers of quarter turns"
        )
    result = np.empty_like(x)
    of_row = (turns % 4)[data.owners()]
    for k in np.unique(of_row):
        result[of_row == k] = np.rot90(x[of_row == k], k, axes=(1, 2))
    return with_leaf(data, leaf, result)


def add_noise(
    data: FederatedData,
    std: Sequence[float] | np.ndarray,
    seed: int | Sequence[int] | np.random.Generator,
    leaf: str = "x",
) -> FederatedData:
    """Clients whose features have independent Gaussian noise of standard deviation ``std[i]``.

    The noise is drawn once: every pass over the data sees the same examples.  uint8 pixels become
    float32 in [0, 1] first, and are not clipped.

    Args:
        data: floating or uint8 features ``[N, ...]`` under ``leaf``.
        std: ``[M]`` standard deviations, on the scale of the floating features; see
            :func:`noise_levels`.
        seed: int, ints or generator.
        leaf: key of the features.

    Returns:
        FederatedData with float32 features (float64 if they were), same labels and offsets.

    Raises:
        ValueError: std that is not ``[M]`` numbers of at least 0, a missing leaf, or integers that
            are no pixels.

    References:
        Li et al., "Federated learning on non-IID data silos: an experimental study", 2022,
        Sec. 4.2 (noise-based feature distribution skew).

    Example:
        >>> data = FederatedData({"x": np.zeros((4, 100), np.float32)}, np.array([0, 2, 4]))
        >>> noisy = add_noise(data, [0.0, 0.5], seed=0)
        >>> [round(float(noisy.client(i)["x"].std()), 1) for i in range(2)]
        [0.0, 0.5]
    """
    x, std = leaf_of(data, leaf), np.asarray(std, np.float64)
    if std.shape != (data.num_clients,) or not (np.isfinite(std) & (std >= 0)).all():
        raise ValueError(
            f"std is {std}; expected {data.num_clients} numbers of at least 0, one per client"
        )
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise ValueError(
            f"{leaf!r} has dtype {x.dtype}; expected floating features or uint8 pixels"
        )
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    noise = seeded(seed).standard_normal(x.shape, dtype)
    noise *= std.astype(dtype)[data.owners()].reshape(-1, *[1] * (x.ndim - 1))
    noise += x.astype(dtype) / dtype(255) if x.dtype == np.uint8 else x
    return with_leaf(data, leaf, noise)


def noise_levels(
    sigma: float, num_clients: int, rule: Literal["variance", "deviation"] = "variance"
) -> np.ndarray:
    """Standard deviations that grow over the clients, for :func:`add_noise`.

    * ``"variance"``: the variance of client i = 1, ..., M is ``sigma i / M``, as Li et al. write.
    * ``"deviation"``: the standard deviation of client i = 0, ..., M - 1 is ``sigma i / (M - 1)``,
      as NIID-Bench, their program, computes.

    Returns:
        ``[M]`` standard deviations.

    Raises:
        ValueError: a negative sigma, another rule, or no clients.

    Example:
        >>> noise_levels(0.25, 4, "deviation").round(3).tolist()
        [0.0, 0.083, 0.167, 0.25]
    """
    check_one_number(sigma=sigma)
    if not 0 <= sigma < np.inf:
        raise ValueError(f"sigma is {sigma}; expected a number of at least 0")
    check_count(1, num_clients=num_clients)
    if rule == "variance":
        return np.sqrt(sigma * np.arange(1, num_clients + 1) / num_clients)
    if rule == "deviation":
        return sigma * np.arange(num_clients) / max(num_clients - 1, 1)
    raise ValueError(f'rule is {rule!r}; expected "variance" or "deviation"')
