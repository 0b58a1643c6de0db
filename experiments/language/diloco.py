"""DiLoCo beside data-parallel AdamW: loss against tokens and against communication.

    python -m experiments.language.diloco

Workers train a character transformer on contiguous shards of one text.  DiLoCo's local steps,
workers and outer rates are one sweep; data-parallel AdamW takes the same steps with the same tokens
and sends a gradient in each.  The text is generated, see ``experiments.language.words``, unless
``--text`` names a file.
"""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import optax
import tyro

import fedjax_sim as fs
from experiments.harness import Folders, check_grid, save_report, seed_keys, settings, swept
from experiments.language.diloco_report import build, curves, summary
from experiments.language.words import language
from fedjax_sim.checks import check_at_least, check_positive

PARALLEL, DILOCO = "data-parallel", "DiLoCo"


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    steps: int = 2000  # of every worker; a multiple of all local steps
    local_steps: tuple[int, ...] = (10, 50, 250)  # H
    workers: tuple[int, ...] = (1, 2, 4)  # W
    outer_rates: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
    seeds: int = 1
    lr: float = 3e-3  # of AdamW, at the start of its cosine schedule
    batch_size: int = 8  # windows per worker
    context: int = 64  # characters per window
    width: int = 64
    depth: int = 4
    eval_steps: int = 100  # local steps between evaluations, at least those of a round
    test_windows: int = 128
    characters: int = 1_000_000  # of the generated text
    text: pathlib.Path | None = None  # a plain text, which replaces the generated one
    work: pathlib.Path = pathlib.Path("results/language")  # finished runs, to continue from

    def __post_init__(self) -> None:
        check_grid(local_steps=self.local_steps, workers=self.workers, outer_rates=self.outer_rates)
        check_at_least(1, steps=self.steps, seeds=self.seeds, batch_size=self.batch_size)
        check_at_least(1, eval_steps=self.eval_steps, test_windows=self.test_windows)
        check_positive(lr=self.lr)
        for steps in self.local_steps:
            if self.steps % steps:
                raise ValueError(f"steps is {self.steps}; expected a multiple of {steps}")


def grid(options: Options) -> list[dict[str, Any]]:
    """DiLoCo over H x W x outer rate, and a data-parallel run per number of workers."""
    parallel = [
        {"method": PARALLEL, "local_steps": 1, "workers": workers} for workers in options.workers
    ]
    return parallel + [
        {"method": DILOCO, "local_steps": steps, "workers": workers, "outer_rate": rate}
        for workers in options.workers
        for steps in options.local_steps
        for rate in options.outer_rates
    ]


def factory(options: Options, method: str, outer_rate: Any = None) -> fs.FedAlgorithm:
    """One of the methods; both have the same AdamW, whose schedule counts steps."""
    rate = optax.cosine_decay_schedule(options.lr, options.steps)
    adamw = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rate, 0.9, 0.99, weight_decay=0.1)
    )
    if method == PARALLEL:
        return fs.fedsgd(1.0, server=adamw)
    return fs.diloco(server_lr=outer_rate, momentum=0.9, local_optimizer=adamw)


@functools.cache
def data(options: Options, workers: int) -> Any:
    """The text in shards, and its test part."""
    if options.text is None:
        text = language().text(options.characters, seed=1)
    else:
        text = options.text.read_text()
    return fs.datasets.from_text(text, workers, context=options.context)


@functools.cache
def model(options: Options) -> fs.models.Model:
    """The transformer; the vocabulary is that of the whole text."""
    vocabulary = data(options, 1).num_classes
    return fs.models.transformer(vocabulary, width=options.width, depth=options.depth)


@functools.cache
def problem(options: Options, local_steps: int, workers: int) -> fs.Setup:
    """One worker per shard, all in every round."""
    dataset = data(options, workers)
    batches = fs.with_replacement(options.batch_size, local_steps)
    task = fs.empirical_task(
        fs.objectives.cross_entropy(model(options)), dataset.clients(), batches
    )
    test = {key: values[: options.test_windows] for key, values in dataset.test.items()}
    evaluate = fs.evaluation.evaluator(
        fs.objectives.classification_metrics(model(options)), test, batch_size=options.test_windows
    )
    return fs.Setup(
        task,
        fs.timelines.full(options.steps // local_steps, workers, local_steps),
        jax.vmap(model(options).init)(seed_keys(options.seeds, root=1)),
        evaluate,
        eval_every=max(1, options.eval_steps // local_steps),
    )


def main(options: Options) -> None:
    """Runs the sweep, prints and writes tables and figures."""
    history = swept(
        functools.partial(factory, options),
        lambda local_steps, workers: problem(options, local_steps, workers),
        grid(options), seed_keys(options.seeds), options.work,
    )  # fmt: skip
    params = jax.eval_shape(model(options).init, jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    facts = {"parameters": size, "vocabulary": data(options, 1).num_classes}
    if options.text is None:
        facts["entropy"] = language().entropy()
    table = curves(history, options.batch_size * options.context, size)
    folder = options.output / "language" / "diloco"
    tables = {"": summary(table), "curves": table}
    without = {"text": options.text and options.text.name}
    save_report(folder, "diloco", tables, build, options=settings(options) | without, **facts)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
