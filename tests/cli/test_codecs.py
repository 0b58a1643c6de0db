"""Compression on the command line: codecs by name, their memories, refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import assert_identical, compiled, quadratic_task

import fedjax_sim as fs
from fedjax_sim import compression
from fedjax_sim.cli.grid import configurations
from fedjax_sim.studies.setups import registry
from fedjax_sim.studies.setups.build import hyper_parameters
from fedjax_sim.studies.setups.codecs import CODECS, compress, compress_messages
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig
from fedjax_sim.studies.setups.config_checks import check
from fedjax_sim.studies.setups.names import SAMPLINGS

CENTRES = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def final(algorithm):
    task = quadratic_task(np.ones((4, 1, 1)) * np.eye(6), CENTRES, 2)
    setup = fs.Setup(task, fs.timelines.full(3, 4, 2), jnp.zeros(6))
    go = compiled(functools.partial(fs.run, algorithm))
    return go(setup, jax.random.key(0))[0].server.params


PLAIN = fs.fedavg(0.1)
EQUAL = [
    (("top_k:2",), fs.compressed(PLAIN, compression.top_k(2), near=compression.zeros)),
    (("top_k:0.5", "none"), fs.compressed(PLAIN, compression.top_k(3), near=compression.zeros)),
    (("sign", "ef14"), fs.ef14(PLAIN, compression.scaled_sign())),
    (
        ("random_k:0.5", "ef21"),
        fs.ef21(PLAIN, compression.contractive(compression.random_k(3), 1.0)),
    ),
    (("qsgd:4", "ef14"), fs.ef14(PLAIN, compression.qsgd(4))),
    (("random_k:2", "ef21"), fs.ef21(PLAIN, compression.contractive(compression.random_k(2), 2.0))),
    (("random_k:0.5", "diana"), fs.diana(PLAIN, compression.random_k(3), 0.5)),
    (("qsgd:4", "diana", 0.3), fs.diana(PLAIN, compression.qsgd(4), 0.3)),
    (("natural", "marina"), fs.marina(PLAIN, compression.natural(), 8 / 9)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "expected"), EQUAL, ids=lambda value: str(value)[:30])
def test_options_are_the_functions(options, expected):
    assert_identical(final(compress(PLAIN, *options)), final(expected))


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_has_bits(name):
    codec = name if CODECS[name].number is None else f"{name}:2"
    feedback = "ef14" if name == "power_sgd" else None
    algorithm = compress(PLAIN, codec, feedback)
    assert compress(PLAIN, "none", feedback) is PLAIN
    bits = algorithm.requires.bits.upload
    assert 0 < bits({"w": jnp.zeros((30, 20))}) < 600 * 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("top",), "compress is 'top'; expected none or one of top_k.*did you mean top_k"),
        (("top_k",), "compress is 'top_k'; expected top_k:NUMBER, the entries per tensor"),
        (("top_k:x",), "expected top_k:NUMBER"),
        (("top_k:1.5",), "compress is 'top_k:1.5': keep is 1.5"),
        (("sign:2",), "expected sign without a number"),
        (("power_sgd:1",), "expected --feedback ef14 or ef21 with it"),
        (("top_k:2", "ef"), "feedback is 'ef'; expected none, ef14"),
        (("top_k:2", "ef", 0.5), "feedback is 'ef'; expected none, ef14"),
        (
            ("random_k:2", "pp_marina", 0.5),
            "feedback_rate is 0.5; expected --feedback diana or marina",
        ),
        (("sign", "pp_marina"), "expected an unbiased codec with feedback pp_marina"),
        (("top_k:2", "diana"), "expected an unbiased codec with feedback diana"),
        (("power_sgd:2", "marina", 0.5), "expected an unbiased codec with feedback marina"),
        (("qsgd:4", "diana"), "feedback_rate is None; expected a number"),
        (("top_k:2", "ef14", 0.5), "feedback_rate is 0.5; expected --feedback diana or marina"),
        (("top_k:2", None, 0.5), "feedback_rate is 0.5; expected --feedback diana or marina"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        compress(PLAIN, *options)


def test_options_of_a_run():
    """For all algorithms, and for one of them."""
    config = RunConfig(
        algorithms=("fedavg", "fedprox"), compress="top_k:0.1", feedback="ef14",
        hyper=("fedprox.compress=sign", "fedprox.feedback=none"),
    )  # fmt: skip
    hyper = hyper_parameters(config)
    assert hyper["fedavg"]["compress"] == "top_k:0.1"
    assert hyper["fedprox"]["compress"] == "sign"
    params = jnp.zeros(6)
    entry = registry.ALGORITHMS["fedavg"]
    assert entry.build(hyper["fedavg"]).init_client(params).memory.shape == (6,)
    assert registry.ALGORITHMS["fedprox"].build(hyper["fedprox"]).init_client(params) == ()


def test_a_grid_over_codecs():
    config = SweepConfig(
        grid=("compress=none,top_k:0.1,sign", "feedback=ef21", "lr=0.1,0.2"), algorithms=("fedavg",)
    )
    found = configurations(config)
    assert [c["compress"] for c in found] == [
        name for name in ("none", "top_k:0.1", "sign") for _ in range(2)
    ]
    assert all(c["feedback"] == "ef21" for c in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feedback": "ef14"}, "feedback is 'ef14'; expected --compress with it"),
        ({"compress": "top_k:0"}, "keep is 0"),
        ({"compress": "sign", "feedback": "marina"}, "expected an unbiased codec"),
    ],
)
def test_options_of_a_run_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        hyper_parameters(RunConfig(algorithms=("fedavg",), **options))


@pytest.mark.slow
def test_messages_are_compressed_by_ef21_p():
    expected = fs.ef21(fs.ef21_p(PLAIN, compression.top_k(2)), compression.scaled_sign())
    entry = registry.ALGORITHMS["fedavg"]
    hyper = {"lr": 0.1, "compress": "sign", "feedback": "ef21", "compress_down": "top_k:2"}
    assert_identical(final(entry.build(hyper)), final(expected))


@pytest.mark.parametrize(
    "codec", ["top_k:2", "sign", "power_sgd:1", "natural", "random_k:0.5", "qsgd:4"]
)
def test_codecs_of_messages(codec):
    algorithm = compress_messages(PLAIN, codec)
    assert algorithm.init(jnp.zeros((4, 6))).copy.shape == (4, 6)
    bits = algorithm.requires.bits.message
    assert 0 < bits(jnp.zeros((4, 6))) < 24 * 32 or codec == "random_k:0.5"
    assert compress_messages(PLAIN, "none") is PLAIN


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        ("top", "compress_down is 'top'; expected none or one of top_k"),
        ("top_k:0", "compress_down is 'top_k:0': keep is 0"),
    ],
)
def test_other_codecs_of_messages_are_refused(codec, message):
    with pytest.raises(ValueError, match=message):
        compress_messages(PLAIN, codec)


@pytest.mark.slow
def test_rounds_of_pp_marina():
    """Rounds of all clients, the first one included, and rounds of cohorts."""
    config = RunConfig(rounds=40, cohort_size=3, sampling="full-or-uniform")
    rule = SAMPLINGS["full-or-uniform"][1]
    mask = rule(config, jax.random.key(0), np.ones(12), 2).mask
    reports = np.asarray(mask.sum(1))
    assert reports[0] == 12
    assert set(reports.tolist()) == {3, 12}
    always = rule(
        dataclasses.replace(config, full_probability=1.0), jax.random.key(0), np.ones(12), 2
    )
    assert always.mask.all()
    with pytest.raises(ValueError, match=r"full_probability is 2.0; expected a number in \(0, 1]"):
        check(dataclasses.replace(config, full_probability=2.0))
