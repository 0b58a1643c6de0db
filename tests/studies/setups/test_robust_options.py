"""Robust rules as options."""

import pytest
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim import robust
from fedjax_sim.studies.setups import build, fields
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.robust import NoRule, aggregated, check_uploads, rule_of
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.study import Study

EQUAL = [
    ({"robust": "mean"}, robust.mean()),
    ({"robust": "median"}, robust.median()),
    ({"robust": "median", "f": 2}, robust.median(2)),
    ({"robust": "trimmed_mean", "f": 3}, robust.trimmed_mean(3)),
    ({"robust": "krum", "f": 2}, robust.krum(2)),
    ({"robust": "krum", "f": 0}, robust.krum(0)),
    ({"robust": "multi_krum", "f": 1, "m": "n-f"}, robust.multi_krum(1, m="n-f")),
    ({"robust": "multi_krum", "f": 2, "m": 5}, robust.multi_krum(2, m=5)),
    ({"robust": "multi_krum", "f": 2}, robust.multi_krum(2)),
    ({"robust": "bulyan", "f": 0}, robust.bulyan(0)),
    ({"robust": "geometric_median"}, robust.geometric_median()),
    ({"robust": "geometric_median", "iterations": 8, "nu": 0.1}, robust.geometric_median(8, 0.1)),
    ({"robust": "rfa"}, robust.rfa()),
    ({"robust": "rfa", "iterations": 8, "nu": 0.1}, robust.rfa(8, 0.1)),
    ({"robust": "centred_clipping"}, robust.centred_clipping()),
    ({"robust": "centred_clipping", "tau": 2.5}, robust.centred_clipping(2.5)),
    ({"robust": "nnm", "rule": "krum", "rule.f": 2}, robust.nnm(robust.krum(2))),
    ({"robust": "nnm", "f": 1, "rule": "median"}, robust.nnm(robust.median(), 1)),
    (
        {"robust": "bucketing", "size": 3, "rule": "bulyan", "rule.f": 0},
        robust.bucketing(robust.bulyan(0), 3),
    ),
    ({"robust": "bucketing", "rule": "median"}, robust.bucketing(robust.median())),
]


def chosen(values):
    named = {name if name == "robust" else f"robust.{name}": v for name, v in values.items()}
    return options(**named).robust


@pytest.mark.parametrize(("values", "rule"), EQUAL, ids=str)
def test_rules_are_the_functions_of_the_library(values, rule):
    plain = fs.fedavg(0.1)
    expected = digest_of(robust.aggregate(plain, rule))
    assert digest_of(aggregated(plain, chosen(values))) == expected


def test_every_kind_is_in_the_table():
    (field,) = (field for field in fields.fields_of(Run) if field.name == "robust")
    kinds = {fields.kind_of(kind) for kind in field.alternatives}
    assert kinds == {values["robust"] for values, _ in EQUAL} | {"none"}
    plain = fs.fedavg(0.1)
    assert aggregated(plain, NoRule()) is plain


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"robust": "nnm", "rule": "median"},
            r"robust is 'nnm': f is None; expected a number of attackers, since median\(\) has",
        ),
        ({"robust": "nnm", "rule": "none"}, "robust.rule is 'none'; expected a rule of the mixed"),
        ({"robust": "medain"}, "robust is 'medain'; expected one of none, .*did you mean median"),
        (
            {"robust": "nnm", "rule": "nnm"},
            "rule is 'nnm'; expected one of none, mean, median, trimmed_mean, krum",
        ),
        ({"robust": "mean", "f": 2}, "robust.f is 2; expected robust:bulyan or .* robust:krum or"),
    ],
)
def test_refusals(values, message):
    with pytest.raises(ValueError, match=message):
        rule_of(chosen(values))


def test_too_few_uploads():
    message = "robust is 'krum': timeline has 6 slots; expected at least 7, which krum"
    with pytest.raises(ValueError, match=message):
        check_uploads(chosen({"robust": "krum", "f": 2}), fs.timelines.full(5, 6, 1))


@pytest.mark.slow
def test_options_of_a_run():
    """For all algorithms; the rule is applied after all other wrappers."""

    def resolved(**values):
        small = {"algorithms": ("fedavg", "scaffold"), "num_clients": 10, "rounds": 2}
        rule = {"robust": "nnm", "robust.rule": "krum", "robust.rule.f": 1}
        attack = {"attack": "sign_flip", "attack.fraction": 0.1}
        return build.resolve(Study(options(**small | rule | attack | values)))

    run = resolved()
    assert [run.algorithm(name).aggregation.f for name in ("fedavg", "scaffold")] == [1, 1]
    with pytest.raises(ValueError, match="timeline has 2 slots; expected at least 5"):
        resolved(cohort_size=2)
    with pytest.raises(ValueError, match=r"attackers send 2 uploads .* expected at most f = 1"):
        resolved(**{"attack.fraction": 0.2})
