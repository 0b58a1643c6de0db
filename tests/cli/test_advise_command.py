"""``fedjax-sim advise`` on the digits."""

import functools
import shlex

import pytest

import fedjax_sim as fs
from fedjax_sim.cli import advise as advising
from fedjax_sim.cli.main import main
from fedjax_sim.studies.advice import THEOREMS

TINY = shlex.split(
    "advise quickstart --num-clients 2 --cohort-size 2 --rounds 5 --seeds 2 --batch-size 10"
)


@pytest.mark.slow
def test_advice_for_softmax_regression(capsys, monkeypatch):
    cheap = {"theorems": THEOREMS[:2], "iterations": 3, "num_samples": 4, "local_steps": [2]}
    monkeypatch.setattr(advising, "advise", functools.partial(fs.advise, **cheap))
    options = (
        "--model softmax_regression partition:iid sampling:full "
        "--local-steps 2 --algorithms fedavg --weight-decay 0.1 --target 0.2"
    )
    assert main([*TINY, *options.split()]) == 0
    shown = capsys.readouterr().out
    assert "2 clients, 2 uploads per round, 2 local steps, 5 rounds." in shown
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line}
    assert lines["mu"][1:3] == ["0.1", "given"]  # the weight decay
    assert lines["L"][2] == "given"
    assert lines["B"][2] == "exact"
    assert "for at most 0.2" in shown
    assert "all clients have one objective: zeta is" in shown


def test_bad_targets_are_refused(capsys):
    assert main([*TINY, "--target", "0"]) == 2
    assert "--target is 0.0; expected a positive number" in capsys.readouterr().err
