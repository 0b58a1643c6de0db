"""The setting of a run in one line, for captions and to tell which runs are comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_sim.runs import Outcome


def setting_text(config: Mapping[str, Any], recorded: Outcome | None = None) -> str:
    """Returns data set, clients, cohort and local work in one line.

    Args:
        config: options of ``fedjax-sim``; empty for folders that Python wrote.
        recorded: outcome of a run, from which the line is made without options.

    Example:
        >>> setting_text({}, Outcome(2, {}, 5, 32, 32, {"0": 3}))
        '5 clients, 3 per round.'
        >>> options = {"num_clients": 8, "partition": "iid", "cohort_size": 3, "local_epochs": 1}
        >>> setting_text({"dataset": "digits", "batch_size": 7} | options)
        'digits: 8 clients, partition iid, 3 clients per round, 1 local epoch, 7 examples per step.'
    """
    own = config.get("own", ())
    if not config or "setup" in own:
        if recorded is None:
            return "setup of a study module." if config else ""
        uploads = next(iter(recorded.uploads.values()), None)
        cohort = f", {uploads} per round" if isinstance(uploads, int) else ""
        return f"{recorded.num_clients} clients{cohort}."
    clients = "own partition"
    if "rows" not in own:
        partition = str(config.get("partition"))
        count = f"{config.get('num_clients')} clients, " if partition != "natural" else ""
        clients = f"{count}partition {partition}{_with(config, _OF_PARTITION)}"
    clients = ", ".join([clients, *_divided(config)])
    steps = config.get("local_steps")
    epochs = config.get("epoch_fraction") or config.get("local_epochs")
    number, unit = (epochs, "epoch") if steps is None else (steps, "step")
    work = f"{number} local {unit}{'s' * (number != 1)}"
    part = config.get("cohort_fraction")
    many = f"{config.get('cohort_size')} clients" if part is None else f"{part} of the clients"
    cohort = f"{many} per round"
    sampling = config.get("sampling", "uniform")
    if sampling in ("full", "geometric"):
        cohort = "all clients per round"
    elif sampling != "uniform":
        cohort += f" ({sampling})"
    if "timeline" in own:
        cohort = "own timeline"
    if config.get("selection", "none") != "none":
        cohort += f" ({config['selection']}"
        chosen = config.get("selection.size")
        cohort += ")" if chosen is None else f", {chosen} chosen)"
    if config.get("time") == "clock":
        cohort += f", clock {config['law']}{_with(config, _others(config, _OF_CLOCK))}"
    model = "of a study module" if "model" in own else config.get("model")
    names = ("dataset", "table", "hub", "text", "data")  # the last one is the kind of the others
    data = next((config[name] for name in names if name in config), "")
    if data == "generated":
        data += _with(config, _OF_GENERATED)
    data = "own data" if "dataset" in own else data
    named = "" if model in (None, "auto") else f", model {model}"
    batch = f"{config.get('batch_size')} examples per step"
    return ", ".join([f"{data}: {clients}", cohort, *_reported(config), work, f"{batch}{named}."])


def setting_key(text: str, data: str) -> str:
    """Returns what comparable folders have in common: the line, and :func:`data_digests`."""
    return ", ".join(filter(None, (text, data)))


def data_digests(saved: Mapping[str, Any]) -> str:
    """Returns the digests of the examples and of own rows, timelines and setups in config.json.

    A file of one name, and a part of a study module, may have been others.
    """
    own = saved.get("own_arrays") or {}
    digests = [saved.get("examples"), *(f"{name} {own[name]}" for name in sorted(own))]
    return ", ".join(filter(None, digests))


# Options that a partition or a data set may have, in the order of the text.
_OF_PARTITION = ("alpha", "classes_per_client", "fine_alpha", "size_sigma", "balanced")
# Those of a clock, which the text has unless they are the default.
_OF_CLOCK = {
    "law.step_time": 2.0,
    "law.slow_fraction": 1 / 3,
    "law.slow_factor": 8.0,
    "law.log_sigma": 1.0,
    "law.file": None,
    "interval": 7.0,
    "interaction": 3.0,
    "buffer_size": 10,
    "concurrency": None,
    "horizon": 1000.0,
    "updates": None,
}
_OF_GENERATED = ("features", "classes", "examples", "model_spread", "feature_spread")


def _with(config: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns the values of those of the options that there are."""
    known = [name for name in names if config.get(name, False) is not False]
    words = {name: name.rpartition(".")[2].replace("_", " ") for name in known}
    values = [f"{words[name]} = {config[name]}" for name in known]
    return f" with {', '.join(values)}" if values else ""


def _others(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Returns the names of the options that have another value than their default."""
    return [name for name, value in defaults.items() if config.get(name, value) != value]


def _divided(config: Mapping[str, Any]) -> list[str]:
    """Returns what else decides which examples a client has, unless it is the default."""
    parts = []
    if config.get("partition_per_seed"):
        parts.append("a partition per seed")
    if config.get("partition_seed", 0) != 0:
        parts.append(f"partition seed {config['partition_seed']}")
    if config.get("test_of", "dataset") != "dataset":
        parts.append(f"{config['test_fraction']} of each client's examples for testing")
    if config.get("validation", 0.0) != 0.0:
        of = " of the pool" if config.get("validation_of") == "pool" else ""
        parts.append(f"{config['validation']}{of} for validation")
    if config.get("held_out_clients", 0.0) != 0.0:
        parts.append(f"{config['held_out_clients']} of the clients held out")
    if config.get("shift", "none") != "none":
        variance = config.get("shift.variance")
        noise = "" if variance is None else f" with variance {variance}"
        parts.append(f"shift {config['shift']}{noise}")
    return parts


def _reported(config: Mapping[str, Any]) -> list[str]:
    """Returns what else decides whose uploads count and how, unless it is the default."""
    parts = [f"{name} {config[name]}" for name in ("dropout", "lost") if config.get(name)]
    if config.get("late"):
        parts.append(f"late {config['late']} by {config.get('delay', 1)}")
    if config.get("weighting", "uniform") != "uniform":
        parts.append(f"weighted by {config['weighting']}")
    if config.get("attack", "none") != "none":
        parts.append(f"attack {config['attack']} by {config.get('attack.fraction')}")
    return parts
