"""Factories: published defaults; numbers outside of their ranges are refused, traced ones pass."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import fedjax_sim as fs
from fedjax_sim.algorithms.staleness import expected_steps, hinge, polynomial
from fedjax_sim.prox import ElasticNet, composite

REQUIRED = {
    "lr": 0.1,
    "server_lr": 0.1,
    "mu": 0.1,
    "probability": 0.5,
    "smoothness": 2.0,
    "num_clients": 3,
    "composite": composite(ElasticNet(0.1, 0.1)),
    "alpha": expected_steps(jnp.ones(3)),
}
ANY_SIGN = {"tilt"}
FACTORIES = {
    name: inspect.signature(getattr(fs, name), eval_str=True)
    for name in fs.algorithms.__all__
    if name != "gradient_controls"
}
NUMBERS = [
    (name, key)
    for name, signature in FACTORIES.items()
    for key, parameter in signature.parameters.items()
    if "float" in str(parameter.annotation) and key not in ANY_SIGN
]


def build(name, **hyper):
    needed = [
        key
        for key, parameter in FACTORIES[name].parameters.items()
        if parameter.default is parameter.empty or key == "lr"
    ]
    return getattr(fs, name)(**({key: REQUIRED[key] for key in needed} | hyper))


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # Reddi et al. (2021)
        ("fedadagrad", {"eps": 1e-3}),
        ("fedadam", {"b1": 0.9, "b2": 0.99, "eps": 1e-3}),
        ("fedyogi", {"b1": 0.9, "b2": 0.99, "eps": 1e-3}),
        ("fedexp", {"eps": 1e-3}),
        ("mime", {"momentum": 0.9}),
        ("mimelite", {"momentum": 0.9}),
        ("fedcm", {"mix": 0.1}),
        ("fedadamw", {"correction": 0.5, "weight_decay": 0.01, "b1": 0.9, "b2": 0.999}),
        ("fedmuon", {"mix": 0.5, "momentum": 0.98, "weight_decay": 0.01, "b1": 0.9, "b2": 0.95}),
        ("diloco", {"server_lr": 0.7, "momentum": 0.9, "weight_decay": 0.1, "b2": 0.95}),
        ("streaming_diloco", {"server_lr": 0.4, "momentum": 0.9, "mix": 0.5}),
        ("ditto", {"mu": 1.0, "personal_lr": None, "personal_steps": None}),
        ("pfedme", {"mu": 15.0, "personal_lr": 0.09, "inner_steps": 5, "server_lr": 1.0}),
        ("apfl", {"adaptive": False, "order": "before"}),
        ("perfedavg", {"adapt_lr": None, "hessian": "FO", "delta": 1e-3, "adapt_steps": 1}),
        ("ifca", {"average": "models", "losses": "all"}),
        ("fedbabu", {"tuning_lr": None, "visits": 5}),
        ("fedavg_ft", {"tuning_lr": None, "visits": 5, "where": None}),
    ],
)
def test_defaults_are_the_published_ones(name, published):
    defaults = {key: FACTORIES[name].parameters[key].default for key in published}
    assert defaults == published


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_negative_numbers(name, key):
    with pytest.raises(ValueError, match=f"{key} is -0.1; expected "):
        build(name, **{key: -0.1})


@pytest.mark.parametrize(("name", "key"), [pair for pair in NUMBERS if pair != ("ditto", "mu")])
def test_arrays_of_numbers(name, key):
    """A grid as one array would multiply a model of fitting shape entry by entry."""
    with pytest.raises(ValueError, match=rf"{key}.* has shape \(2,\); expected one number"):
        build(name, **{key: jnp.array([0.1, 0.2])})


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_text_of_numbers(name, key):
    """YAML reads 1e-3 as text."""
    with pytest.raises(ValueError, match=f"{key} is '1e-3'; expected a number, not text"):
        build(name, **{key: "1e-3"})


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_schedules_of_numbers(name, key):
    """Either the signature admits schedules, or the message names the argument."""
    if "Callable" in str(FACTORIES[name].parameters[key].annotation):
        build(name, **{key: lambda round: 0.1})
    else:
        with pytest.raises(ValueError, match=f"{key} is <function .*; expected a number, not a"):
            build(name, **{key: lambda round: 0.1})


@pytest.mark.parametrize(
    ("name", "key", "value", "expected"),
    [
        *((name, "momentum", 1.0, r"a number in \[0, 1\)") for name in (
            "fedavgm", "fedacg", "fednova", "fedmuon", "mimelite", "mime", "diloco",
            "streaming_diloco",
        )),
        ("agd", "mu", 3.0, "at most the smoothness, 2.0"),
        *((name, "b2", 1.0, r"a number in \[0, 1\)") for name in (
            "fedadam", "fedyogi", "fedadamw", "fedmuon", "diloco", "streaming_diloco",
        )),
        *((name, "mix", 0.0, "a positive number") for name in (
            "fedcm", "mofedsam", "scaffold_m", "fedmuon",
        )),
        *((name, "mix", 1.5, "at most 1") for name in (
            "fedcm", "scaffold_m", "fedmuon", "fedasync", "streaming_diloco",
        )),
        ("scaffnew", "probability", 0.0, "a positive number"),
        ("scaffnew", "probability", 1.5, "at most 1"),
        ("feddyn", "mu", 0.0, "a positive number"),
        ("fedac", "mu", 0.0, "a positive number"),
        ("fedrep", "head_steps", 2.5, "a whole number"),
        *((name, key, 2.5, "an integer") for name, key in (
            ("ditto", "personal_steps"), ("pfedme", "inner_steps"), ("pfedme", "num_averaged"),
            ("perfedavg", "adapt_steps"), ("fedavg_ft", "visits"), ("fedbabu", "visits"),
            ("ifca", "num_models"), ("afl", "num_clients"), ("streaming_diloco", "num_fragments"),
            ("streaming_diloco", "delay"),
        )),
    ],
)  # fmt: skip
def test_ranges(name, key, value, expected):
    with pytest.raises(ValueError, match=f"{key} is {value}; expected {expected}"):
        build(name, **{key: value})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: polynomial(-0.5), "power is -0.5"),
        (lambda: hinge(-1, 1.0), "patience is -1"),
        (lambda: hinge(4, -1.0), "slope is -1.0"),  # else infinite at a staleness of 5
    ],
)
def test_weights_by_staleness(build, message):
    with pytest.raises(ValueError, match=f"{message}; expected at least 0"):
        build()


def inside_jit(build):
    """Builds within a traced function, where comparing two concrete arrays gives a tracer."""
    jax.eval_shape(lambda: (build(), 0)[1])


@pytest.mark.parametrize("name", FACTORIES)
def test_concrete_arrays_inside_jit(name):
    numbers = REQUIRED | {"head_steps": 1.0}
    hyper = {key: jnp.asarray(numbers[key]) for key in ("lr", "mu", "smoothness", "head_steps")}
    hyper |= {key: jnp.asarray(0.5) for owner, key in NUMBERS if owner == name and key not in hyper}
    taken = {key: hyper[key] for key in FACTORIES[name].parameters if key in hyper}
    inside_jit(lambda: build(name, **taken))


def test_concrete_arrays_of_noise_inside_jit():
    clip = fs.privacy.adaptive_clip(count_std=jnp.asarray(1.0))
    noise, uploads = jnp.asarray(1.0), jnp.asarray(3.0)
    inside_jit(lambda: fs.privacy.privatize(fs.fedavg(0.1), clip, noise, expected_uploads=uploads))


def test_traced_numbers_and_schedules_pass():
    def norm(lr):
        params = fs.fedcm(lr, mix=lr).init(jnp.ones(1)).params
        fs.fedavg(lambda round: lr)
        return params.sum()

    assert float(jax.jit(norm)(-1.0)) == 1
    fs.fedavg(lambda round: -1.0)
