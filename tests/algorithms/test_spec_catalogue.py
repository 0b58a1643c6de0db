"""Specs of every public factory: equal for equal calls, readable, and with numbers that trace."""

import ast
import functools
import json
import pathlib
import re
import typing

import catalogue
import jax
import numpy as np
import pytest
from small_problems import logistic_params

import fedjax_sim as fs
from fedjax_sim import compression, privacy, prox, robust, selection, transforms
from fedjax_sim.algorithms.fedac import coupling
from fedjax_sim.algorithms.staleness import hinge
from fedjax_sim.compression.quantizers import uniform
from fedjax_sim.local import exponential_decay
from fedjax_sim.types.specs import FACTORIES, Spec, spec_of

DECAY = exponential_decay(0.2, 0.9)
TWO = robust.attacks.some_clients([1, 4], catalogue.NUM_CLIENTS)
PARTIAL = functools.partial

# Their schedules or optimizers are functions that every call makes, or a field is replaced.
WITHOUT_VALUE = {
    "fedavg_schedule", "fedavg_adam_reset", "fedavg_adam_keep", "fedavg_adam_mean", "fedmuon",
    "fedntd", "fedproto",
}  # fmt: skip


def weights(path, leaf):
    del leaf
    return "w" in path


def averaging():
    return fs.fedavg(0.2)


def with_psi(psi, factory=fs.feddualavg, mirror=None):
    return factory(0.2, prox.composite(psi, mirror, weights), 0.8)


def privatized(**arguments):
    given = {"clip": 1.0, "noise_multiplier": 1.0, "expected_uploads": 4.2} | arguments
    return privacy.privatize(averaging(), **given)


def small_rounds(**arguments):
    return privatized(expected_uploads=2.0, **arguments)


def aggregated(make_rule):
    return robust.aggregate(averaging(), make_rule())


def compressed(make_codec):
    return fs.compressed(averaging(), make_codec(), make_codec())


# Calls beside those of the catalogue, so that every factory and every kind of argument occurs.
OTHERS = {
    "ema_rounds": lambda: fs.ema_rounds(fs.fedavg(0.2), 0.9, start=1),
    "fedavg(decay)": lambda: fs.fedavg(exponential_decay(0.2, 0.9)),
    "fedavgm(decay)": lambda: fs.fedavgm(DECAY, exponential_decay(1.0, 0.9)),
    "fedadam(paper)": lambda: fs.fedadam(0.2, 0.1, rule="paper"),
    "fedadagrad(paper)": lambda: fs.fedadagrad(0.2, 0.1, rule="paper"),
    "fedyogi(paper)": lambda: fs.fedyogi(0.2, 0.1, rule="paper"),
    "fedac(II)": lambda: fs.fedac(0.1, 0.3, 4.0, "II", 0.2),
    "fedac(numbers)": lambda: fs.fedac(0.1, 0.3, numbers=coupling(0.1, 0.3, 4.0)),
    "fedmo": lambda: fs.fedmo(0.2),
    "fedmuon": lambda: fs.fedmuon(0.05),
    "fedmoswa(I)": lambda: fs.fedmoswa(0.2, option="I"),
    "fedrep(steps)": lambda: fs.fedrep(0.2, 0.3, head_steps=2.0, where=catalogue.bias),
    "perfedavg(exact)": lambda: fs.perfedavg(0.2, 0.1, hessian="exact"),
    "pfedme(average)": lambda: fs.pfedme(0.2, num_averaged=2),
    "diloco(muon)": lambda: fs.diloco(0.05, exponential_decay(0.7, 0.9), inner="muon"),
    "fedasync(hinge)": lambda: fs.fedasync(0.2, 0.6, hinge(1.0, 2.0)),
    "fedsam(clipped)": lambda: fs.fedsam(
        0.2, 0.1, transform=PARTIAL(transforms.clip_by_global_norm, max_norm=1.0)
    ),
    "zero": lambda: with_psi(prox.Zero()),
    "l1": lambda: with_psi(prox.L1(0.1), fs.fedmid),
    "squared l2": lambda: with_psi(prox.SquaredL2(0.1)),
    "groups": lambda: with_psi(prox.GroupL1(0.1, labels=np.array([0, 1, 1]))),
    "linf": lambda: with_psi(prox.LInf(0.1)),
    "l1 ball": lambda: with_psi(prox.L1Ball(1.0), fs.fedmid),
    "l2 ball": lambda: with_psi(prox.L2Ball(1.0)),
    "box": lambda: with_psi(prox.Box(-1.0), mirror=prox.Hypentropy(1.0)),
    "simplex": lambda: with_psi(prox.Simplex(1.0), mirror=prox.Entropy()),
    "pnorm": lambda: with_psi(prox.L1(0.1), mirror=prox.PNorm(1.5)),
    "scales": lambda: with_psi(prox.L1(0.1), mirror=prox.Weighted(np.ones(3))),
    "skip_nonfinite": lambda: fs.skip_nonfinite(averaging()),
    "fine_tuned": lambda: fs.fine_tuned(averaging(), 0.1, visits=2),
    "fixed_order": lambda: fs.fixed_order(averaging()),
    "freeze": lambda: fs.freeze(averaging(), catalogue.bias),
    "per_step_uploads": lambda: fs.per_step_uploads(averaging(), DECAY),
    "private": lambda: fs.private(averaging(), catalogue.bias, 0.1),
    "running_statistics": lambda: fs.running_statistics(averaging(), catalogue.bias),
    "worker_momentum": lambda: robust.worker_momentum(averaging(), 0.8),
    "transform_oracle": lambda: transforms.transform_oracle(
        averaging(), PARTIAL(transforms.add_decayed_weights, weight_decay=0.1)
    ),
    "alie": lambda: robust.attacks.alie(robust.aggregate(averaging(), robust.mean()), TWO),
    "inner_product": lambda: robust.attacks.inner_product(averaging(), TWO, 0.3),
    "mimic": lambda: robust.attacks.mimic(averaging(), TWO),
    "sign_flip": lambda: robust.attacks.sign_flip(averaging(), TWO, 2.0),
    "scaling": lambda: robust.attacks.scaling(averaging(), TWO.sometimes(0.3), 3.0),
    "gaussian": lambda: robust.attacks.gaussian(averaging(), TWO.sometimes(DECAY), 0.3),
    "infinity": lambda: robust.attacks.infinity(averaging(), TWO),
    "corrupted": lambda: robust.attacks.corrupted(averaging(), 0.2, 0.1),
    "ef14(power_sgd)": lambda: fs.ef14(averaging(), compression.power_sgd(1)),
    "privatize": lambda: privatized(most_examples=None),
    "privatize(parts)": lambda: privatized(clip={"w": 1.0, "b": 0.5}),
    "privatize(adaptive)": lambda: privatized(clip=privacy.adaptive_clip(0.4, count_std=0.6)),
    "privatize(independent)": lambda: privatized(noise=privacy.independent()),
    "privatize(banded)": lambda: small_rounds(noise=privacy.banded([1.0, 0.5], 4)),
    "privatize(tree)": lambda: small_rounds(noise=privacy.tree_aggregation(4)),
    "randomize_uploads": lambda: privacy.randomize_uploads(
        averaging(), privacy.local_gaussian(1.0, 1.0)
    ),
    "priv_unit": lambda: privacy.randomize_uploads(averaging(), privacy.priv_unit(1.0, 2.0)),
}
RULES = {
    "centred_clipping": lambda: robust.centred_clipping(10.0),
    "median": robust.median,
    "trimmed_mean": lambda: robust.trimmed_mean(1),
    "geometric_median": robust.geometric_median,
    "rfa": robust.rfa,
    "krum": lambda: robust.krum(1),
    "multi_krum": lambda: robust.multi_krum(1),
    "bulyan": lambda: robust.bulyan(1),
    "nnm": lambda: robust.nnm(robust.median(1)),
    "bucketing": lambda: robust.bucketing(robust.centred_clipping(5.0)),
}
SELECTORS = {
    "power_of_choice": lambda: selection.power_of_choice(2),
    "proportional": lambda: selection.proportional(2),
    "multinomial": lambda: selection.multinomial(2),
    "oort": lambda: selection.oort(2, durations=np.ones(catalogue.NUM_CLIENTS)),
    "adacomm": lambda: selection.adacomm(2, interval=1),
}
CODECS = {
    "identity": compression.identity,
    "lattice": lambda: compression.lattice(8, 0.1),
    "gaussian_low_rank": lambda: compression.gaussian_low_rank(1),
    "uniform": lambda: compression.uniform(8),
    "luq_codec": compression.luq_codec,
    "scaled_sign": compression.scaled_sign,
    "natural": compression.natural,
    "top_k": lambda: compression.top_k(0.5),
    "random_k": lambda: compression.random_k(0.5),
    "contractive": lambda: compression.contractive(compression.qsgd(8), 2.0),
}
CALLS = (
    {
        name: PARTIAL(make, **values)
        for name, (make, values) in catalogue.ALGORITHMS.items()
        if name not in WITHOUT_VALUE
    }
    | OTHERS
    | {
        name: lambda make=make: robust.aggregate(averaging(), make())
        for name, make in RULES.items()
    }
    | {
        name: lambda make=make: selection.select(averaging(), make())
        for name, make in SELECTORS.items()
    }
    | {
        name: lambda make=make: fs.compressed(averaging(), make(), make())
        for name, make in CODECS.items()
    }
)
# Made for other uses than algorithms, for timelines with a rule of their own, or for classes.
ELSEWHERE = {
    "fedproto": lambda: fs.fedproto(catalogue.two_features, 2, 2, 0.2),
    "fedntd": lambda: fs.fedntd(catalogue.three_logits, 0.2),
    "amplified_banded": lambda: privacy.amplified_banded([1.0, 0.5], 4),
    "mse_clip": uniform.mse_clip,
    "sawb_clip": uniform.sawb_clip,
}
FULL = {"alie", *RULES}
SEPARATE = {"privatize(banded)", "privatize(tree)"}


def timeline_of(name) -> fs.Timeline:
    if name in FULL:
        return catalogue.full_timeline()
    if name in SEPARATE:
        return fs.timelines.cyclic(4, catalogue.NUM_CLIENTS, 2, 3)
    return catalogue.current(name)


def factories_in(spec) -> set[str]:
    values = jax.tree.leaves(spec.arguments, is_leaf=lambda one: isinstance(one, Spec))
    return {spec.name}.union(*(factories_in(one) for one in values if isinstance(one, Spec)))


def own_factories() -> set[str]:
    return {name for name, one in FACTORIES.items() if one.call.__module__.startswith("fedjax_sim")}


@pytest.mark.parametrize("name", [*CALLS, *ELSEWHERE])
def test_equal_calls_have_equal_readable_specs(name):
    make = (CALLS | ELSEWHERE)[name]
    spec = spec_of(make())
    assert spec is not None
    assert spec == spec_of(make())
    assert hash(spec) == hash(spec_of(make()))
    assert spec == spec_of(spec.build())
    moved = jax.tree.map(lambda x: x + 0.25, spec)
    assert moved == spec if not jax.tree.leaves(spec) else moved != spec
    assert " at 0x" not in repr(spec)
    text = json.dumps(spec.to_json(), allow_nan=False)
    assert json.loads(text) == spec.to_json()
    assert " at 0x" not in text


def test_every_factory_of_the_package_occurs():
    specs = [spec_of(make()) for make in (CALLS | ELSEWHERE).values()]
    assert set().union(*map(factories_in, specs)) >= own_factories()


def test_factories_of_the_package_have_different_names():
    decorated = 0
    for path in pathlib.Path(fs.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                decorated += any("specified" in ast.unparse(one) for one in node.decorator_list)
    assert decorated == len(own_factories())


def test_the_page_lists_all_numbers_that_are_structure():
    found = {}
    for name in own_factories():
        factory = FACTORIES[name]
        types = typing.get_type_hints(factory.call)
        for parameter in factory.signature.parameters:
            kinds = typing.get_args(types[parameter]) or (types[parameter],)
            if parameter in factory.static or int in kinds:
                found.setdefault(parameter, set()).add(name)
    page = pathlib.Path(fs.__file__).parent.parent / "docs" / "your_own.md"
    rows = [line.split("|")[1:3] for line in page.read_text().splitlines() if line.count("|") == 4]
    rows = [[set(re.findall(r"`(\w+)`", cell)) for cell in row] for row in rows]
    listed = [row for row in rows if row[0] & found.keys()]
    assert set.union(*(parameters for parameters, _ in listed)) == found.keys()
    for parameters, factories in listed:
        assert factories == set.union(*(found[parameter] for parameter in parameters))


def test_every_algorithm_has_a_spec():
    assert set(fs.algorithms.__all__) - {"gradient_controls"} <= own_factories()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in CALLS if n in catalogue.REPRESENTATIVES or n not in catalogue.ALGORITHMS]
)
def test_all_floating_numbers_can_be_traced(name):
    """Also: a build from the leaves is the program of the call.

    Runs with other numbers show it for the algorithms of the catalogue (test_programs.py).
    """
    setup = fs.Setup(catalogue.task(), timeline_of(name), logistic_params())

    def trained(algorithm):
        return fs.run(algorithm, setup, jax.random.key(0))[0]

    algorithm = CALLS[name]()
    spec = spec_of(algorithm)
    assert spec is not None
    built = jax.tree.map(lambda x: x, spec).build()
    programs, (of_numbers, _) = zip(
        *(
            jax.make_jaxpr(functools.partial(trained, one), return_shape=True)()
            for one in (algorithm, built)
        ),
        strict=True,
    )
    assert _text(programs[0]) == _text(programs[1])
    of_tracers = jax.eval_shape(lambda spec: trained(spec.build()), spec)
    assert jax.tree.map(_form, of_tracers) == jax.tree.map(_form, of_numbers)


def _text(program) -> str:
    return re.sub(r"0x[0-9a-f]+", "", str(program))


def _form(leaf) -> str:
    return f"{leaf.dtype}{leaf.shape}"
