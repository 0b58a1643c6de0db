"""Noise of a larger cohort: pfl-research's setting."""

import pytest

from fedjax_sim import privacy

SETTING = {"cohort_size": 50, "noise_cohort_size": 1000, "population": 10**6}


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "z"), [(1500, 0.61624), (3000, 0.63287)])
def test_reference_noise_of_cifar10(rounds, z):
    forecast = privacy.noise_cohort(2.0, 1e-6, num_rounds=rounds, **SETTING)
    assert forecast.noise_multiplier * 20 == pytest.approx(z, abs=2e-4)
    assert "not private at that epsilon" in str(forecast)
    if rounds == 1500:
        # Noise on the mean of 50 clients with the clip 0.4.
        assert forecast.noise_multiplier * 0.4 / 50 == pytest.approx(2.465e-4, rel=1e-3)


@pytest.mark.slow
def test_reference_noise_by_renyi_divergences():
    forecast = privacy.noise_cohort(2.0, 1e-6, num_rounds=1500, accountant="rdp", **SETTING)
    assert forecast.noise_multiplier * 20 == pytest.approx(0.71378, abs=2e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_cohort_size": 49}, "noise_cohort_size is 49; expected at least 50"),
        ({"population": 999}, "noise_cohort_size is 1000; expected at most 999"),
        ({"cohort_size": 0}, "cohort_size is 0"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(ValueError, match=message):
        privacy.noise_cohort(2.0, 1e-6, num_rounds=10, **(SETTING | changes))


@pytest.mark.slow
def test_the_guarantee_names_the_accountant_that_counted():
    sizes = {"cohort_size": 5, "noise_cohort_size": 10, "population": 50}
    first, named = (
        privacy.noise_cohort(2.0, 1e-6, num_rounds=10, accountant=name, **sizes)
        for name in (None, "pld")
    )
    assert first.guarantee.accountant == "pld"
    assert first == named
