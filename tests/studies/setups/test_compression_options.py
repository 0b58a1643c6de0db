"""Compression as options: codecs, their memories, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import assert_identical, compiled, quadratic_task
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim import compression
from fedjax_sim.studies.setups import fields
from fedjax_sim.studies.setups.checks import check_study
from fedjax_sim.studies.setups.compression import NoCodec, NoFeedback, compressed
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.sampling import FullOrUniform, drawn
from fedjax_sim.studies.setups.study import Study

CENTRES = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
PLAIN = fs.fedavg(0.1)


def final(algorithm):
    task = quadratic_task(np.ones((4, 1, 1)) * np.eye(6), CENTRES, 2)
    setup = fs.Setup(task, fs.timelines.full(3, 4, 2), jnp.zeros(6))
    go = compiled(functools.partial(fs.run, algorithm))
    return go(setup, jax.random.key(0))[0].server.params


def coded(**values):
    """FedAvg with the codecs of the options; ``keep`` and others are the upload's."""
    names = {"feedback", "compress", "compress_down"}
    named = {
        name if name in names or "." in name else f"compress.{name}": value
        for name, value in values.items()
    }
    run = options(**named)
    return compressed(PLAIN, run.compress, run.feedback, run.compress_down)


def top_k(keep):
    return fs.compressed(PLAIN, compression.top_k(keep), near=compression.zeros)


# A fraction of 6 entries, or a number of them.
EQUAL = [
    ({"compress": "top_k", "keep": 2}, top_k(2)),
    ({"compress": "top_k", "keep": 0.5}, top_k(3)),
    ({"compress": "top_k", "keep": 1.0}, top_k(1)),
    ({"compress": "sign", "feedback": "ef14"}, fs.ef14(PLAIN, compression.scaled_sign())),
    (
        {"compress": "random_k", "keep": 0.5, "feedback": "ef21"},
        fs.ef21(PLAIN, compression.contractive(compression.random_k(3), 1.0)),
    ),
    ({"compress": "qsgd", "levels": 4, "feedback": "ef14"}, fs.ef14(PLAIN, compression.qsgd(4))),
    (
        {"compress": "random_k", "keep": 2, "feedback": "ef21"},
        fs.ef21(PLAIN, compression.contractive(compression.random_k(2), 2.0)),
    ),
    (
        {"compress": "random_k", "keep": 0.5, "feedback": "diana"},
        fs.diana(PLAIN, compression.random_k(3), 0.5),
    ),
    (
        {"compress": "qsgd", "levels": 4, "feedback": "diana", "feedback.rate": 0.3},
        fs.diana(PLAIN, compression.qsgd(4), 0.3),
    ),
    ({"compress": "natural", "feedback": "marina"}, fs.marina(PLAIN, compression.natural(), 8 / 9)),
    (
        {"compress": "sign", "feedback": "ef21", "compress_down": "top_k", "compress_down.keep": 2},
        fs.ef21(fs.ef21_p(PLAIN, compression.top_k(2)), compression.scaled_sign()),
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("values", "expected"), EQUAL, ids=[str(row[0]) for row in EQUAL])
def test_options_are_the_functions(values, expected):
    assert_identical(final(coded(**values)), final(expected))


def kinds_of(name) -> list[str]:
    (field,) = (field for field in fields.fields_of(Run) if field.name == name)
    return [str(fields.kind_of(kind)) for kind in field.alternatives]


@pytest.mark.parametrize("kind", kinds_of("compress")[1:])
def test_every_codec_has_bits(kind):
    algorithm = coded(compress=kind, **{"feedback": "ef14"} if kind == "power_sgd" else {})
    bits = algorithm.requires.bits.upload
    assert 0 < bits({"w": jnp.zeros((30, 20))}) < 600 * 32


def test_without_a_codec_the_algorithm_stays():
    assert compressed(PLAIN, NoCodec(), NoFeedback(), NoCodec()) is PLAIN


def test_every_memory_suits_a_codec():
    """Each in its own way."""
    kinds = kinds_of("feedback")
    digests = {digest_of(coded(compress="random_k", feedback=kind)) for kind in kinds}
    assert len(digests) == len(kinds)


@pytest.mark.parametrize("values", [
    {"compress_down": "top_k"}, {"compress_down": "sign"}, {"compress_down": "power_sgd"},
    {"compress_down": "natural"}, {"compress_down": "random_k", "compress_down.keep": 0.5},
    {"compress_down": "luq"}, {"compress_down": "qsgd", "compress_down.levels": 4},
])  # fmt: skip
def test_codecs_of_messages(values):
    algorithm = coded(**values)
    assert algorithm.init(jnp.zeros((4, 6))).copy.shape == (4, 6)
    bits = algorithm.requires.bits.message(jnp.zeros((4, 6)))
    assert 0 < bits < 24 * 32 or values["compress_down"] == "random_k"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"compress": "top"}, "compress is 'top'; expected one of none, top_k.*did you mean top_k"),
        ({"compress": "uniform", "values": 1}, "compress is 'uniform': levels is 1; expected at"),
        ({"compress": "power_sgd"}, "compress is 'power_sgd'; expected feedback ef14 or ef21 with"),
        ({"feedback": "ef14"}, "feedback is 'ef14'; expected --compress with it"),
        (
            {"compress": "top_k", "feedback": "ef"},
            "feedback is 'ef'; expected one of none, ef14, ef21",
        ),
        (
            {"compress": "random_k", "feedback": "pp_marina", "feedback.rate": 0.5},
            "feedback.rate is 0.5; expected feedback:diana or feedback:marina with it",
        ),
        (
            {"compress": "sign", "feedback": "pp_marina"},
            "compress is 'sign'; expected an unbiased codec with feedback pp_marina",
        ),
        ({"compress": "top_k", "feedback": "diana"}, "an unbiased codec with feedback diana"),
        (
            {"compress": "power_sgd", "feedback": "marina", "feedback.rate": 0.5},
            "expected an unbiased codec with feedback marina",
        ),
        (
            {"compress": "qsgd", "feedback": "diana"},
            r"feedback.rate is None; expected a number in \(0, 1\] with compress qsgd",
        ),
        ({"compress": "random_k", "keep": 2, "feedback": "diana"}, "feedback.rate is None; expec"),
    ],
)
def test_refusals(values, message):
    """Before data are loaded."""
    with pytest.raises(ValueError, match=message):
        coded(**values)


def test_options_of_a_run_are_checked_before_data_are_loaded():
    with pytest.raises(ValueError, match="expected an unbiased codec"):
        check_study(Study(options(compress="sign", feedback="marina", dataset="none")))


@pytest.mark.slow
def test_rounds_of_pp_marina():
    """Rounds of all clients, the first one included, and rounds of cohorts."""

    def mask(probability):
        rule, key = FullOrUniform(probability), jax.random.key(0)
        return np.asarray(drawn(rule, 40, 3, key, np.ones(12), 2).mask)

    reports = mask(None).sum(1)
    assert reports[0] == 12
    assert set(reports.tolist()) == {3, 12}
    assert mask(1.0).all()
