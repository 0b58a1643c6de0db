"""Evaluation of a comparison: test and training examples, validation part, every client."""

from collections.abc import Callable

from jax.tree_util import Partial

from fedjax_sim.data import FederatedData
from fedjax_sim.engine import (
    at_rounds,
    client_evaluator,
    evaluator,
    merge_evaluators,
    personal_evaluator,
)
from fedjax_sim.objectives import Metrics
from fedjax_sim.studies.setups.attacks import BACKDOOR, trigger
from fedjax_sim.studies.setups.clients import Clients
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.types import Task
from fedjax_sim.wrappers import triggered


def evaluation(
    config: RunConfig,
    metrics: Metrics,
    clients: Clients,
    make_task: Callable[[FederatedData], Task],
    statistics: str = "averaged",
) -> Partial:
    """Returns the evaluator of a comparison's models.

    ``test/...``, ``train/...`` (a fixed subsample of ``--eval-examples``; ``train/examples`` is its
    size), ``valid/...`` with ``--validation`` and ``held_out/...`` with ``--held-out-clients`` are
    means over examples, and so is ``backdoor/accuracy``, the success rate of a backdoor.  With
    ``--per-client``, ``client/SPLIT/...`` are statistics over clients.
    With ``--personal``, ``personal/SPLIT/...`` are statistics of the models that clients use
    themselves, on their own examples; the split ``unseen`` has the clients that never train.
    Without it, but with running statistics that clients keep and client states on the device,
    ``personal/...`` are statistics of the clients' own models on their training examples.

    Args:
        config: the options.
        metrics: values per example.
        clients: the clients' examples.
        make_task: ``data -> Task``, for the training of clients that are held out.
        statistics: "private" if the clients of an algorithm keep running statistics.
    """
    train = clients.train
    most = len(train["y"]) if config.eval_examples == "all" else config.eval_examples
    parts = {
        "test": evaluator(metrics, clients.test),
        "train": evaluator(metrics, train, max_examples=most),
    }
    if clients.valid is not None:
        parts["valid"] = evaluator(metrics, clients.valid)
    if config.attack.partition(":")[0] == BACKDOOR:
        pattern = trigger(clients.data.examples["x"])
        parts[BACKDOOR] = evaluator(metrics, triggered(clients.test, pattern))
    if clients.held_out is not None:
        parts["held_out"] = evaluator(metrics, clients.held_out.examples)
    if config.per_client is not None:
        splits = {
            "train": clients.data,
            "test": clients.test_of_clients,
            "valid": clients.valid_of_clients,
            "held_out": clients.held_out,
        }
        each = {
            split: client_evaluator(metrics, data, per_client=True)
            for split, data in splits.items()
            if data is not None
        }
        parts["client"] = at_rounds(merge_evaluators(**each), config.per_client)
    if config.personal is not None:
        own = _personal(config, metrics, clients, make_task)
        parts["personal"] = at_rounds(own, config.personal)
    elif statistics == "private" and not config.num_strata and config.states == "device":
        parts["personal"] = personal_evaluator(metrics, clients.data)
    return merge_evaluators(**parts)


def _personal(
    config: RunConfig,
    metrics: Metrics,
    clients: Clients,
    make_task: Callable[[FederatedData], Task],
) -> Partial:
    splits = {"test": clients.test_of_clients, "valid": clients.valid_of_clients}
    parts = {
        split: personal_evaluator(metrics, data, per_client=True)
        for split, data in splits.items()
        if data is not None
    }
    if clients.train_of_held_out is not None and clients.held_out is not None:
        parts["unseen"] = personal_evaluator(
            metrics,
            clients.held_out,
            unseen=make_task(clients.train_of_held_out),
            first_visit=config.first_visit,
            per_client=True,
        )
    return merge_evaluators(**parts)
