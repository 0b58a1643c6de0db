"""Requirements of algorithms, and their inheritance by wrappers."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import compression, transforms
from fedjax_sim.diagnostics.client_updates import model_change
from fedjax_sim.tree.counting import bits_if_all_report, message_bits, upload_bits

MASK = np.array([True, False])


def is_mean(path, leaf):
    del leaf
    return path[-1] == "mean"


def is_bias(path, leaf):
    del leaf
    return path == ("b",)


# Wrappers that keep the form of uploads and messages.
NEUTRAL = {
    "transform_oracle": lambda a: transforms.transform_oracle(a, transforms.unchanged),
    "sign_flip": lambda a: fs.robust.attacks.sign_flip(a, MASK),
    "inner_product": lambda a: fs.robust.attacks.inner_product(a, MASK),
    "mimic": lambda a: fs.robust.attacks.mimic(a, MASK),
    "average_rounds": fs.average_rounds,
    "ema_rounds": fs.ema_rounds,
    "fixed_order": fs.fixed_order,
    "user": lambda a: a._replace(local=lambda *visit: a.local(*visit)),
}


@pytest.mark.parametrize("wrap", NEUTRAL.values(), ids=NEUTRAL)
def test_wrappers_inherit_all_but_the_check(wrap):
    coded = fs.compressed(fs.fedavg(0.1), compression.qsgd(7), compression.qsgd(3))
    inside = coded.requiring(
        uploads_models=True, messages_to_all=True, partial_model=True, exact_mean="a reason"
    )
    assert wrap(inside).requires._replace(check=None) == inside.requires._replace(check=None)


def test_bits_are_those_of_the_last_encoding():
    """Entries of 2 x 32 bits; qsgd(7) needs 4 bits per entry and a norm of 32."""
    x = jnp.ones(8)
    coded = fs.compressed(fs.fedavg(0.1), compression.qsgd(7))
    assert upload_bits(coded)(x) == 8 * 4 + 32
    assert message_bits(coded)(x) == 8 * 32
    momentum = fs.robust.worker_momentum(coded)  # adds a dense memory to what was decoded
    assert upload_bits(momentum)(x) == 8 * 32
    private = fs.privacy.randomize_uploads(coded, fs.privacy.local_gaussian(1.0, 1.0))
    assert upload_bits(private)(x) == 8 * 32  # noise is dense
    whole = fs.freeze(fs.pp_marina(fs.fedsgd(0.1), compression.random_k(2)), is_bias)
    count = bits_if_all_report(whole)
    assert count is not None
    assert count(x) == 8 * 32  # in a round of all clients nothing is compressed


def test_marina_keeps_private_running_statistics():
    """Its own check does not hide that the algorithm updates them."""
    inside = fs.running_statistics(fs.fedsgd(0.1), is_mean, combine="private")
    wrapped = fs.marina(inside, compression.random_k(1), 0.5)
    assert wrapped.requires.statistics == inside.requires.statistics


def test_models_that_clients_upload_are_no_changes():
    """A client that starts from 5 and uploads the model 2 has moved by -3, so the change is 3."""
    quafl = fs.quafl(0.1)
    for algorithm in (quafl, fs.skip_nonfinite(quafl)):
        change = model_change(algorithm, jnp.array(5.0), (jnp.array(2.0), jnp.array(0.0)))
        assert float(change) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requires": None}, r"algorithm\.requires is None; expected fedjax_sim\.Requires"),
        ({"requires": fs.Requires(check=0)}, r"algorithm\.requires\.check is 0; expected a"),  # pyright: ignore
        (
            {"requires": fs.Requires(check=lambda task: None)},  # pyright: ignore
            r"algorithm\.requires\.check takes \(task\); expected \(task, timeline\)",
        ),
    ],
)
def test_other_values_are_refused(change, message):
    def oracle(client, key, max_steps):
        del client, key, max_steps
        return fs.Oracle(lambda w, step=0: w, lambda w, step: w, lambda w: w)

    task = fs.Task(oracle, np.ones(2, int), np.ones(2, int))
    setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), jnp.array(0.0))
    with pytest.raises(ValueError, match=message):
        fs.init(fs.fedavg(0.1)._replace(**change), setup)
