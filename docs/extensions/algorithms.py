"""Writes docs/algorithms.md from the registry of the command line and from tracing.

`make pictures` runs it.  A test compares the committed page.
"""

import inspect
import pathlib
import re
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

import fedjax_sim as fs
from fedjax_sim.cli import docstrings
from fedjax_sim.studies.setups import ALGORITHMS, AlgorithmEntry

FILE = pathlib.Path(__file__).parents[1] / "algorithms.md"
# Modules that use an algorithm in a paper's experiment; the others run in the quickstart.
EXPERIMENTS = {
    "experiments.fedswa.table2": "fedswa fedmoswa feddyn fedacg fedsam mofedsam fedasam fedlesam",
    "experiments.fedswa.table3": "fedgamma fedsmoo",
    "experiments.fedswa.tables5_6": "fedmo",
    "experiments.fedac.a9a": "fedac mb_sgd mb_ac_sgd",
    "experiments.fedac.agd_instability": "agd",
    "experiments.fco.lasso": "fedmid fedmid_osp feddualavg feddualavg_osp",
    "experiments.favano.mnist": "favano quafl fedbuff fedasync async_sgd",
}
# Options without which the quickstart does not suit an algorithm.
OPTIONS = {
    "fedlin": ("sampling:pairs",),
    "mime": ("sampling:pairs",),
    "scaffnew": ("sampling:geometric", "--local-steps 10"),
    "streaming_diloco": ("sampling:full",),
}
HEAD = """# Algorithms

<!-- written by docs/extensions/algorithms.py: `make pictures` -->

Every algorithm is one file and one function that returns a `fs.FedAlgorithm`;
[How to choose](choosing.md) says which one fits a problem. This page is written from the functions:
formulas and options from their docstrings, costs by tracing them.

* *Gradients per step*: minibatch gradients per local step of a client. "Full" is a gradient over
  all examples of a client.
* *Download*, *upload*, *client state*: numbers per client and round, in multiples of the model.
* *Stale reports*: whether the algorithm runs on asynchronous timelines.

Defaults are those of the command line, where `fedjax-sim list` prints the options. All algorithms
also take `--clip` and `--weight-decay`, and those with a schedule of rates `--lr-decay`.

| algorithm | paper | gradients per step | download | upload | client state | stale reports |
|---|---|---|---|---|---|---|
"""
SIZE = 1000  # of the model whose messages are counted
STEPS = 6  # of the visit that is traced: a multiple of the minibatches of a meta-step


class Cost(NamedTuple):
    """Cost of an algorithm, by tracing it on a model of known size."""

    step_gradients: float  # minibatch gradients per local step
    visit_gradients: int  # further minibatch gradients per visit, outside of the local loop
    full_gradients: int  # gradients over all of a client's data, per visit
    download: float  # elements of a message, in models
    upload: float
    client_state: float
    server_state: float


def cost(algorithm: fs.FedAlgorithm) -> Cost:
    """Returns an algorithm's gradients per step and sizes of messages and states."""
    params = {
        "body": {"kernel": jnp.zeros((SIZE // 20 - 6, 20))},
        "head": {"kernel": jnp.zeros((5, 20))},  # private in some algorithms
        "norm": {"scale": jnp.zeros(20)},  # private in FedBN
    }
    server = algorithm.init(params)
    key = jax.random.key(0)
    message = algorithm.broadcast(server, fs.Round(jnp.array(0), jnp.array(2), 4, key))
    client = algorithm.init_client(params)
    zero, one = jnp.array(0), jnp.array(1)

    def local(message: Any, client: Any) -> tuple[Any, Any]:
        oracle = fs.Oracle(
            grad=jax.jit(_named("minibatch", lambda params, step: params)),
            loss=jax.jit(_named("loss", lambda params, step: params["body"]["kernel"].sum())),
            full_grad=jax.jit(_named("full", lambda params: params)),
            full_loss=jax.jit(_named("full_loss", lambda params: params["body"]["kernel"].sum())),
            mean=lambda function, *step: _counted_term,
        )
        work = fs.Work(zero, zero, jnp.array(STEPS), one, zero, key, max_steps=STEPS)
        return algorithm.local(message, client, oracle, work)

    traced, (upload, _) = jax.make_jaxpr(local, return_shape=True)(message, client)
    calls = _calls(traced.jaxpr)
    return Cost(
        calls["minibatch", True] / STEPS,
        calls["minibatch", False],
        calls["full", False] + calls["full", True],
        *(_models(part) for part in (message, upload, client, server)),
    )


@jax.custom_vjp
def _counted_term(*models: Any) -> jax.Array:
    """The mean of a term, whose gradient counts as one of a minibatch."""
    return jnp.zeros(())


def _counted_gradient(models: tuple, cotangent: jax.Array) -> tuple:
    minibatch = jax.jit(_named("minibatch", lambda params: params))
    return minibatch(models[0]), *jax.tree.map(jnp.zeros_like, models[1:])


_counted_term.defvjp(lambda *models: (jnp.zeros(()), models), _counted_gradient)


def _named(name: str, function: Any) -> Any:
    function.__name__ = name
    return function


def _calls(jaxpr: Any, inside: bool = False, repeats: int = 1) -> Counter:
    """Calls of the oracle's functions by name and by whether they are inside of a loop.

    Minibatch gradients count as often as their loops run.
    """
    total: Counter = Counter()
    for equation in jaxpr.eqns:
        name = equation.params.get("name")
        if name in ("minibatch", "loss", "full"):
            total[name, inside] += repeats if name == "minibatch" else 1
            continue
        loop = inside or equation.primitive.name in ("scan", "while")
        times = repeats * (equation.params["length"] if equation.primitive.name == "scan" else 1)
        parts = [_calls(sub, loop, times) for sub in jaxprs_in_params(equation.params)]
        if equation.primitive.name == "cond":
            for key in {key for part in parts for key in part}:
                total[key] += max(part[key] for part in parts)
        else:
            for part in parts:
                total += part
    return total


def _models(tree: Any) -> float:
    return sum(leaf.size for leaf in jax.tree.leaves(tree)) / SIZE


def page() -> str:
    """Returns the page: a table, and a section per algorithm."""
    entries = ALGORITHMS
    costs = {name: cost(entry.build(entry.hyper_defaults)) for name, entry in entries.items()}
    rows = [
        f"| [`{name}`](#{name}) | {docstrings.paper(entry)} | {_gradients(costs[name])} | "
        f"{costs[name].download:.3g} | {costs[name].upload:.3g} | {_state(costs[name])} | "
        f"{'yes' if _asynchronous(entry) else 'no'} |"
        for name, entry in entries.items()
    ]
    return HEAD + "\n".join([*rows, "", *map(_section, entries.values())])


def _gradients(cost: Cost) -> str:
    text = [f"{cost.step_gradients:.3g}"] if cost.step_gradients else []
    text += [f"{cost.visit_gradients} per visit"] if cost.visit_gradients else []
    text += [f"{cost.full_gradients} full per visit"] if cost.full_gradients else []
    return " + ".join(text)


def _state(cost: Cost) -> str:
    return f"{cost.client_state:.3g}" if cost.client_state else "none"


def _asynchronous(entry: AlgorithmEntry) -> bool:
    return entry.build(entry.hyper_defaults).requires.synchronous is None


def _section(entry: AlgorithmEntry) -> str:
    doc = inspect.getdoc(entry.factory) or ""
    module = entry.factory.__module__
    file = module.rpartition(".")[2]
    text = [
        f"## {entry.name}\n",
        markdown(doc.partition("\n\n")[0]),
        *(f"\n$$\n{_aligned(formula)}\n$$\n" for formula in formulas(doc)),
        f"{docstrings.paper(entry)}. `fs.{entry.name}` in "
        f"[{file}.py](../{module.replace('.', '/')}.py). {_experiment(entry.name)}\n",
    ]
    described = docstrings.descriptions(entry)
    if entry.hyper_defaults:
        text.append("| option | default | meaning |\n|---|---|---|")
    for key, default in entry.hyper_defaults.items():
        text.append(
            f"| `{key}` | {default} | {described.get(key, '').replace('|', chr(92) + '|')} |"
        )
    return "\n".join(text) + "\n"


def _experiment(name: str) -> str:
    for module, names in EXPERIMENTS.items():
        if name in names.split():
            return f"Used by `python -m {module}`."
    options = "".join(f" {option}" for option in OPTIONS.get(name, ()))
    return f"Run it: `fedjax-sim run quickstart{options} --algorithms {name}`."


def formulas(doc: str) -> list[str]:
    """Returns the displayed formulas of a docstring."""
    blocks = re.findall(r"^( *)\.\. math::(.*\n(?:\1 +.*\n|[ ]*\n)*)", doc + "\n", re.MULTILINE)
    lines = ([line.strip() for line in block.strip().splitlines()] for _, block in blocks)
    return [upright("\n".join(block)) for block in lines]


def upright(formula: str) -> str:
    r"""Returns a formula with ``\mathrm`` for ``\operatorname``, which pages on GitHub refuse.

    A thin space separates the name from a letter or a number, as ``\operatorname`` does.
    """
    sub = r"(?:_(?:\{[^{}]*\}|\w))?"
    after = r"(?=[\\\w])(?!\\(?:q?quad|big))"  # no bracket and no space
    spaced = re.sub(rf"(\\operatorname\{{\w+\}}{sub}) +{after}", r"\1\\, ", formula)
    return spaced.replace(r"\operatorname", r"\mathrm")


def _aligned(formula: str) -> str:
    """Returns a formula with its alignment named, which Sphinx's directive adds by itself."""
    lines = "\\\\" in formula and r"\begin" not in formula
    return f"\\begin{{aligned}}\n{formula}\n\\end{{aligned}}" if lines else formula


def markdown(text: str) -> str:
    """Returns a paragraph of reStructuredText as Markdown."""
    text = re.sub(r":math:`([^`]*)`", lambda formula: f"${upright(formula[1])}$", text)
    text = re.sub(r":\w+:`([^`]*)`", lambda role: f"`{_short(role[1])}`", text)
    return text.replace("``", "`")


def _short(target: str) -> str:
    name = target.rpartition(".")[2]
    return f"fs.{name}" if name in fs.__all__ else name


if __name__ == "__main__":
    FILE.write_text(page())
