"""Bits of uploads and messages in files of runs, through all wrappers that keep the marks."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import quadratic_task

import fedjax_sim as fs
from fedjax_sim.compression import identity, qsgd, random_k, scaled_sign, top_k
from fedjax_sim.runs.history import Clock
from fedjax_sim.runs.storage.outcome import describe

PARAMS = {"frozen": jnp.zeros(50), "w": jnp.zeros(16)}
PLAIN = fs.fedavg(0.1)
SIGN, TOP = 16 + 32, 2 * (32 + 4)  # bits of the leaf w alone
BOTH = SIGN + 50 + 32  # bits of both leaves
WHOLE = 32 * 66
BOTH_WAYS = fs.compressed(PLAIN, scaled_sign(), scaled_sign())
EF = fs.ef14(fs.ef21_p(PLAIN, scaled_sign()), scaled_sign())
ADAPTIVE = fs.privacy.privatize(EF, fs.privacy.adaptive_clip(0.5), 0.1, expected_uploads=4)
MEDIAN = fs.robust.aggregate(EF, fs.robust.median(1))
ATTACKERS = fs.robust.attacks.some_clients([0], 4)


def of_frozen(path, leaf):
    return path[0] == "frozen"


def test_identity_counts_as_many_bits_as_no_codec():
    assert communication(fs.compressed(PLAIN, identity())) == (WHOLE, WHOLE)


def communication(algorithm, timeline=None):
    task = quadratic_task(np.ones((4, 1, 1)), np.zeros((4, 1)), 2)
    timeline = fs.timelines.full(2, 4, 1) if timeline is None else timeline
    setup = fs.Setup(task, timeline, PARAMS)
    found = describe(algorithm, setup, ["0"], Clock(timeline, 1), batched=False)
    return found["upload_bits"], found["download_bits"]


@pytest.mark.parametrize(
    ("algorithm", "upload", "message"),
    [
        (fs.freeze(PLAIN, of_frozen), 512, 512),
        (fs.freeze(fs.ef14(PLAIN, scaled_sign()), of_frozen), SIGN, 512),
        (fs.freeze(fs.ef21(fs.ef21_p(PLAIN, top_k(2)), scaled_sign()), of_frozen), SIGN, TOP),
        (fs.freeze(fs.scaffold(0.1), of_frozen), 1024, 1024),
        (fs.ef21_p(PLAIN, scaled_sign()), WHOLE, BOTH),
        (fs.compressed(PLAIN, scaled_sign(), scaled_sign()), BOTH, BOTH),
        (fs.average_rounds(fs.ef21_p(PLAIN, scaled_sign())), WHOLE, BOTH),
        (
            fs.skip_nonfinite(fs.ef14(fs.ef21_p(PLAIN, scaled_sign()), scaled_sign())),
            BOTH + 32,
            BOTH,
        ),
        (fs.private(fs.ef14(PLAIN, scaled_sign()), of_frozen, lr=0.1), SIGN, 512),
        (fs.running_statistics(fs.ef14(PLAIN, scaled_sign()), of_frozen, "private"), SIGN, 512),
        # Statistics are sent as they are, with the number of clients that have some.
        (fs.running_statistics(fs.ef14(PLAIN, scaled_sign()), of_frozen), SIGN + 1632, 512 + 1600),
        (fs.marina(fs.ef21_p(PLAIN, scaled_sign()), random_k(8), 0.5), None, 2 * BOTH + 8),
        (fs.compressed(fs.average_rounds(PLAIN), identity(), scaled_sign()), WHOLE, BOTH),
        (fs.compressed(fs.ef21_p(PLAIN, top_k(2)), identity(), scaled_sign()), WHOLE, BOTH),
        (fs.ef14(BOTH_WAYS, identity()), WHOLE, BOTH),
        (fs.per_step_uploads(BOTH_WAYS, 0.1), BOTH, BOTH),
        (fs.robust.worker_momentum(BOTH_WAYS, 0.5), WHOLE, BOTH),
        (
            fs.privacy.randomize_uploads(BOTH_WAYS, fs.privacy.local_gaussian(1.0, 1.0)),
            WHOLE,
            BOTH,
        ),
        (fs.transforms.transform_oracle(BOTH_WAYS, lambda oracle: oracle), BOTH, BOTH),
        (fs.robust.attacks.sign_flip(BOTH_WAYS, ATTACKERS), BOTH, BOTH),
        (fs.robust.aggregate(EF, fs.robust.centred_clipping(1.0)), BOTH, BOTH),
        (fs.robust.attacks.mimic(MEDIAN, ATTACKERS), BOTH, BOTH),
        (fs.privacy.privatize(EF, 1.0, 1.0, expected_uploads=4), BOTH, BOTH),
        # A bound down, a bit of 32 up.
        (ADAPTIVE, BOTH + 32, BOTH + 32),
    ],
)  # fmt: skip
def test_bits_of_uploads_and_messages(algorithm, upload, message):
    found = communication(algorithm)
    assert found[1] == message
    assert upload is None or found[0] == upload


@pytest.mark.parametrize(
    ("wrap", "coded_entries", "exact"),
    [
        (lambda algorithm: algorithm, PARAMS, 0),
        (fs.skip_nonfinite, PARAMS, 32),
        # Statistics are sent as they are, with the number of clients that have some.
        (lambda algorithm: fs.running_statistics(algorithm, of_frozen), {"w": PARAMS["w"]}, 1632),
    ],
    ids=["alone", "skip_nonfinite", "running_statistics"],
)
def test_uploads_of_pp_marina_are_whole_if_all_clients_report(wrap, coded_entries, exact):
    mask = jnp.array([[True] * 4, [True, False, True, False], [False, True, False, False]])
    timeline = fs.timelines.full(3, 4, 1)
    timeline = dataclasses.replace(timeline, mask=mask)
    codec = qsgd(3)
    whole, coded = identity().bits(coded_entries), codec.bits(coded_entries)
    expected = round((4 * whole + 3 * coded) / 7 + exact)
    assert communication(wrap(fs.pp_marina(PLAIN, codec)), timeline)[0] == expected


def test_uploads_of_pp_marina_are_coded_if_one_of_all_is_lost():
    """Clients know the number of uploads that arrive: all send, and in the second round three."""
    timeline = fs.timelines.lose_uploads_of(fs.timelines.full(2, 4, 1), 0, slice(1, None))
    codec = qsgd(3)
    expected = round((WHOLE + codec.bits(PARAMS)) / 2)
    assert communication(fs.pp_marina(PLAIN, codec), timeline)[0] == expected


@pytest.mark.parametrize(
    "algorithm",
    [
        fs.ef21_p(PLAIN, scaled_sign()),
        fs.ef21(fs.ef21_p(PLAIN, scaled_sign()), scaled_sign()),
        MEDIAN,
        fs.privacy.privatize(EF, 1.0, 1.0, expected_uploads=4),
    ],
    ids=["ef21_p", "ef21", "robust", "private"],
)
def test_messages_of_ef21_p_go_to_all_clients(algorithm):
    """In every round with a report: here in two of three, with four reports and one."""
    mask = jnp.array([[True] * 4, [False] * 4, [False, True, False, False]])
    timeline = dataclasses.replace(fs.timelines.full(3, 4, 1), mask=mask)
    assert communication(algorithm, timeline)[1] == round(BOTH * 4 * 2 / 5)
    moved = fs.timelines.bits_moved(timeline, up=0, down=BOTH, to_all=4)
    assert moved.tolist() == [4 * BOTH, 4 * BOTH, 8 * BOTH]
