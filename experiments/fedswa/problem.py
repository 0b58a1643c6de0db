"""Data, model, timeline and evaluation of a column of the FedSWA paper's tables."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from experiments.fedswa.settings import (
    BATCH_SIZE,
    HELD_OUT_SHARE,
    NUM_EPOCHS,
    PARTITION_SEED,
    Scale,
    Setting,
)
from experiments.harness import seed_keys, split_keys, subsample


class Problem(NamedTuple):
    """The setup that all methods share and the key of every seed; n seeds."""

    setup: fs.Setup  # timeline and params [n, ...]
    keys: jax.Array  # [n]


def build_model(setting: Setting, scale: Scale, num_classes: int) -> fs.models.Model:
    """The model of a column, on inputs normalised with CIFAR's constants, ViT-Base at 224 x 224."""
    plain = {
        "lenet5": lambda: fs.models.lenet5(num_classes, scale.lenet5[:2], scale.lenet5[2:]),
        "vgg11": lambda: fs.models.vgg11(num_classes),
        "resnet18": lambda: fs.models.resnet18(num_classes),
        "vit_tiny": lambda: fs.models.vit_tiny((64, 64, 3), num_classes, patch_size=8),
        "vit_base16": lambda: fs.models.vit_base16(num_classes),
    }[setting.model]()
    apply = plain.apply
    if setting.model == "vit_base16":
        apply = functools.partial(_at_224, apply)
    apply = fs.data.augmentation.normalized(
        apply, fs.data.augmentation.CIFAR_MEAN, fs.data.augmentation.CIFAR_STD
    )
    return fs.models.Model(plain.init, apply)


def _at_224(apply: Callable, params: Any, x: jax.Array) -> jax.Array:
    return apply(params, jax.image.resize(x, (x.shape[0], 224, 224, 3), "bilinear"))


def clients(
    setting: Setting, scale: Scale, dataset: fs.datasets.Dataset, without: np.ndarray | None = None
) -> fs.FederatedData:
    """Data of the Dirichlet clients that take part, without some rows of the training data."""
    labels, alpha = dataset.train["y"], setting.concentration
    rows = fs.data.partition.dirichlet(
        labels, setting.num_clients, alpha, PARTITION_SEED, prior="uniform"
    )
    if without is not None:
        rows = [part[~np.isin(part, without)] for part in rows]
    taking_part = min(scale.clients, setting.num_clients)
    images = {key: dataset.train[key] for key in ("x", "y")}
    return fs.from_assignment(images, rows[:taking_part], disjoint=False)


def held_out_rows(count: int) -> np.ndarray:
    """Random rows of ``count`` training examples, always the same ones, in increasing order."""
    part = round(HELD_OUT_SHARE * count)
    return np.sort(np.random.default_rng(PARTITION_SEED).choice(count, part, replace=False))


def problem(
    setting: Setting,
    scale: Scale,
    rounds: int,
    num_seeds: int,
    dataset: fs.datasets.Dataset,
    *,
    eval_every: int = 1,
    pretrained: pathlib.Path | None = None,
    held_out: bool = False,
) -> Problem:
    """The setting at a scale; seeds differ in cohorts, models and draws, not in the partition.

    With ``held_out`` a tenth of the training images, of no client, replaces the test images.
    """
    if pretrained is not None and not setting.model.startswith("vit"):
        raise ValueError(f"pretrained is {pretrained}; expected none for {setting.model}")
    model = build_model(setting, scale, dataset.num_classes)
    rest = held_out_rows(len(dataset.train["y"])) if held_out else None
    data = clients(setting, scale, dataset, rest)
    loss = fs.data.augmentation.transformed(
        fs.objectives.cross_entropy(model.apply), fs.data.augmentation.crop_and_flip
    )
    task = fs.empirical_task(loss, data, fs.epochs(NUM_EPOCHS, BATCH_SIZE, scale.max_steps))
    draw_keys, init_keys, run_keys = split_keys(seed_keys(num_seeds), 3)
    draw = functools.partial(
        fs.timelines.uniform,
        num_rounds=rounds,
        num_clients=task.num_clients,
        cohort_size=min(setting.cohort, task.num_clients),
        num_steps=task.num_steps,
    )
    metrics = fs.objectives.classification_metrics(model.apply)
    evaluated = {"train": subsample(data.examples, scale.train_examples)}
    if rest is None:
        evaluated["test"] = subsample(dataset.test, scale.test_examples)
    else:
        unused = {key: dataset.train[key][rest] for key in ("x", "y")}
        evaluated["held_out"] = subsample(unused, scale.test_examples)
    params = jax.jit(jax.vmap(model.init))(init_keys)
    if pretrained is not None:  # heads differ between seeds, all other layers are equal
        seeds = [jax.tree.map(lambda x, i=i: x[i], params) for i in range(num_seeds)]
        heads = {"vit_tiny": 3, "vit_base16": 12}[setting.model]
        loaded = [fs.models.load_vit(pretrained, seed, heads=heads).params for seed in seeds]
        params = jax.tree.map(lambda *x: jnp.stack(x), *loaded)
    eval_fn = fs.evaluation.merge_evaluators(
        **{name: fs.evaluation.evaluator(metrics, examples) for name, examples in evaluated.items()}
    )
    timeline = jax.jit(jax.vmap(draw))(draw_keys)
    every = min(eval_every, rounds)
    return Problem(fs.Setup(task, timeline, params, eval_fn=eval_fn, eval_every=every), run_keys)
