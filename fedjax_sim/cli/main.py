"""The command ``fedjax-sim``.

``fedjax-sim run [PRESET | CONFIG.json] [options]`` compares algorithms, ``fedjax-sim sweep`` runs
grids of their hyper-parameters, ``fedjax-sim tune`` measures ways to execute them, ``fedjax-sim
list`` prints the names that options take.  Exit codes: 0 done, 1 a run that failed, 2 bad options,
130 interrupted.
"""

import contextlib
import importlib.metadata
import os
import pathlib
import re
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

USAGE = """\
usage: fedjax-sim run [PRESET | CONFIG.json] [options]    compare federated algorithms
       fedjax-sim sweep [PRESET | CONFIG.json] [options]  a grid of hyper-parameters and settings
       fedjax-sim tune [PRESET | CONFIG.json] [options]   measure ways to execute a run
       fedjax-sim run | sweep | tune --help               all options and their defaults
       fedjax-sim list                                    algorithms, data sets, models, presets
       fedjax-sim list ALGORITHM                          an algorithm's hyper-parameters
       fedjax-sim --version
"""

RUN_DESCRIPTION = """\
Compares federated algorithms: same clients, cohorts, minibatches and initial models for all.
PRESET is one of: {presets} (default quickstart); CONFIG.json repeats the run that wrote it.
Options override either. Compiled programs are cached in {cache}; the environment
variable JAX_COMPILATION_CACHE_DIR names another folder."""

SWEEP_DESCRIPTION = """\
Runs every configuration of a grid with every seed and chooses the best; numbers vary inside one
compiled program. PRESET, one of {presets} (default quickstart), or a CONFIG.json of
run or sweep gives the other settings; options override them. Finished runs in the output folder are
not repeated. Compiled programs are cached in {cache}."""

TUNE_DESCRIPTION = """\
Measures ways to execute a round on this machine for the run that PRESET (one of {presets}),
CONFIG.json and options describe: clients at once, host devices, and lowerings of convolutions.
Stores the fastest in {cache}, where fedjax-sim run finds it (with --execution
auto) for the same model, batch size, cohort size and number of seeds."""


class Failure(Exception):
    """A command that ends with a message; ``code`` is its exit code."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    Errors while options are resolved are one line.  Later errors show their traceback, and say
    what was kept.

    Example:
        >>> main(["--version"])  # doctest: +ELLIPSIS
        fedjax-sim ...
        0
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    commands = {"run": _run, "sweep": _sweep, "tune": _tune, "list": _list}
    try:
        if command in commands:
            return commands[command](rest)
    except Failure as error:
        print(f"fedjax-sim: error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:  # while importing or loading: no algorithm had begun
        print("interrupted", file=sys.stderr)
        return 130
    except SystemExit as error:  # of the option parser: 0 after --help, 2 after an error
        return error.code if isinstance(error.code, int) else 2
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command == "--version":
        print("fedjax-sim", importlib.metadata.version("fedjax_sim"))
        return 0
    print(f"fedjax-sim: error: unknown command {shlex.join(arguments)!r}", file=sys.stderr)
    print(USAGE, end="", file=sys.stderr)
    return 2


@contextlib.contextmanager
def _resolving() -> Iterator[None]:
    """Context in which options become objects; its errors are one line."""
    try:
        yield
    except ValueError as error:
        raise Failure(_option_named(str(error)), 2) from error
    except (FloatingPointError, ImportError) as error:  # no optimum; an extra is missing
        raise Failure(str(error), 1) from error


@contextlib.contextmanager
def _running(output: pathlib.Path | None) -> Iterator[None]:
    """Context of the work itself; an error shows its traceback and says what was kept."""
    kept = "" if output is None else f"; everything before the error is kept in {output}"
    try:
        yield
    except FloatingPointError as error:  # a run diverged, which is no defect
        raise Failure(f"{error}{kept}", 1) from error
    except Exception as error:
        traceback.print_exc()
        raise Failure(f"{type(error).__name__}: {error}{kept}", 1) from error


def _run(arguments: list[str]) -> int:
    from fedjax_sim.cli.config import RunOptions

    with _resolving():
        chosen, rest = _chosen(arguments)
        defaults = RunOptions(**vars(_comparison(chosen)))
        given = vars(_options(RunOptions, "run", chosen, RUN_DESCRIPTION, rest, defaults))
        diagnose, dry_run = given.pop("diagnose"), given.pop("dry_run")
        config = _connected(given)
        _start_jax()

        from fedjax_sim.cli.build import resolve

        comparison = resolve(config)
    if dry_run:
        return _forecast(comparison)
    return _compare(comparison, ["fedjax-sim", "run", chosen, *rest], diagnose)


def _connected(given: dict[str, Any]):
    """Returns the comparison's options, after connecting this process to the others, if any."""
    from fedjax_sim.cli.config import RunConfig

    connect = given.pop("distributed")
    where = {name: given.pop(name) for name in ("coordinator", "num_processes", "process_id")}
    if not connect and not any(value is not None for value in where.values()):
        return RunConfig(**given)
    import jax

    from fedjax_sim.execution import distributed

    distributed.connect(**where)
    _start_jax()
    if given["num_strata"] is None:
        given["num_strata"] = jax.device_count()
    return RunConfig(**given)


def _compare(comparison, command: list[str], diagnose: bool) -> int:
    # Imported here, so that --help does not wait for pandas and matplotlib.
    from rich.console import Console

    from fedjax_sim.cli.console import diagnosis_tables, progress_bars, summary_table
    from fedjax_sim.cli.run import execute, ready
    from fedjax_sim.execution import distributed

    with _resolving():
        job = ready(comparison, diagnose=diagnose)
    output, first = comparison.output, distributed.is_first()
    console = Console(quiet=not first)  # only process 0 prints
    with _running(output), progress_bars(list(comparison.hyper), console) as on_progress:
        result = execute(job, on_progress, _tuning_file())
    if len(result.summary):
        console.print(summary_table(result.summary, comparison.options["target_accuracy"]))
    if result.interrupted:
        if first:
            print(f"interrupted; everything so far is in {output}")
            print(f"to resume: {shlex.join(command)}")
        return 130
    if result.diagnosis is not None:
        for table in diagnosis_tables(result.diagnosis):
            console.print(table)
    if first:
        print(f"results: {output} (history.csv, summary.json, config.json, *.png)")
    return 0


def _forecast(comparison) -> int:
    from rich.console import Console

    from fedjax_sim.cli.console import forecast_table
    from fedjax_sim.cli.dry_run import run_forecast
    from fedjax_sim.execution import distributed

    with _running(None):
        forecasts = dict(run_forecast(comparison, _tuning_file()))
    Console(quiet=not distributed.is_first()).print(forecast_table(forecasts))
    with _resolving():
        for forecast in forecasts.values():
            forecast.check()
    return 0


def _sweep(arguments: list[str]) -> int:
    from fedjax_sim.cli.config import SweepConfig, from_comparison
    from fedjax_sim.cli.config_file import read_sweep
    from fedjax_sim.cli.names import PRESETS

    with _resolving():
        chosen, rest = _chosen(arguments)
        preset = PRESETS.get(chosen)
        defaults = read_sweep(_config_file(chosen)) if preset is None else from_comparison(preset)
        config = _options(SweepConfig, "sweep", chosen, SWEEP_DESCRIPTION, rest, defaults)
        _start_jax()
    return _run_sweep(config, ["fedjax-sim", "sweep", chosen, *rest])


def _run_sweep(config, command: list[str]) -> int:
    from rich.console import Console

    from fedjax_sim.cli.console import best_table, sweep_progress
    from fedjax_sim.cli.sweep import run_sweep
    from fedjax_sim.sweeps.sweep import SweepProgress

    console = Console()
    began = False
    with sweep_progress(console) as show:

        def on_progress(progress: SweepProgress) -> None:
            nonlocal began
            began = True
            show(progress)

        try:
            result = run_sweep(config, on_progress)
        except Exception:  # of bad options until the first program is ready
            with _running(config.output) if began else _resolving():
                raise
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


def _tune(arguments: list[str]) -> int:
    from fedjax_sim.cli.config import RunConfig

    with _resolving():
        chosen, rest = _chosen(arguments)
        config = _options(RunConfig, "tune", chosen, TUNE_DESCRIPTION, rest, _comparison(chosen))
        _start_jax()

        from rich.console import Console

        from fedjax_sim.cli.build import resolve
        from fedjax_sim.cli.console import tuning_table
        from fedjax_sim.cli.tune import run_tune

        comparison = resolve(config)
    console = Console()
    with _running(None):
        for name, measured in run_tune(comparison, _tuning_file(), console.status):
            console.print(tuning_table(name, measured))
    print(f"stored in {_tuning_file()}")
    return 0


def _list(arguments: list[str]) -> int:
    from rich.console import Console

    from fedjax_sim.cli.listing import algorithm_table, list_tables
    from fedjax_sim.cli.registry import ALGORITHMS

    unknown = [name for name in arguments if name not in ALGORITHMS]
    if unknown:
        raise Failure(
            f"unknown algorithm {shlex.join(unknown)!r}; expected some of {', '.join(ALGORITHMS)}",
            2,
        )
    console = Console()
    for table in map(algorithm_table, arguments) if arguments else list_tables():
        console.print(table)
    return 0


def _chosen(arguments: list[str]) -> tuple[str, list[str]]:
    """The preset or file, and the options."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return "quickstart", arguments


def _comparison(chosen: str):
    """The configuration of a preset or a file."""
    from fedjax_sim.cli.config_file import read
    from fedjax_sim.cli.names import PRESETS

    return PRESETS[chosen] if chosen in PRESETS else read(_config_file(chosen))


def _config_file(chosen: str) -> str:
    from fedjax_sim.cli.names import PRESETS

    if not chosen.endswith(".json"):
        raise ValueError(
            f"PRESET is {chosen!r}; expected {', '.join(PRESETS)} or the path of a config.json"
        )
    return chosen


def _options(kind, command: str, chosen: str, description: str, arguments: list[str], defaults):
    import tyro

    from fedjax_sim.cli.names import PRESETS

    return tyro.cli(
        kind,
        prog=f"fedjax-sim {command} {chosen}",
        description=description.format(presets=", ".join(PRESETS), cache=_cache_dir()),
        args=arguments,
        default=defaults,
    )


def _start_jax() -> None:
    """Turns on the cache of compiled programs, and all cores of a CPU."""
    import jax

    from fedjax_sim.execution.devices import use_all_cores

    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(_cache_dir()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # A run compiles some forty small programs before its first round.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    use_all_cores()


def _option_named(message: str) -> str:
    """The message with ``--name`` for the field that it begins with."""
    from fedjax_sim.cli.config import SweepConfig

    field = re.match(r"(\w+) (?:is|has|lacks) ", message)
    if field and field[1] in SweepConfig.__dataclass_fields__:
        return f"--{field[1].replace('_', '-')}{message[field.end(1) :]}"
    return message


def _tuning_file() -> pathlib.Path:
    return _cache_dir() / "tuned.json"


def _cache_dir() -> pathlib.Path:
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home) / "fedjax_sim"


if __name__ == "__main__":
    sys.exit(main())
