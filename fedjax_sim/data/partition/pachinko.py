"""Pachinko allocation: label skew over a hierarchy of coarse and fine labels."""

from __future__ import annotations

import numpy as np

from fedjax_sim.checks import check_count, seeded
from fedjax_sim.data.partition._dealing import (
    Prior,
    check_alpha,
    check_clients,
    deal,
    draw_available,
    draw_shares,
    group_rows,
)
from fedjax_sim.types import plain_integers


@plain_integers
def pachinko(
    labels: np.ndarray,
    coarse: np.ndarray,
    num_clients: int,
    seed: int | np.random.Generator,
    *,
    alpha: float = 0.1,
    beta: float = 10.0,
    size: int | None = None,
    in_rotation: bool = False,
    prior: Prior = "labels",
) -> list[np.ndarray]:
    r"""Label skew over two levels: coarse labels, and fine labels within each coarse one.

    Client j draws :math:`\theta_j \sim Dir(\alpha C p)` over the C coarse labels, where p are their
    frequencies, and, for each coarse label c, :math:`\phi_{jc} \sim Dir(\beta F_c p_c)` over its
    :math:`F_c` fine labels, where :math:`p_c` are their frequencies in c.  For balanced labels, as
    in the sources, these are :math:`Dir(\alpha, ...)` and :math:`Dir(\beta, ...)`.  For each
    example it draws :math:`c \sim \theta_j`, then :math:`f \sim \phi_{jc}`, then an example with
    label f, without replacement.  A fine label without examples is dropped from
    :math:`\phi_{jc}`, a coarse label without examples from :math:`\theta_j`, and the rest is
    renormalised.  No example is used twice.

    By default clients draw all their examples one client after the other, so the last ones take
    what is left and deviate from the law; ``in_rotation`` spreads the deviation over all clients.

    Args:
        labels: [N] fine label of each example.
        coarse: [N] coarse label of each example; equal for examples with equal fine labels.
        num_clients: M.
        seed: int or generator.
        alpha: concentration over coarse labels, > 0.
        beta: concentration over fine labels, > 0.
        size: examples per client; default: ``floor(N / M)``.
        in_rotation: clients draw one example each in turn.
        prior: means of the shares: "labels", the frequencies, or "uniform", which gives other
            shares for unbalanced labels.

    Returns:
        M arrays of ``size`` row numbers, in random order.

    Raises:
        ValueError: labels not one-dimensional or of different lengths, a fine label with two coarse
            labels, a concentration <= 0, fewer than ``M * size`` examples, another prior.

    References:
        Reddi et al., "Adaptive federated optimization", 2021, App. C.1, and the CIFAR-100 of
        TensorFlow Federated: 500 clients of 100 examples, alpha 0.1, beta 10.  The code of Google
        Research scales alpha by the prior: ``alpha=0.1 / 20`` for its 20 coarse labels.
        Li and McCallum, "Pachinko allocation", 2006.

    Example:
        >>> labels = np.arange(600) % 6
        >>> assignment = pachinko(labels, labels // 2, 10, seed=0)
        >>> {len(rows) for rows in assignment}, np.unique(np.concatenate(assignment)).size
        ({60}, 600)
    """
    pools, _ = group_rows(labels, "labels")
    num_examples = sum(map(len, pools))
    families = _families(np.asarray(coarse), pools, num_examples)
    check_alpha(alpha)
    check_alpha(beta, "beta")
    check_count(num_clients=num_clients)
    size = num_examples // max(num_clients, 1) if size is None else size
    check_count(1, size=size)
    check_clients(num_clients, num_examples, size)
    rng = seeded(seed)
    fine_left = np.array([len(pool) for pool in pools])
    coarse_left = np.array([fine_left[family].sum() for family in families])
    theta, above = draw_shares(coarse_left, alpha, prior, num_clients, rng)  # [M, coarse labels]
    within = [draw_shares(fine_left[family], beta, prior, num_clients, rng) for family in families]
    counts = np.zeros((num_clients, len(pools)), dtype=np.int64)

    def draw(client: int, number: int) -> None:
        # The coarse labels do not depend on the draws within them, so they are drawn first.
        chosen = np.zeros(len(families), dtype=np.int64)
        draw_available(number, theta[client], coarse_left, above, rng, chosen)
        for c in np.flatnonzero(chosen):
            left, taken = fine_left[families[c]], np.zeros(len(families[c]), dtype=np.int64)
            phi, below = within[c]
            draw_available(chosen[c], phi[client], left, below, rng, taken)
            fine_left[families[c]] = left
            counts[client, families[c]] += taken

    for _ in range(size if in_rotation else 1):
        for client in range(num_clients):
            draw(client, 1 if in_rotation else size)
    return deal(pools, counts, rng)


def _families(coarse: np.ndarray, pools: list[np.ndarray], num_examples: int) -> list[np.ndarray]:
    """Returns the numbers of the fine labels of each coarse label."""
    if coarse.shape != (num_examples,):
        raise ValueError(f"coarse has shape {coarse.shape}; expected [{num_examples}], as labels")
    for fine, pool in enumerate(pools):
        if (coarse[pool] != coarse[pool[0]]).any():
            values = np.unique(coarse[pool])[:2].tolist()
            raise ValueError(
                f"coarse has the values {values} for examples of one label (number {fine} in "
                "sorted order); expected one coarse label per fine label"
            )
    families, _ = group_rows(coarse[[pool[0] for pool in pools]], "coarse")
    return families
