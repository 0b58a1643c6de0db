"""Algorithms that compression with memory takes: uploads are changes of the model."""

import jax
import numpy as np
import pytest
from catalogue import ALGORITHMS, algorithm, hyper
from small_problems import NUM_CLIENTS, logistic_params

import fedjax_sim as fs
from fedjax_sim.compression import random_k, top_k
from fedjax_sim.runs.storage.outcome import visit

pytestmark = pytest.mark.usefixtures("x64")
# Those that the docstring of ef14 names.
TAKEN = """
apfl async_sgd diloco ditto fedacg fedadagrad fedadam fedasam fedavg fedavg_ft fedavg_subgradient
fedavgm feddyn fedlesam fedprox fedsam fedsgd fedswa fedyogi perfedavg pfedme
""".split()


def form(params):
    leaves, structure = jax.tree.flatten(params)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def traced_visit(algorithm):
    """Message, upload and client state, as shapes."""
    timeline = fs.timelines.full(1, NUM_CLIENTS, 3)
    task = fs.Task(lambda *_: None, np.ones(NUM_CLIENTS, np.int32), timeline.num_steps[0])  # pyright: ignore
    setup = fs.Setup(task, timeline, logistic_params())
    return jax.eval_shape(lambda x: visit(algorithm, setup, x), logistic_params())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_other_uploads_are_refused_with_the_reason(name):
    """Shapes suffice to see it, before compilation."""
    plain = algorithm(name, hyper(name))
    has_form = form(traced_visit(plain)[1]) == form(logistic_params())
    if has_form and name not in ("favano_expected", "favano_realised", "quafl"):
        upload = traced_visit(fs.ef21(plain, top_k(1)))[1]
        assert form(upload) == form(logistic_params())
        return
    assert name not in TAKEN
    with pytest.raises(
        ValueError, match=r"expected that of the model|of a part of the model|uploads models, which"
    ):
        traced_visit(fs.ef21(plain, top_k(1)))


def test_the_docstring_names_what_is_taken():
    named = (fs.ef14.__doc__ or "").replace(",", " ").split()
    assert set(TAKEN) <= set(named)


@pytest.mark.parametrize("wrap", [fs.ef14, fs.ef21])
def test_uploads_of_models_are_refused_at_once(wrap):
    with pytest.raises(ValueError, match="algorithm uploads models, which its server averages"):
        wrap(fs.quafl(0.1), top_k(1))


@pytest.mark.parametrize("name", ["feddyn", "fedlesam"])
def test_marina_refuses_clients_with_states(name):
    with pytest.raises(ValueError, match="algorithm has clients that keep state"):
        traced_visit(fs.marina(algorithm(name, hyper(name)), random_k(1), 0.5))
