#!/bin/sh
# pfl-research: of three accountants for Laplace noise one knows sampling, and one takes 1/noise for noise.
#
# Guess: PLD, PRV and RDP accountants with the same arguments give epsilons that differ by little, and ten
# times the noise gives about a tenth.  The PRV accountant hands the noise to prv-accountant as the mean
# of its Laplace variables of scale 1, which is the reciprocal: noise 1 has epsilon 1 and noise 10 has 10.
# PRV and RDP accept a sampling probability and ignore it: with 0.01 PLD's epsilon for noise 1 is 0.017,
# theirs is 1.  A sweep over cohort sizes sees no effect of sampling.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pfl==0.6.0 'numpy<2.5'
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

from pfl.privacy.privacy_accountant import (
    PLDPrivacyAccountant,
    PRVPrivacyAccountant,
    RDPPrivacyAccountant,
)

for package in ("pfl", "dp-accounting", "prv-accountant"):
    print(package, importlib.metadata.version(package))


def epsilon(accountant, noise, probability):
    state = accountant(
        num_compositions=1,
        sampling_probability=probability,
        mechanism="laplace",
        delta=1e-5,
        noise_parameter=noise,
    )
    return float(state.epsilon)


values = {
    name: [epsilon(rule, *setting) for setting in ((1.0, 1.0), (10.0, 1.0), (1.0, 0.01))]
    for name, rule in (
        ("PLD", PLDPrivacyAccountant),
        ("PRV", PRVPrivacyAccountant),
        ("RDP", RDPPrivacyAccountant),
    )
}
for name, (one, ten, sampled) in values.items():
    print(f"{name}: noise 1 {one:.4f}, noise 10 {ten:.4f}, noise 1 with sampling at 0.01 {sampled:.4f}")
assert all(abs(one - 1) < 0.01 for one, _, _ in values.values())
assert abs(values["PLD"][1] - 0.1) < 0.005 and abs(values["RDP"][1] - 0.1) < 0.005
assert abs(values["PRV"][1] - 10) < 0.05
assert values["PLD"][2] < 0.02
assert values["PRV"][2] == values["PRV"][0] and values["RDP"][2] == values["RDP"][0]
PYTHON
