"""Factories: published defaults; what is refused at the call and at the start of a run."""

import dataclasses
import inspect

import bilinear
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import current_timeline, task
from instance_q import setup
from small_problems import logistic_params, logistic_task

import fedjax_sim as fs
from fedjax_sim import prox
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
    "model": lambda params, x: x,
    "features": lambda params, x: x,
    "pool": np.zeros((2, 3)),
    "num_classes": 2,
    "width": 3,
}
ANY_SIGN = {"tilt"}
OR_NUMBERS = {("fedac", "mu")}  # needed unless numbers are given
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
        if parameter.default is parameter.empty or key == "lr" or (name, key) in OR_NUMBERS
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
        ("fedala", {"weight_lr": 1.0}),
        ("feddf", {"steps": 1000, "batch_size": 128, "distill_lr": 1e-3}),
        ("fedproto", {"weight": 1.0, "average": "clients"}),
        ("fedntd", {"weight": 1.0, "temperature": 1.0}),
        ("moon", {"weight": 1.0, "temperature": 0.5}),
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
        *((name, "mix", value, r"a number in \(0, 1\]") for value in (0.0, 1.5) for name in (
            "fedcm", "mofedsam", "scaffold_m", "fedmuon",
        )),
        *((name, "mix", 1.5, r"a number in \[0, 1\]") for name in (
            "fedasync", "fedspeed", "streaming_diloco",
        )),
        *(("scaffnew", "probability", value, r"a number in \(0, 1\]") for value in (0.0, 1.5)),
        ("feddyn", "mu", 0.0, "a positive number"),
        ("fedac", "mu", 0.0, "a positive number"),
        ("fedrep", "head_steps", 2.5, "a whole number"),
        *((name, key, 2.5, "an integer") for name, key in (
            ("ditto", "personal_steps"), ("pfedme", "inner_steps"), ("pfedme", "num_averaged"),
            ("perfedavg", "adapt_steps"), ("fedavg_ft", "visits"), ("fedbabu", "visits"),
            ("ifca", "num_models"), ("afl", "num_clients"), ("streaming_diloco", "num_fragments"),
            ("streaming_diloco", "delay"),
        )),
        *((name, key, 0, "at least 1") for name, key in (
            ("ditto", "personal_steps"), ("pfedme", "inner_steps"), ("ifca", "num_models"),
            ("afl", "num_clients"), ("fedavg_ft", "visits"),
        )),
        ("apfl", "alpha", 2, r"a number in \[0, 1\]"),
        ("fedac", "lr", 0.0, "a positive number"),
        ("fedrep", "head_share", 1.5, r"a number in \[0, 1\]"),
        ("fedrep", "head_steps", -1, "at least 0"),
        ("perfedavg", "delta", 0, "a positive number"),
    ],
)  # fmt: skip
def test_ranges(name, key, value, expected):
    with pytest.raises(ValueError, match=f"{key} is {value}; expected {expected}"):
        build(name, **{key: value})


@pytest.mark.parametrize(
    ("name", "key", "value", "expected"),
    [
        ("apfl", "order", "first", "'before' or 'after'"),
        ("averaged_fedavg", "at", "middle", "'start' or 'end'"),
        ("diloco", "inner", "sgd", "'adamw' or 'muon'"),
        ("favano", "output", "clients", "'server' or 'mean'"),
        ("fedac", "variant", "III", "'I', 'II' or 'vanilla'"),
        ("fedadamw", "blocks", "all", "'leaf' or 'entry'"),
        ("fedadamw", "first_count", "all", "'visit' or 'run'"),
        ("fedmid", "delta_space", "both", "'primal' or 'dual'"),
        ("fedmid_osp", "delta_space", "both", "'primal' or 'dual'"),
        ("fedmoswa", "option", "III", "'I', 'I-minibatch' or 'II'"),
        ("fedmoswa", "schedule", "cosine", "'k_over_K'"),
        ("fedrep", "where", "head", "a predicate"),
        ("fedswa", "schedule", "cosine", "'k_over_K' or 'k_over_Km1'"),
        ("ifca", "average", "means", "'models' or 'gradients'"),
        ("ifca", "losses", "some", "'all' or 'minibatches'"),
        ("mime", "form", "sum", "'ema' or 'trace'"),
        ("perfedavg", "hessian", "SO", "'FO', 'HF' or 'exact'"),
        *(("scaffold", "option", option, "'I' or 'II'") for option in (1, "2", "i", None)),
        ("streaming_diloco", "inner", "sgd", "'adamw' or 'muon'"),
    ],
)
def test_options(name, key, value, expected):
    with pytest.raises(ValueError, match=f"{key} is {value!r}; expected {expected}"):
        build(name, **{key: value})


SGD = optax.sgd(0.1)
NO_RATE = "lr is None; expected a learning rate, or local_optimizer"
COMPOSITE = ("fedmid", "fedmid_osp", "feddualavg", "feddualavg_osp", "fedavg_subgradient")
FEDAC = {"lr": 0.1, "mu": 0.1, "num_steps": 4}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("async_sgd", {"lr": 0.1, "patience": 3}, "patience is 3 and bound None; expected both or"),
        ("async_sgd", {"lr": 0.1, "bound": 1.0}, "patience is None and bound 1.0; expected both"),
        *((name, {}, NO_RATE) for name in ("fedavg", "diloco", "streaming_diloco")),
        *(
            (name, {"lr": 0.1, "local_optimizer": SGD}, "lr is 0.1 beside local_optimizer")
            for name in ("fedavg", "diloco", "streaming_diloco")
        ),
        ("fedavg", {"lr": 0.1, "local_state": "keep"}, "local_state is 'keep' without local_opt"),
        (
            "fedavg", {"local_optimizer": SGD, "local_state": "kept"},
            "local_state is 'kept'; expected 'reset', 'keep' or 'mean'",
        ),
        ("mimelite", {}, "lr is None; expected a learning rate, or optimizer"),
        *(
            (name, {"optimizer": SGD} | given, f"{key}; expected the default, .*, with optimizer")
            for name in ("mimelite", "mime")
            for key, given in {
                "momentum is 0.5": {"momentum": 0.5}, "form is 'trace'": {"form": "trace"},
            }.items()
        ),
        *(
            ("perfedavg", {"lr": 0.1, "delta": 0.01, "hessian": kind}, "0.01; .*, with hessian=")
            for kind in ("FO", "exact")
        ),
        *(
            (name, {"lr": 0.1, "composite": prox.L1(0.2)}, r"composite is L1\(.*; expected prox")
            for name in (*COMPOSITE, "averaged_feddualavg")
        ),
        (
            "fedavg_subgradient", {"lr": 0.1, "composite": composite(prox.L1Ball(1.0))},
            "expected a penalty, not a constraint",
        ),
        (
            "fedavg_subgradient",
            {"lr": 0.1, "composite": composite(prox.L1(0.1), prox.PNorm(1.5))},
            "expected Euclidean",
        ),
        ("fedac", FEDAC | {"mu": 20.0}, "lr .* mu is 2, with lr 0.1 and mu 20.0; expected at most"),
        ("fedac", FEDAC | {"mu": 10.0, "variant": "II"}, "lr .* mu is 1, .* expected below 1"),
        ("fedac", FEDAC | {"numbers": (0.1, 2)}, r"numbers is \(0.1, 2\); expected a tuple \(g"),
        ("fedac", FEDAC | {"numbers": (-0.1, 2, 3)}, "numbers, gamma is -0.1; expected at"),
        ("fedac", FEDAC | {"numbers": (0.1, 0.5, 3)}, "numbers, alpha is 0.5; expected at"),
        ("fedac", {"lr": 0.1, "mu": None}, "mu is None; expected a positive number un"),
        ("fedac", {"lr": lambda t: 0.1, "mu": 0.0}, "mu is 0.0; expected a positive"),
        ("fedac", {"lr": lambda t: 0.1, "mu": 1.0, "variant": "III"}, "variant is 'III'; expected"),
    ],
)  # fmt: skip
def test_arguments_that_contradict_each_other(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(fs, name)(**arguments)


def on_q(lost=None, rounds=2, **options):
    """Instance Q with all clients, of whose uploads some are lost."""
    timeline = fs.timelines.full(rounds, 2, 5)
    lost = None if lost is None else np.broadcast_to(np.array(lost, bool), (rounds, 2))
    return setup(dataclasses.replace(timeline, lost=lost), **options)


def weighted():
    return dataclasses.replace(setup(), weighting=fs.weight_by_examples)


def one_client_per_round():
    return setup(fs.timelines.cyclic(4, 2, 1, 5))


def stale():
    """Client 0 weighs its loss against an offset of another round than client 1."""
    version = np.array([[0, 0], [0, 1]], np.int32)
    timeline = fs.timelines.full(2, 2, 5)
    return setup(dataclasses.replace(timeline, version=version, max_staleness=1))


def short(given):
    """Visits of two steps, in a timeline that allows more."""
    two = np.full_like(given.timeline.num_steps, 2)
    return dataclasses.replace(given, timeline=dataclasses.replace(given.timeline, num_steps=two))


def logistic():
    return fs.Setup(task(), current_timeline(), logistic_params())


ALL_LOST = [[False] * 2, [True] * 2]
# At the start of a run: an algorithm, a setup and the message.
AT_START = {
    "afl": (lambda: fs.afl(0.1, 4), setup, "num_clients is 4; expected 2, the clients of the task"),
    "afl, weights": (lambda: fs.afl(0.1, 2), weighted, "uniform_weights: the clients' weights are"),
    "ditto": (lambda: fs.ditto(0.1, jnp.ones(3)), setup, r"mu has the shape \(3,\); expected \(2,"),
    "fedac": (lambda: fs.fedac(0.1, 0.1, 32), setup, r"num_steps is 32; expected 5 \.\. 5, the l"),
    "fedac, 4": (lambda: fs.fedac(0.1, 0.1, 4), setup, r"num_steps is 4; expected 5 \.\. 5, the l"),
    "fedac, 1/2": (lambda: fs.fedac(0.1, 0.1, 0.5), setup, r"num_steps is 0.5; expected 5 \.\. 5"),
    "fedlin": (lambda: fs.fedlin(0.1), one_client_per_round, "rounds 0 and 1 .* different cohorts"),
    "fedrep": (
        lambda: fs.fedrep(0.1, head_steps=3, where=bilinear.head), lambda: bilinear.setup(3),
        "head_steps is 3; expected less than 3, the most local steps of a visit",
    ),
    "fedrep, short visits": (
        lambda: fs.fedrep(0.1, head_steps=3, where=bilinear.head), lambda: short(bilinear.setup(5)),
        "head_steps is 3; expected less than 2, the most local steps of a visit",
    ),
    "fedvarp": (
        lambda: fs.fedvarp(0.1), lambda: on_q(np.eye(2)),
        "lost has 2 lost uploads; expected none: the server",
    ),
    "fedvarp, weights": (
        lambda: fs.fedvarp(0.1), weighted,
        "weighting is weight_by_examples; expected uniform_weights: the server's memory",
    ),
    "ifca": (
        lambda: fs.ifca(0.1, 3, initial_models=lambda x: jnp.stack([x, x])), setup,
        r"shapes \[\(2, 1\)\]; expected \[\(3, 1\)\], one model",
    ),
    "mime": (lambda: fs.mime(0.1), one_client_per_round, "rounds 0 and 1 .* different cohorts"),
    "mime, lost": (
        # The server would have the mean gradient at an older model.
        lambda: fs.mime(0.1), lambda: on_q([*ALL_LOST[::-1], *ALL_LOST[:1] * 2], rounds=4),
        "round 0 of the timeline loses all uploads; expected at l",
    ),
    "perfedavg": (
        lambda: fs.perfedavg(0.1, hessian="HF"), lambda: setup(num_steps=2),
        r"num_steps is at most 2; expected visits of at least 3 local .* \(hessian='HF'\)",
    ),
    "perfedavg, short visits": (
        lambda: fs.perfedavg(0.1, hessian="HF"), lambda: short(setup(num_steps=5)),
        r"num_steps is at most 2; expected visits of at least 3 local .* \(hessian='HF'\)",
    ),
    "pfedme": (
        lambda: fs.pfedme(0.1, num_averaged=3), setup,
        "num_averaged is 3; expected at most 2, the clients",
    ),
    "scaffnew": (
        lambda: fs.scaffnew(0.1, 0.2), one_client_per_round,
        "a round of the timeline has 1 of 2 clients",
    ),
    "scaffnew, lost": (
        lambda: fs.scaffnew(0.1, 0.2), lambda: on_q(ALL_LOST),
        "a round of the timeline has 0 of 2 clients",
    ),
    "scaffnew, steps": (
        lambda: fs.scaffnew(0.1, 0.2), lambda: setup(num_steps=(1, 9)),
        "visits of 1 to 9 steps; expected the same number",
    ),
    "term": (lambda: fs.term(0.1), stale, "expected none: the offset of all exponents"),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_START)
def test_setups_that_are_refused(name):
    make, given, message = AT_START[name]
    with pytest.raises(ValueError, match=message):
        fs.init(make(), given())


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: fs.fedrep(0.1, head_steps=2, where=bilinear.head), lambda: bilinear.setup(3)),
        (lambda: fs.fedvarp(0.1), lambda: on_q(np.zeros((2, 2)))),
        # Some gradients of a round are lost, or all uploads of steps.
        (lambda: fs.mime(0.1), lambda: on_q([[True, False], [True, True]])),
        *((lambda steps=steps: fs.fedac(0.1, 0.1, steps), logistic) for steps in (2, 4, 10)),
    ],
)
def test_setups_that_are_not(make, given):
    fs.init(make(), given())


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ditto", "personal_lr"),
        ("fedexp", "eps"),
        ("fedgloss", "server_lr"),
        ("fedrep", "head_lr"),
        ("perfedavg", "adapt_lr"),
        ("pfedme", "personal_lr"),
    ],
)
def test_mistakes_in_schedules_have_the_name_of_the_argument(name, key):
    """All were called lr."""
    algorithm = build(name, **{key: lambda: 0.1})
    given = bilinear.setup(3) if name == "fedrep" else setup()
    with pytest.raises(ValueError, match=f"^{key} fails for a traced round"):
        fs.run(algorithm, given, jax.random.key(0))


def test_too_many_steps_of_a_traced_timeline():
    given = fs.Setup(logistic_task(), fs.timelines.full(2, 8, 5), logistic_params())
    with pytest.raises(ValueError, match=r"num_steps is 32; expected 0 \.\. 5, the local"):
        jax.eval_shape(lambda given: fs.init(fs.fedac(0.1, 0.1, 32), given), given)


@pytest.mark.parametrize("make", [fs.term, fs.q_fedavg])
def test_tasks_without_a_loss(make):
    given = setup(rounds=1)

    def oracle(client, key, max_steps):
        return given.task.oracle(client, key, max_steps)._replace(full_loss=None)

    other = fs.Task(oracle, given.task.num_examples, given.task.num_steps)
    with pytest.raises(ValueError, match="full_loss is None; expected a task whose oracle"):
        fs.run(make(0.1), dataclasses.replace(given, task=other), jax.random.key(0))


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
    taken |= {"hessian": "HF"} if name == "perfedavg" else {}  # which uses delta
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
