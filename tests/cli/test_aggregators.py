"""Robust rules on the command line."""

import dataclasses

import pytest
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim import robust
from fedjax_sim.cli.errors import Failure, resolving
from fedjax_sim.cli.grid import configurations
from fedjax_sim.cli.sweep import run_sweep
from fedjax_sim.studies.setups import build
from fedjax_sim.studies.setups.aggregators import aggregated, rule_of
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("mean", robust.mean()),
        ("median", robust.median()),
        ("median:f=2", robust.median(2)),
        ("trimmed_mean:f=3", robust.trimmed_mean(3)),
        ("multi_krum:f=1:m=n-f", robust.multi_krum(1, m="n-f")),
        ("multi_krum:f=2:m=5", robust.multi_krum(2, m=5)),
        ("geometric_median:iterations=8:nu=0.1", robust.geometric_median(8, 0.1)),
        ("rfa:iterations=8:nu=0.1", robust.rfa(8, 0.1)),
        ("centred_clipping:tau=2.5", robust.centred_clipping(2.5)),
        ("nnm+krum:f=2", robust.nnm(robust.krum(2))),
        ("nnm:f=1+median", robust.nnm(robust.median(), 1)),
        ("bucketing:size=3+bulyan:f=0", robust.bucketing(robust.bulyan(0), 3)),
        ("bucketing+nnm+median:f=1", robust.bucketing(robust.nnm(robust.median(1)))),
    ],
)
def test_texts(text, rule):
    plain = fs.fedavg(0.1)
    expected = digest_of(robust.aggregate(plain, rule))
    assert digest_of(aggregated(plain, text)) == expected
    assert aggregated(plain, "none") is plain


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("medain", "aggregator is 'medain'; expected none or one of mean, .*did you mean median"),
        ("median+nnm", r"expected none or one of mean, .* after nnm\+ or bucketing\+ if at all"),
        ("krum", "aggregator is 'krum'; expected krum:f=VALUE"),
        ("krum:f=-1", "aggregator is 'krum:f=-1': f is -1; expected at least 0"),
        ("krum:f=0.5", r"f is 0\.5; expected an integer"),
        ("krum:m=2", "krum expects f=VALUE, not 'm=2'"),
        ("mean:f=2", "mean expects no hyper-parameter, not 'f=2'"),
        ("krum:f", "krum expects f=VALUE, not 'f'"),
        ("nnm+median", r"f is None; expected a number of attackers, since median\(\) has none"),
        ("centred_clipping:tau=big", "expected a number in 'tau=big'"),
    ],
)
def test_bad_texts(text, message):
    with pytest.raises(ValueError, match=message):
        rule_of(text)


@pytest.mark.parametrize(
    "options", [{"aggregator": "krum:f=9"}, {"hyper": ("fedavg.aggregator=krum:f=9",)}]
)
def test_too_few_uploads_name_the_option(options):
    config = RunConfig(algorithms=("fedavg",), rounds=2, **options)
    message = "--aggregator is 'krum:f=9': timeline has 10 slots; expected at least 21"
    with pytest.raises(Failure, match=message), resolving():
        build.resolve(config)


def test_too_few_uploads_in_a_sweep_name_the_option(tmp_path):
    config = SweepConfig(rounds=2, grid=("aggregator=median,krum:f=9",), output=tmp_path)
    with pytest.raises(Failure, match="--aggregator is 'krum:f=9': timeline has"), resolving():
        run_sweep(config)


@pytest.mark.slow
def test_options_of_a_run():
    """For all algorithms, and for one of them; the rule is applied after all other wrappers."""
    config = RunConfig(
        algorithms=("fedavg", "scaffold"), aggregator="nnm+krum:f=1",
        hyper=("scaffold.aggregator=none",), attack="sign_flip", attackers=0.1,
        num_clients=10, rounds=2,
    )  # fmt: skip
    run = build.resolve(config)
    assert run.algorithm("fedavg").aggregation.f == 1
    assert run.algorithm("scaffold").aggregation is None
    with pytest.raises(ValueError, match="timeline has 2 slots; expected at least 5"):
        build.resolve(dataclasses.replace(config, cohort_size=2))
    with pytest.raises(ValueError, match=r"attackers send 2 uploads .* expected at most f = 1"):
        build.resolve(dataclasses.replace(config, attackers=0.2))
    with pytest.raises(ValueError, match="aggregator is 'krm'; expected none or one of mean"):
        build.resolve(dataclasses.replace(config, aggregator="krm"))


def test_a_grid_over_rules():
    config = SweepConfig(
        grid=("aggregator=none,median,krum:f=2", "lr=0.1,0.2"), algorithms=("fedavg",)
    )
    rules = [entry["aggregator"] for entry in configurations(config)]
    assert rules == [name for name in ("none", "median", "krum:f=2") for _ in range(2)]


def test_too_few_slots_name_no_option_that_was_not_typed():
    """The timeline is that of the sampling; --timeline was not given."""
    message = "timeline has 10 slots; expected at least 21, which krum(f=9) requires"
    with pytest.raises(Failure) as error, resolving():
        raise ValueError(message)
    assert str(error.value) == message
