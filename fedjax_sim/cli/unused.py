"""Options that other options leave without effect, and messages that refuse them by name."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """A condition under which an option has no effect."""

    name: str
    others: tuple[str, ...]  # options that decide
    decides: Callable[[Any], bool]  # of a value of one of them
    expected: str


def _given(value: Any) -> bool:
    return value is not None and value is not False


def _shows_clients(value: Any) -> bool:
    return value != "none"


def _beside(name: str, other: str, decides: Callable[[Any], bool] = _given) -> Rule:
    return Rule(name, (other,), decides, f"none with --{other.replace('_', '-')}")


# Without effect if one of the others decides so.
BESIDE = (
    _beside("local_epochs", "local_steps"),
    _beside("local_epochs", "epoch_fraction"),
    _beside("cohort_size", "cohort_fraction"),
    *(_beside(name, "dashboard") for name in ("x", "log", "band", "seeds_as_lines", "split")),
    *(
        _beside(name, "clients", _shows_clients)
        for name in ("x", "log", "band", "seeds_as_lines", "configurations")
    ),
    _beside("band", "seeds_as_lines"),
    # Of a table, which has all numbers in full then.
    Rule("digits", ("format",), lambda x: x == "csv", "another --format with it"),
    Rule("percent", ("format",), lambda x: x == "csv", "another --format with it"),
)
# Without effect unless one of the others decides so.
NEEDS = (
    Rule("test_fraction", ("test_of",), lambda x: x == "clients", "--test-of clients with it"),
    Rule("validation_of", ("validation",), bool, "--validation with it"),
    Rule("delay", ("late",), bool, "--late with it"),
    Rule("chunk_size", ("execution",), lambda x: x == "chunked", "--execution chunked with it"),
    Rule("patience", ("stop_early",), _given, "--stop-early with it"),
    Rule("mode", ("keep_best", "stop_early"), _given, "--keep-best or --stop-early with it"),
    Rule("eta", ("halving",), bool, "--halving with it"),
    Rule("split", ("clients",), _shows_clients, "--clients with it"),
    Rule(
        "heartbeat_timeout",
        ("distributed", "coordinator", "num_processes", "process_id"),
        _given,
        "--distributed or --coordinator with it",
    ),
)


# Of a grid, whose configurations would be equal; of one value --help says that it is not used.
_IN_GRIDS = (
    Rule("cohort_size", ("sampling",), lambda x: x in ("full", "geometric"), "another sampling"),
)


def check_typed(typed: Collection[str], values: Mapping[str, Any]) -> None:
    """Refuses typed options without effect."""
    varied = _varied(values)
    if (points := values.get("points")) is not None:
        for name in typed:
            if name.startswith("grid."):
                raise ValueError(f"grid has {name.split('.')[1]!r}; expected none with --points")
    for name in typed:
        rules = [rule for rule in BESIDE if rule.name == name]
        needs = [] if points is not None else [rule for rule in NEEDS if rule.name == name]
        if (rule := _broken(rules, needs, values, varied)) is not None:
            raise ValueError(f"{name} is {values[name]!r}; expected {rule.expected}")


def check_axes(option: str, axes: Collection[str], values: Mapping[str, Any]) -> None:
    """Refuses names of a grid whose values would have no effect; ``option`` has the names."""
    for name in axes:
        rules = [rule for rule in BESIDE if rule.name == name]
        if "sampling" not in axes:
            rules += [rule for rule in _IN_GRIDS if rule.name == name]
        needs = [rule for rule in NEEDS if rule.name == name]
        if (rule := _broken(rules, needs, values, axes)) is not None:
            raise ValueError(f"{option} has {name!r}; expected {rule.expected}")


def _varied(values: Mapping[str, Any]) -> set[str]:
    """Returns the names of a grid or a space."""
    return {*(values.get("grid") or ()), *(values.get("space") or ())}


def _broken(
    beside: list[Rule], needs: list[Rule], values: Mapping[str, Any], varied: Collection[str]
) -> Rule | None:
    """Returns the first rule by which an option has no effect; None if it has one."""
    for rule in beside:
        if any(other in varied or _decides(rule, values, other) for other in rule.others):
            return rule
    for rule in needs:
        known = [other for other in rule.others if other in values]
        if known and not any(other in varied or _decides(rule, values, other) for other in known):
            return rule
    return None


def _decides(rule: Rule, values: Mapping[str, Any], other: str) -> bool:
    return other in values and rule.decides(values[other])
