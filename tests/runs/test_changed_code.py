"""A folder refuses a run whose code changed: helpers, constants, models, evaluations."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from call_records import records

import fedjax_sim as fs
from fedjax_sim.runs.storage.files import FolderError, read_json, write_json


def factor(w):
    return w


def error(w):
    return {"error": factor(w)}


equal = fs.Setup.weighting


def setup_with(loss, eval_fn=error, rounds=4):
    data = fs.FederatedData({"x": np.ones((6, 1), np.float32)}, np.array([0, 2, 6]))
    task = fs.empirical_task(loss, data, fs.with_replacement(2, num_steps=1))
    timeline = fs.timelines.full(rounds, 2, task.num_steps)
    return fs.Setup(task, timeline, np.float32(0), eval_fn=eval_fn, eval_every=2)


def squared(w, batch, key):
    return (batch["x"][:, 0] * w - 2) ** 2


def fourth(w, batch, key):
    return (batch["x"][:, 0] * w - 2) ** 4


@pytest.mark.slow
def test_changed_functions_are_refused_by_name(tmp_path, monkeypatch):
    def go(loss=squared, algorithm=None, **options):
        setup = dataclasses.replace(setup_with(loss), weighting=options.pop("weighting", equal))
        algorithm = algorithm or fs.fedavg(0.1)
        settings = records(folder=tmp_path, **options)
        return fs.simulate(algorithm, setup, jax.random.key(0), **records(**settings))

    def refused(names):
        return pytest.raises(FolderError, match=f"another run: what {names} has changed")

    go()
    with refused("the objective computes"):
        go(fourth)
    with refused("the algorithm computes"):
        go(algorithm=fs.fedavg(0.2))
    with refused("the objective and the algorithm compute"):
        go(fourth, fs.fedavg(0.2))
    with refused("the weighting computes"):
        go(weighting=lambda work: 2 * equal(work))
    with pytest.raises(FolderError, match="another run: execution differ"):
        go(execution=fs.execution.sequential())
    with pytest.raises(FolderError, match="another run: probes differ"):
        go(probes=fs.Probes(server={"mean": lambda update: update.mean}))
    with pytest.raises(FolderError, match="another run: config, objective, spec differ"):
        go(fourth, fs.fedavg(0.2), config={"a": 1})
    assert go().history is None
    monkeypatch.setitem(globals(), "factor", lambda w: 2 * w)
    with refused("the evaluation computes"):
        go()


def test_changed_functions_are_accepted(tmp_path):
    """The folder keeps the digests of both, and the run goes on without the option."""

    def go(loss=squared, rounds=4, **options):
        setup = setup_with(loss, rounds=rounds)
        return fs.simulate(
            fs.fedavg(0.1), setup, jax.random.key(0), **records(folder=tmp_path, **options)
        )

    def known():
        return json.loads((tmp_path / "run.json").read_text())

    go()
    first = known()
    path = tmp_path / "run.json"
    write_json(path, read_json(path, "") | {"jax": "0.0.1"})
    with pytest.raises(FolderError, match=f"JAX was 0.0.1 and is {jax.__version__}; .*accept_chan"):
        go(fourth)
    assert go(fourth, accept_changed_code=True).history is None
    assert known()["accepted"] == [{"jax": "0.0.1", "objective": first["objective"]}]
    assert known()["jax"] == jax.__version__
    assert known()["objective"] != first["objective"]
    assert go(fourth, rounds=6).rounds_done == 6
    assert len(known()["accepted"]) == 1
    with pytest.raises(FolderError, match="what the objective computes"):
        go(squared, rounds=6)
    assert go(squared, rounds=8, accept_changed_code=True).rounds_done == 8
    assert [set(old) for old in known()["accepted"]] == [{"jax", "objective"}] * 2
    with pytest.raises(FolderError, match="another run: config differ"):
        go(squared, rounds=8, accept_changed_code=True, config={"a": 1})


@pytest.mark.slow
def test_another_objective_in_a_sweep_is_refused(tmp_path):
    def go(loss, **options):
        setup = setup_with(loss)
        setup = dataclasses.replace(setup, params=np.zeros(1, np.float32))
        keys = jax.random.split(jax.random.key(0), 1)
        settings = records(folder=tmp_path, **options)
        return fs.sweep(fs.fedavg, setup, {"lr": [0.1]}, keys, **settings)

    assert go(squared).resumed == 0
    assert go(squared).resumed == 1
    with pytest.raises(ValueError, match="another code of algorithm, objective, model"):
        go(fourth)
    assert go(fourth, accept_changed_code=True).resumed == 1
