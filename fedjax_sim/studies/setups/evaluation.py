"""Evaluation of a comparison: test and training examples, validation part, every client."""

from collections.abc import Callable
from typing import Literal

from jax.tree_util import Partial

from fedjax_sim.data import FederatedData
from fedjax_sim.engine import (
    at_rounds,
    client_evaluator,
    evaluator,
    merge_evaluators,
    personal_evaluator,
    pooled_evaluator,
)
from fedjax_sim.engine.evaluation import scores
from fedjax_sim.objectives import Metrics
from fedjax_sim.studies.setups.attack import Attack, Backdoor, attacked_test
from fedjax_sim.studies.setups.clients import Clients
from fedjax_sim.studies.setups.fields import Count, PositiveProbability, group
from fedjax_sim.types import Model, Task

ScoreName = Literal[
    "auc", "f1", "precision", "recall", "confusion", "calibration_error", "perplexity", "rmse", "r2"
]


@group
class Evaluation:
    """Examples, clients and models that are evaluated; --eval-every and --eval-time say when."""

    eval_examples: Count | Literal["all"] = 10_000
    """Training examples in an evaluation: a fixed uniform subsample of at most this many, or all.
    The metric train/examples is their number."""
    per_client: Count | None = None
    """Rounds between evaluations of every client, a multiple of --eval-every (with time:clock
    server updates): statistics over clients in the history, a figure of their distribution, and a
    row per client in a run's clients.csv (clients.parquet, if there are more than 100,000 rows and
    pyarrow is installed); default: none."""
    personal: Count | None = None
    """Rounds between evaluations of the model that every client uses itself (the algorithm's
    personal model, else the server's), a multiple of --eval-every (with time:clock server updates):
    statistics over clients, and a row per client in clients.csv. It requires the clients' own
    examples: --test-of clients, or --validation. Clients that are held out are evaluated as unseen,
    with --test-of clients; default: none."""
    first_visit: bool = False
    """With --personal: clients that are held out do the local work of one round before they are
    evaluated, so that their own models and heads are trained."""
    scores: tuple[ScoreName, ...] = ()
    """Scores of all test examples together, in the history as test/NAME; with --test-of clients
    also statistics over the clients that have one; default: none."""
    target_accuracy: PositiveProbability = 0.8
    """Test accuracy; the table shows the rounds, or the simulated time, until a run reaches it."""


def evaluation(
    options: Evaluation,
    attack: Attack,
    metrics: Metrics,
    model: Model,
    clients: Clients,
    make_task: Callable[[FederatedData], Task],
    own_statistics: bool = False,
) -> Partial:
    """Returns the evaluator of a comparison's models.

    ``test/...``, ``train/...`` (a fixed subsample of ``--eval-examples``; ``train/examples`` is its
    size), ``valid/...`` with ``--validation`` and ``held_out/...`` with ``--held-out-clients`` are
    means over examples, and so is ``backdoor/accuracy``, the success rate of a backdoor.
    ``test/NAME`` are the scores of ``--scores``, of the model in the parameters' precision.  With
    ``--per-client``, ``client/SPLIT/...`` are statistics over clients.
    With ``--personal``, ``personal/SPLIT/...`` are statistics of the models that clients use
    themselves, on their own examples; the split ``unseen`` has the clients that never train.
    Without it, but with running statistics that clients keep and client states on the device,
    ``personal/...`` are statistics of the clients' own models on their training examples.
    """
    train = clients.train
    most = len(train["y"]) if options.eval_examples == "all" else options.eval_examples
    parts = {
        "test": evaluator(metrics, clients.test),
        "train": evaluator(metrics, train, max_examples=most),
    }
    if options.scores:
        of = clients.test if clients.test_of_clients is None else clients.test_of_clients
        named = {name: getattr(scores, name) for name in options.scores}
        parts["test"] = merge_evaluators(parts["test"], pooled_evaluator(model, of, named))
    if clients.valid is not None:
        parts["valid"] = evaluator(metrics, clients.valid)
    if isinstance(attack, Backdoor):
        shown = attacked_test(clients.test, clients.data.examples["x"])
        parts["backdoor"] = evaluator(metrics, shown)
    if clients.held_out is not None:
        parts["held_out"] = evaluator(metrics, clients.held_out.examples)
    if options.per_client is not None:
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
        parts["client"] = at_rounds(merge_evaluators(**each), options.per_client)
    if options.personal is not None:
        own = _personal(options, metrics, clients, make_task)
        parts["personal"] = at_rounds(own, options.personal)
    elif own_statistics:
        parts["personal"] = personal_evaluator(metrics, clients.data)
    return merge_evaluators(**parts)


def _personal(
    options: Evaluation,
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
            first_visit=options.first_visit,
            per_client=True,
        )
    return merge_evaluators(**parts)
