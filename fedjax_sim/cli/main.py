"""The command ``fedjax-sim``.

``fedjax-sim run [PRESET | CONFIG.json] [options]`` compares algorithms, ``fedjax-sim sweep`` runs
grids of their hyper-parameters, ``fedjax-sim tune`` measures how they are best executed,
``fedjax-sim list`` says what the options can name.  Exit codes: 0 done, 1 a run that cannot go on,
2 bad options, 130 interrupted.
"""

import importlib.metadata
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

USAGE = """\
usage: fedjax-sim run [PRESET | CONFIG.json] [options]    compare federated algorithms
       fedjax-sim sweep [PRESET | CONFIG.json] [options]  a grid of hyper-parameters and settings
       fedjax-sim tune [PRESET | CONFIG.json] [options]   measure how a run is best executed here
       fedjax-sim run | sweep | tune --help               all options and their defaults
       fedjax-sim list                                    algorithms, data sets, models, partitions
       fedjax-sim --version
"""

RUN_DESCRIPTION = """\
Compares federated algorithms: same clients, cohorts, minibatches and initial models for all.
PRESET is one of: {presets} (default quickstart); CONFIG.json repeats the run that wrote it.
Options override either. Compiled programs are kept in {cache}; the environment
variable JAX_COMPILATION_CACHE_DIR names another folder."""

SWEEP_DESCRIPTION = """\
Runs every configuration of a grid with every seed, floats varying inside one compiled program, and
chooses the best. PRESET, one of {presets} (default quickstart), or a CONFIG.json of run or sweep
gives the rest of the settings; options override them. Finished runs in the output folder are not
repeated. Compiled programs are kept in {cache}."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    Example:
        >>> main(["--version"])  # doctest: +ELLIPSIS
        fedjax-sim ...
        0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    command, rest = (given[0], given[1:]) if given else ("--help", [])
    try:
        if command == "run":
            return _run(rest)
        if command == "sweep":
            return _sweep(rest)
        if command == "tune":
            return _tune(rest)
        if command == "list" and not rest:
            return _list()
    except KeyboardInterrupt:  # while importing or loading: no algorithm had begun
        print("interrupted", file=sys.stderr)
        return 130
    except ValueError as error:  # a bad value, before anything ran
        return _refuse(error)
    except (FloatingPointError, ImportError) as error:  # a run diverged, an extra is missing
        print(f"fedjax-sim: error: {error}", file=sys.stderr)
        return 1
    except SystemExit as error:  # the option parser's: 0 after --help, 2 after an error
        return error.code if isinstance(error.code, int) else 2
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command == "--version":
        print("fedjax-sim", importlib.metadata.version("fedjax_sim"))
        return 0
    print(f"fedjax-sim: error: unknown command {shlex.join([command, *rest])!r}", file=sys.stderr)
    print(USAGE, end="", file=sys.stderr)
    return 2


TUNE_DESCRIPTION = """\
Measures how a round is best executed on this machine for the run that PRESET (one of
{presets}), CONFIG.json and options describe: how many together, on how many host devices, and
how convolutions are computed. Keeps the fastest in {cache}, where fedjax-sim run finds it (with
--execution auto) for the same model, batch size, cohort size and number of seeds."""


def _run(arguments: list[str]) -> int:
    from fedjax_sim.cli.config import RunOptions

    chosen, rest = _chosen(arguments)
    defaults = RunOptions(**vars(_comparison(chosen)))
    given = vars(_options(RunOptions, "run", chosen, RUN_DESCRIPTION, rest, defaults))
    diagnose, dry_run = given.pop("diagnose"), given.pop("dry_run")
    config = _connected(given)
    if dry_run:
        return _forecast(config)
    return _compare(config, ["fedjax-sim", "run", chosen, *rest], diagnose)


def _connected(given: dict[str, Any]):
    """The comparison, this process being one of several where the options say so."""
    from fedjax_sim.cli.config import RunConfig

    distributed = given.pop("distributed")
    where = {name: given.pop(name) for name in ("coordinator", "num_processes", "process_id")}
    if not distributed and not any(value is not None for value in where.values()):
        return RunConfig(**given)
    import jax

    from fedjax_sim.execution import distributed

    distributed.connect(**where)
    _start_jax()
    if given["num_strata"] is None:
        given["num_strata"] = jax.device_count()
    return RunConfig(**given)


def _comparison(chosen: str):
    """The configuration of a preset or a file."""
    from fedjax_sim.cli.config import read

    known = presets()
    return known[chosen] if chosen in known else read(_config_file(chosen))


def _sweep(arguments: list[str]) -> int:
    from fedjax_sim.cli.sweep_config import SweepConfig, from_comparison, read_sweep

    known = presets()
    chosen, arguments = _chosen(arguments)
    if chosen in known:
        defaults = from_comparison(known[chosen])
    else:
        defaults = read_sweep(_config_file(chosen))
    config = _options(SweepConfig, "sweep", chosen, SWEEP_DESCRIPTION, arguments, defaults)
    return _run_sweep(config, ["fedjax-sim", "sweep", chosen, *arguments])


def _tune(arguments: list[str]) -> int:
    from fedjax_sim.cli.config import RunConfig

    chosen, rest = _chosen(arguments)
    config = _options(RunConfig, "tune", chosen, TUNE_DESCRIPTION, rest, _comparison(chosen))
    from rich.console import Console

    from fedjax_sim.cli.console import tuning_table
    from fedjax_sim.cli.tune import run_tune

    _start_jax()
    console = Console()
    for name, found in run_tune(config, _tuning_file(), console.status):
        console.print(tuning_table(name, found))
    print(f"kept in {_tuning_file()}")
    return 0


def _tuning_file() -> pathlib.Path:
    return _cache_dir() / "tuned.json"


def _chosen(arguments: list[str]) -> tuple[str, list[str]]:
    """The preset or file, and the options."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return "quickstart", arguments


def _config_file(chosen: str) -> str:
    if not chosen.endswith(".json"):
        raise ValueError(
            f"PRESET is {chosen!r}; expected {', '.join(presets())} or the path of a config.json"
        )
    return chosen


def _options(kind, command: str, chosen: str, description: str, arguments: list[str], defaults):
    import tyro

    return tyro.cli(
        kind,
        prog=f"fedjax-sim {command} {chosen}",
        description=description.format(presets=", ".join(presets()), cache=_cache_dir()),
        args=arguments,
        default=defaults,
    )


def _start_jax() -> None:
    """Compiled programs are kept; a CPU's cores all work."""
    import jax

    from fedjax_sim.execution.devices import use_all_cores

    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(_cache_dir()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # A run compiles some forty small programs before its first round.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    use_all_cores()


def _run_sweep(config, command: list[str]) -> int:
    from rich.console import Console

    from fedjax_sim.cli.console import best_table, sweep_progress
    from fedjax_sim.cli.sweep import run_sweep

    _start_jax()
    console = Console()
    with sweep_progress(console) as on_progress:
        result = run_sweep(config, on_progress)
    if len(result.best):
        console.print(best_table(result.best, config.metric))
    done = result.sweep
    print(
        f"{len(done.runs)} runs ({done.resumed} found), {done.compilations} programs compiled in "
        f"{done.compile_seconds:.0f} s, training {done.run_seconds:.0f} s"
    )
    if done.interrupted:
        print(f"interrupted; finished runs are in {config.output}")
        print(f"to resume: {shlex.join(command)}")
        return 130
    print(f"results: {config.output} (history.csv, scores.csv, best.csv, *.png)")
    return 0


def _forecast(config) -> int:
    from rich.console import Console

    from fedjax_sim.cli.console import forecast_table
    from fedjax_sim.cli.dry_run import run_forecast
    from fedjax_sim.execution import distributed

    _start_jax()
    found = dict(run_forecast(config, _tuning_file()))
    Console(quiet=not distributed.is_first()).print(forecast_table(found))
    for one in found.values():
        one.check()
    return 0


def _compare(config, command: list[str], diagnose: bool) -> int:
    # Imported here, so that --help does not wait for pandas and matplotlib.
    from rich.console import Console

    from fedjax_sim.cli.console import progress_bars, summary_table
    from fedjax_sim.cli.diagnosis_report import tables
    from fedjax_sim.cli.run import compare
    from fedjax_sim.execution import distributed

    _start_jax()
    # Of several processes the first one speaks.
    console = Console(quiet=not distributed.is_first())
    with progress_bars(config, console) as on_progress:
        result = compare(config, on_progress, _tuning_file(), diagnose=diagnose)
    if len(result.summary):
        console.print(summary_table(result.summary, config.target_accuracy))
    if result.interrupted:
        if distributed.is_first():
            print(f"interrupted; everything so far is in {config.output}")
            print(f"to resume: {shlex.join(command)}")
        return 130
    if result.diagnosis is not None:
        for table in tables(result.diagnosis):
            console.print(table)
    if distributed.is_first():
        print(f"results: {config.output} (history.csv, summary.json, config.json, *.png)")
    return 0


def presets():
    """The comparisons that have a name, by it.

    Example:
        >>> presets()["quickstart"].rounds
        100
    """
    from fedjax_sim.cli.config import RunConfig

    femnist = RunConfig(
        output=pathlib.Path("results/femnist"),
        dataset="femnist",
        partition="natural",
        rounds=200,
        local_epochs=1,
        batch_size=20,
        seeds=1,
        eval_every=10,
    )
    return {"quickstart": RunConfig(), "femnist": femnist}


def _list() -> int:
    from rich.console import Console

    from fedjax_sim.cli.console import choice_tables

    console = Console()
    for table in choice_tables():
        console.print(table)
    return 0


def _refuse(error: ValueError) -> int:
    """One line about a bad value; a message that begins with an option's field names the option."""
    from fedjax_sim.cli.sweep_config import SweepConfig

    message = str(error)
    field = re.match(r"(\w+) (?:is|has) ", message)
    if field and field[1] in SweepConfig.__dataclass_fields__:
        message = f"--{field[1].replace('_', '-')}{message[field.end(1) :]}"
    print(f"fedjax-sim: error: {message}", file=sys.stderr)
    return 2


def _cache_dir() -> pathlib.Path:
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home) / "fedjax_sim"


if __name__ == "__main__":
    sys.exit(main())
