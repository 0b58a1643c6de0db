"""Checks of the values of options, before data are loaded."""

import math
import sys
import typing
from collections.abc import Collection
from typing import Any, Literal

from fedjax_sim.checks import INT32_MAX, did_you_mean
from fedjax_sim.datasets import is_table
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig
from fedjax_sim.studies.setups.partitions import PARTITIONS

_POSITIVE = {
    "alpha", "fine_alpha", "lr", "server_lr", "lr_decay", "clip", "examples_memory", "step_time",
    "slow_factor", "interval", "horizon", "eval_time", "feedback_rate", "privacy_clip",
    "privacy_epsilon", "tuning_lr",
}  # fmt: skip
MOST_GIGABYTES = 9e9  # a count of bytes has 63 bits
_NOT_NEGATIVE = {"weight_decay", "interaction", "log_sigma", "noise", "size_sigma", "privacy_noise"}


def check(config: RunConfig) -> None:
    """Refuses values that no data set could make valid.

    Raises:
        ValueError: naming the field, its value and what was expected.

    Example:
        >>> check(RunConfig(rounds=0))
        Traceback (most recent call last):
        ValueError: rounds is 0; expected an integer of at least 1
    """
    for name, hint in typing.get_type_hints(RunConfig).items():
        value: Any = getattr(config, name)
        allowed = typing.get_args(hint)  # values of a Literal, types of a union
        if typing.get_origin(hint) is Literal and value not in allowed:
            raise ValueError(
                f"{name} is {value!r}; expected one of {', '.join(allowed)}"
                f"{did_you_mean(value, allowed)}"
            )
        if hint is int or (int in allowed and isinstance(value, int)):
            low, high = 1, INT32_MAX
            if name.endswith("seed"):  # jax.random.key takes seeds modulo 2^32
                low, high = 0, 2**32 - (config.seeds if name == "seed" else 1)
            if value < low:
                raise ValueError(f"{name} is {value}; expected an integer of at least {low}")
            if value > high:
                raise ValueError(f"{name} is {value}; expected an integer of at most {high}")
        most = {"alpha": math.inf, "fine_alpha": math.inf, "examples_memory": MOST_GIGABYTES}.get(
            name, sys.float_info.max
        )
        number = not isinstance(value, str | None)
        if name in _POSITIVE and number and not 0 < value <= most:
            limit = f" of at most {most:g}" * (value > most)
            raise ValueError(f"{name} is {value}; expected a positive number{limit}")
        if name in _NOT_NEGATIVE and value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}; expected a number of at least 0")
    for name in ("label_column", "client_column"):
        if (value := getattr(config, name)) is not None and not is_table(config.dataset):
            raise ValueError(
                f"{name} is {value!r}; expected none with --dataset {config.dataset}, which is no "
                "table"
            )
    if not isinstance(config, SweepConfig):
        check_client_column(config, {config.partition})
    if config.examples_memory is not None and config.num_strata is not None:
        raise ValueError(
            f"examples_memory is {config.examples_memory}; expected none with --num-strata, which "
            "keeps all examples on the devices"
        )
    if config.states == "host" and config.examples_memory is None:
        raise ValueError("states is host; expected --examples-memory with it")
    for name in ("dropout", "validation", "held_out_clients"):
        if not 0 <= (value := getattr(config, name)) < 1:
            raise ValueError(f"{name} is {value}; expected a number in [0, 1)")
    for name in ("lost", "late"):
        if not 0 <= (value := getattr(config, name)) <= 1:
            raise ValueError(f"{name} is {value}; expected a number in [0, 1]")
    if config.full_probability is not None and not 0 < config.full_probability <= 1:
        raise ValueError(
            f"full_probability is {config.full_probability}; expected a number in (0, 1]"
        )
    if not 0 < config.test_fraction < 1:
        raise ValueError(f"test_fraction is {config.test_fraction}; expected a number in (0, 1)")
    if config.feature_shift != "none" and config.num_strata is not None:
        raise ValueError(
            f"feature_shift is {config.feature_shift}; expected none with --num-strata, which "
            "loads the examples of the data set block by block"
        )
    for name, required in (("clock", "none"), ("num_strata", None), ("examples_memory", None)):
        if config.partition_per_seed and (value := getattr(config, name)) != required:
            raise ValueError(f"{name} is {value}; expected {required} with --partition-per-seed")
    last = 2**32 - config.seed - config.seeds  # partition_seed + seed of the last one is a seed
    if config.partition_per_seed and config.partition_seed > last:
        raise ValueError(
            f"partition_seed is {config.partition_seed}; expected an integer of at most {last} "
            f"with --partition-per-seed, which adds the seeds {config.seed} .. "
            f"{config.seed + config.seeds - 1}"
        )
    if config.timeline is not None and (config.num_strata is not None or config.clock != "none"):
        raise ValueError(
            f"timeline is {config.timeline!r}; expected none with --clock or --num-strata"
        )
    for option in ("per_client", "personal"):
        if (every := getattr(config, option)) is None:
            continue
        for name, other in (
            ("num_strata", "--num-strata"),
            ("examples_memory", "--examples-memory"),
        ):
            if getattr(config, name) is not None:
                raise ValueError(f"{option} is {every}; expected none with {other}")
        if config.clock == "none" and every % config.eval_every:
            raise ValueError(
                f"{option} is {every}; expected a multiple of --eval-every, {config.eval_every}"
            )
        if config.clock == "none" and every > config.rounds:  # only the initial model is evaluated
            raise ValueError(f"{option} is {every}; expected at most --rounds, {config.rounds}")
    own_examples = config.test_of == "clients" or (
        config.validation and config.validation_of == "clients"
    )
    if config.personal is not None and not own_examples:
        raise ValueError(
            f"personal is {config.personal}; expected clients' own examples with it: --test-of "
            "clients, or --validation"
        )
    if config.personal is None:
        given = [] if config.tuning_steps is None else [str(config.tuning_steps)]
        settings = (*config.hyper, *getattr(config, "grid", ()))
        given += [text for text in settings if "tuning_steps=" in text]
        if given:
            raise ValueError(
                f"tuning_steps is {given[0]}; expected --personal with it, which evaluates the "
                "models"
            )
    if config.first_visit and (config.personal is None or not config.held_out_clients):
        raise ValueError(
            "first_visit is True; expected --personal and --held-out-clients with it, whose "
            "clients it is for"
        )
    if not 0 < config.privacy_delta < 1:
        raise ValueError(f"privacy_delta is {config.privacy_delta}; expected a number in (0, 1)")
    if not 0 < config.target_accuracy <= 1:
        raise ValueError(f"target_accuracy is {config.target_accuracy}; expected (0, 1]")
    if config.sampling == "stratified" and config.num_strata is None:
        raise ValueError("num_strata is None; expected a number, which --sampling stratified needs")
    repeated = len(set(config.algorithms)) != len(config.algorithms)
    if not config.algorithms or repeated:
        raise ValueError(
            f"algorithms is {config.algorithms}; expected distinct names, at least one"
        )
    if config.clock != "none":
        _check_clock(config)


def check_client_column(config: RunConfig, partitions: Collection[str]) -> None:
    """Refuses a column of clients that none of the partitions reads.

    Raises:
        ValueError: naming the column and the partitions.

    Example:
        >>> check_client_column(RunConfig(client_column="site"), {"iid"})
        Traceback (most recent call last):
        ValueError: client_column is 'site'; expected --partition natural with it, not iid
    """
    reads = {"natural"} | set(partitions) - PARTITIONS.keys()  # or a function of the user's
    if config.client_column is not None and reads.isdisjoint(partitions):
        raise ValueError(
            f"client_column is {config.client_column!r}; expected --partition natural with it, not "
            f"{', '.join(sorted(partitions))}"
        )


def _check_clock(config: RunConfig) -> None:
    """Checks the options of simulated time against each other."""
    clock = f"--clock {config.clock}"
    if config.local_steps is None:
        raise ValueError(f"local_steps is None; expected a number with {clock}")
    if not 0 <= config.slow_fraction <= 1:
        raise ValueError(f"slow_fraction is {config.slow_fraction}; expected a number in [0, 1]")
    if (config.trace is not None) != (config.clock == "trace"):
        expected = "a CSV file" if config.clock == "trace" else "none"
        raise ValueError(f"trace is {config.trace}; expected {expected} with {clock}")
    if config.horizon < config.interval:
        raise ValueError(
            f"horizon is {config.horizon}; expected at least --interval, {config.interval}"
        )
    for name, required in (("sampling", "uniform"), ("dropout", 0.0), ("num_strata", None)):
        if (value := getattr(config, name)) != required:
            raise ValueError(f"{name} is {value}; expected {required} with {clock}")
