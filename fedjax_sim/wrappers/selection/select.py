"""The wrapper that gives an algorithm a selector."""

from __future__ import annotations

from fedjax_sim.checks import check_is_algorithm
from fedjax_sim.types import FedAlgorithm, Selector, specified


@specified
def select(algorithm: FedAlgorithm, selector: Selector) -> FedAlgorithm:
    """Returns an algorithm whose rounds choose among the candidates of the timeline.

    Candidates that are not chosen do no steps and upload nothing, and their states do not change.
    If the selector has scores, every candidate receives the model and sends one number per round;
    the history's bits count both.  ``state.selection.visits`` ``[M]`` has how often each client was
    chosen.

    Args:
        algorithm: any algorithm whose server has the whole model.
        selector: for example :func:`power_of_choice`.

    Raises:
        ValueError: no algorithm, no selector, or the algorithm has a selector already.  At the
            start of a run, before compilation: a timeline with simulated durations, staleness or
            resumed minibatches, a private algorithm, running statistics or private leaves, clients
            placed over devices, client probes; with unbiased weights an algorithm that needs equal
            weights or the exact mean, uploads models or has a robust rule.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([0.0, 0.0, 9.0])}, np.arange(4))
        >>> loss = lambda w, batch, key: (w - batch["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 3, task.num_steps), np.float32(0))
        >>> algorithm = select(fs.fedavg(1.0), fs.selection.power_of_choice(1))
        >>> state, _ = fs.run(algorithm, setup, jax.random.key(0))
        >>> float(state.server.params), state.selection.visits.tolist()
        (9.0, [0, 0, 1])
    """
    check_is_algorithm(algorithm)
    if not isinstance(selector, Selector):
        raise ValueError(
            f"selector is {selector!r:.60}; expected a selection.Selector, for example "
            "selection.power_of_choice(5)"
        )
    if algorithm.selection is not None:
        raise ValueError("algorithm has a selector already; expected one without")
    synchronous = algorithm.requires.synchronous or (
        "a selection depends on the current model, and decides who starts from it"
    )
    return algorithm.requiring(synchronous=synchronous)._replace(selection=selector)
