"""Which algorithms of the registry may be private, and why the others may not."""

import catalogue
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.algorithms._shared import UPLOADS_COUNTS, UPLOADS_MODELS

REFUSED = {
    UPLOADS_COUNTS: {
        "agd", "fedadamw", "fedadamw_entry", "fedbuff", "fedbuff_normalised", "feddualavg",
        "feddualavg_osp", "averaged_feddualavg", "fedmid", "fedmid_osp", "fedmuon", "fednova",
        "ifca", "mb_ac_sgd", "mb_sgd", "q_fedavg", "term",
    },
    UPLOADS_MODELS: {"averaged_fedavg", "fedasync"},
    "algorithm uploads models": {"favano_expected", "favano_mean", "favano_realised", "quafl"},
    "states of their optimizers": {"fedavg_adam_mean"},
    "losses": {"afl"},
    "squared norms": {"fedexp", "fedexp_average"},
    "whether they are whole": {"pp_marina"},
}  # fmt: skip
# Weight decay, or a regulariser in the gradient, moves a model without data.
MOVE_WITHOUT_DATA = {"diloco", "fedavg_subgradient"}
PARAMS = {"w": jnp.array([1.0, -2.0, 3.0]), "b": jnp.array(0.5)}


def test_every_algorithm_is_accepted_or_refused_with_its_reason():
    refused = {reason: set() for reason in REFUSED}
    for name in catalogue.ALGORITHMS:
        algorithm = catalogue.algorithm(name, catalogue.hyper(name))
        try:
            assert fs.privacy.privatize(
                algorithm, 1.0, 1.0, expected_uploads=4
            ).requires.synchronous == (algorithm.requires.synchronous)
        except ValueError as error:
            (reason,) = [reason for reason in REFUSED if reason in str(error)]
            refused[reason].add(name)
    assert refused == REFUSED


@pytest.mark.slow
def test_accepted_algorithms_upload_0_for_a_client_that_changes_nothing():
    """The clients' losses and gradients are 0; refused algorithms upload something else."""
    zero, key = jnp.array(0, jnp.int32), jax.random.key(0)
    nothing = lambda x, *step: jax.tree.map(jnp.zeros_like, x)  # noqa: E731
    constant = lambda x, *step: jnp.array(0.0)  # noqa: E731
    oracle = fs.Oracle(nothing, constant, nothing, constant)
    work = fs.Work(zero, zero, zero + 3, zero + 10, zero, key, max_steps=4)
    silent = set()
    for name in catalogue.ALGORITHMS:
        algorithm = catalogue.algorithm(name, catalogue.hyper(name))
        message = algorithm.broadcast(algorithm.init(PARAMS), fs.Round(zero, zero + 4, 8, key))
        with jax.disable_jit():  # nothing is compiled for three steps
            upload, _ = algorithm.local(message, algorithm.init_client(PARAMS), oracle, work)
        if not any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(upload)):
            silent.add(name)
    accepted = catalogue.ALGORITHMS.keys() - set().union(*REFUSED.values())
    # AFL uploads losses, FedExP squared norms, which are 0 here; PP-MARINA's server counts uploads.
    of_other_kinds = {"afl", "pp_marina"} | REFUSED["squared norms"]
    assert accepted - MOVE_WITHOUT_DATA == silent - of_other_kinds


def test_wrappers_are_refused_inside_and_outside():
    private = fs.privacy.privatize(fs.fedavg(0.1), 1.0, 1.0, expected_uploads=2)
    statistics = fs.running_statistics(fs.fedavg(0.1), lambda path, leaf: path == ("mean",))
    for algorithm, reason in [
        (private, "algorithm is privatize"),
        (fs.skip_nonfinite(fs.fedavg(0.1)), "whether their upload is finite"),
        (statistics, "running statistics of their data"),
    ]:
        with pytest.raises(ValueError, match=reason):
            fs.privacy.privatize(algorithm, 1.0, 1.0, expected_uploads=2)
    task = fs.Task(lambda client, key, max_steps: None, np.ones(2, int), np.ones(2, int))
    setup = fs.Setup(task, fs.timelines.full(1, 2, 1), PARAMS)
    fs.init(private, setup)
    for wrapped in [
        fs.average_rounds(private),
        fs.running_statistics(private, lambda path, leaf: path == ("b",)),
        fs.freeze(private, lambda path, leaf: path == ("b",)),
        fs.compression.compressed(private, fs.compression.identity()),
    ]:
        with pytest.raises(ValueError, match="expected privatize as the last wrapper"):
            fs.init(wrapped, setup)
    # Statistics that clients keep do not leave them; the model's check stays recognisable.
    kept = fs.running_statistics(fs.fedavg(0.1), lambda path, leaf: path == ("b",), "private")
    inside = fs.privacy.privatize(kept, 1.0, 1.0, expected_uploads=2)
    assert inside.requires.statistics is not None
    fs.init(inside, setup)
    with pytest.raises(ValueError, match="expected privatize as the last wrapper"):
        fs.init(fs.average_rounds(inside), setup)
    with pytest.raises(ValueError, match="expected it as the last wrapper"):
        fs.ef21(private, fs.compression.top_k(1))
