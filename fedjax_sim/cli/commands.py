"""The commands of ``fedjax-sim``: options in, exit code out.

Heavy modules are imported inside functions, so that ``--help`` does not wait for them.
"""

import contextlib
import os
import pathlib
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fedjax_sim.cli.errors import Failure, resolving, running
from fedjax_sim.runs import exit_code
from fedjax_sim.types import counted

if TYPE_CHECKING:
    from fedjax_sim.cli.grid import SweepOptions
    from fedjax_sim.cli.run_options import RunOptions
    from fedjax_sim.cli.space import TuneOptions
    from fedjax_sim.studies.setups import Run, Study

Options = TypeVar("Options")

RUN_DESCRIPTION = """\
Compares federated algorithms: same clients, cohorts, minibatches and initial models for all.
PRESET is one of: {presets} (default quickstart); a study module (.py) has own parts;
CONFIG.json repeats the run that wrote it. Options override either. Compiled programs are cached in
{cache}; the environment variable JAX_COMPILATION_CACHE_DIR names another folder."""

SWEEP_DESCRIPTION = """\
Runs every configuration of a grid with every seed and chooses the best; numbers vary inside one
compiled program. PRESET, one of {presets} (default quickstart), or a CONFIG.json of
run or sweep gives the other settings; options override them. Finished runs in the output folder are
not repeated. Compiled programs are cached in {cache}."""

TUNE_DESCRIPTION = """\
A sampler of Optuna chooses hyper-parameters and settings, batch by batch; a batch trains with every
seed in one compiled program, or in one for each choice that changes shapes. PRESET, one of
{presets} (default quickstart), a study module (.py) or a CONFIG.json of run or tune
gives the other settings; options override them. Finished trials in the output folder are not
repeated. Its best.json is a configuration for fedjax-sim run. Compiled programs are cached in
{cache}."""

MEASURE_DESCRIPTION = """\
Measures ways to execute a round on this machine for the run that PRESET (one of {presets}),
CONFIG.json and options describe: clients at once, host devices, and lowerings of convolutions.
Stores the fastest in .fedjax_sim of the current folder, where fedjax-sim run finds it (with
--execution auto) for the same model, batch size, cohort size and number of seeds; with --user in
{cache}, for runs in every folder. A run records what it used."""

LIST_HELP = """\
usage: fedjax-sim list [STUDY.py] [ALGORITHM ...] [-h]

Prints the names that options take: algorithms with their hyper-parameters, data sets, models,
partitions, rules of sampling, codecs, robust rules, attacks and presets; with a study module also
its algorithms. With ALGORITHM, describes its hyper-parameters.
"""


def run(arguments: list[str]) -> int:
    """Runs a comparison, or forecasts it; returns the exit code."""
    from fedjax_sim.cli.run_options import RunOptions

    with resolving():
        given, study, command = _typed(RunOptions, "run", RUN_DESCRIPTION, arguments)
        study = study.replaced(options=_connected(given))

        from fedjax_sim.cli import report
        from fedjax_sim.engine import distributed
        from fedjax_sim.studies.setups import resolve

        if not given.dry_run:
            report.check_folder(given.run.output, "a comparison")
        comparison = resolve(study)
        with comparison.arithmetic():
            name = next(iter(comparison.hyper))
            setup, algorithm = comparison.setups[name], comparison.algorithm(name)
            callbacks = given.watching.callbacks(setup, algorithm)
        if comparison.untuned is not None and distributed.is_first():
            print(comparison.untuned)
    if given.dry_run:
        return _forecast(comparison)
    return _compare(comparison, command, given.diagnose, callbacks)


def _typed(
    kind: type[Options],
    command: str,
    template: str,
    arguments: list[str],
    output: pathlib.Path | None = None,
) -> tuple[Options, "Study", list[str]]:
    """Returns the options of a command, the study with them, and the command to repeat."""
    from fedjax_sim.cli import options
    from fedjax_sim.studies.setups import replaced

    source, study, rest = options.read_arguments(arguments)
    default: Any = study.options if output is None else replaced(study.options, "output", output)
    given: Any = options.parse(
        kind, f"{command} {source}", _described(template), rest, cast(Any, kind)(default)
    )
    options.check_replaced(study, source, rest, given.run)
    _start_jax()
    return given, study.replaced(options=given.run), ["fedjax-sim", command, source, *rest]


def _connected(given: "RunOptions") -> "Run":
    """Returns the comparison's options, after connecting this process to the others, if any."""
    cluster, run = given.cluster, given.run
    where = {
        name: getattr(cluster, name) for name in ("coordinator", "num_processes", "process_id")
    }
    if not cluster.distributed and not any(value is not None for value in where.values()):
        return run
    import jax

    from fedjax_sim.engine import distributed
    from fedjax_sim.studies.setups import replaced

    distributed.connect(**where, heartbeat_timeout=cluster.heartbeat_timeout)
    if run.execution.num_strata is not None:
        return run
    return replaced(run, "num_strata", _strata_of(run.output) or jax.device_count())


def _strata_of(output: pathlib.Path) -> int | None:
    """Returns the number of strata of the comparison in a folder, which other devices continue."""
    from fedjax_sim.studies.setups import read_saved

    with contextlib.suppress(OSError, ValueError):  # damage has its message later
        return read_saved(output / "config.json").config.execution.num_strata
    return None


def _compare(comparison, command: list[str], diagnose: bool, callbacks: list) -> int:
    # Imported here, so that --help does not wait for pandas and matplotlib.
    from rich.console import Console

    from fedjax_sim.cli.console import progress_bars
    from fedjax_sim.cli.run import execute, ready
    from fedjax_sim.cli.tables import diagnosis_tables, summary_table
    from fedjax_sim.cli.watching import closing
    from fedjax_sim.engine import distributed

    output, first = comparison.output, distributed.is_first()
    console = Console(quiet=not first)  # only process 0 prints
    with contextlib.ExitStack() as stack:
        with resolving():
            job = stack.enter_context(ready(comparison, _measured_files(), diagnose=diagnose))
        with (
            running(output),
            progress_bars(list(comparison.hyper), console) as bars,
            closing(callbacks) as ended,
        ):
            result = execute(job, [*callbacks, *bars])
            ended += [] if result.interrupted else ["finished"]
    if len(result.summary):
        console.print(summary_table(result.summary, comparison.evaluation.target_accuracy))
    _print_guarantees(comparison)
    if result.interrupted:
        if first:
            print(f"interrupted; everything so far is in {output}")
            print(f"to resume: {shlex.join(command)}")
        return exit_code()
    if result.diagnosis is not None:
        for table in diagnosis_tables(result.diagnosis):
            console.print(table)
    if first:
        print(f"results: {output} (history.csv, summary.json, config.json, *.png)")
    return 0


def _print_guarantees(comparison) -> None:
    """Prints the privacy of the whole run, if it is private."""
    from fedjax_sim.engine import distributed

    if distributed.is_first() and comparison.guarantee is not None:
        print(f"privacy of every algorithm: {comparison.guarantee}")


def _forecast(comparison) -> int:
    from rich.console import Console

    from fedjax_sim.cli import measured
    from fedjax_sim.cli.tables import forecast_table
    from fedjax_sim.engine import distributed

    with resolving():
        measured.recorded(comparison.computed)
    with running(None):
        forecasts = dict(measured.run_forecast(comparison, _measured_files()))
    Console(quiet=not distributed.is_first()).print(forecast_table(forecasts))
    _print_guarantees(comparison)
    with resolving():
        for forecast in forecasts.values():
            forecast.check()
    return 0


def sweep(arguments: list[str]) -> int:
    """Runs a sweep; returns the exit code."""
    from fedjax_sim.cli.grid import SWEEP

    with resolving():
        _refuse(arguments, _PROCESSES, "expected --part and --parts, which divide a sweep")
        _refuse(arguments, _DIVERGENCE, "a sweep records divergences, and they have no score")
        _refuse(arguments, _TARGET, "fedjax-sim table FOLDER --target has the rounds to a value")
        source, rest, study, config = SWEEP.read(arguments, _described(SWEEP_DESCRIPTION))
        _start_jax()
    return _run_sweep(study, config, ["fedjax-sim", "sweep", source, *rest])


# Options of a comparison, or of its run, that do nothing in other commands.
_PROCESSES = ("distributed", "coordinator", "num-processes", "process-id")
_DIVERGENCE = ("on-divergence",)
_TARGET = ("target-accuracy",)
_RESULTS = ("output", *_DIVERGENCE, *_TARGET)


def _refuse(arguments: list[str], names: Sequence[str], instead: str) -> None:
    """Refuses typed options of ``fedjax-sim run``."""
    typed = {argument.split("=")[0].replace("_", "-") for argument in arguments}
    for name in names:
        if f"--{name}" in typed:
            raise ValueError(f"--{name} is an option of fedjax-sim run; {instead}")


def _run_sweep(study: "Study", config: "SweepOptions", command: list[str]) -> int:
    from rich.console import Console

    from fedjax_sim.cli.console import sweep_progress
    from fedjax_sim.cli.sweep import run_sweep
    from fedjax_sim.cli.tables import best_table

    console = Console()
    with sweep_progress(console) as bar:
        try:
            result = run_sweep(study, config, [bar])
        except Exception:  # of bad options until the first program is ready
            with running(config.run.output) if bar.began else resolving():
                raise
    if len(result.best):
        console.print(best_table(result.best, config.score_metric))
    done = result.sweep
    print(
        f"{counted(len(done.runs), 'run')} ({done.resumed} found), "
        f"{counted(done.compilations, 'program')} compiled in "
        f"{done.compile_seconds:.0f} s, training {done.run_seconds:.0f} s"
    )
    if done.interrupted:
        print(f"interrupted; finished runs are in {config.run.output}")
        print(f"to resume: {shlex.join(command)}")
        return exit_code()
    if config.part is not None and done.missing:
        print(
            f"part {config.part} of {config.parts} is finished; {done.missing} runs of other parts "
            "are missing. The last part, or the same command without --part, writes the tables"
        )
        return 0
    print(f"results: {config.run.output} (history.csv, scores.csv, best.csv, *.png)")
    return 0


def tune(arguments: list[str]) -> int:
    """Runs a tuning; returns the exit code."""
    from fedjax_sim.checks import import_extra
    from fedjax_sim.cli.space import TUNING

    with resolving():
        _refuse(arguments, _PROCESSES, "expected one process, whose devices share a batch")
        _refuse(arguments, _DIVERGENCE, "a tuning records divergences, and they have no score")
        _refuse(arguments, _TARGET, "a tuning compares trials by --metric")
        source, rest, study, config = TUNING.read(arguments, _described(TUNE_DESCRIPTION))
        import_extra("optuna", "tune")
        _start_jax()
    return _run_tuning(study, config, source, rest)


def _run_tuning(study: "Study", config: "TuneOptions", source: str, rest: list[str]) -> int:
    from rich.console import Console

    from fedjax_sim.cli.console import tuning_progress
    from fedjax_sim.cli.tables import trials_table
    from fedjax_sim.cli.tune import run_tune

    output, console = config.run.output, Console()
    with tuning_progress(console, config.trials, config.batch, config.score_metric) as bar:
        try:
            result = run_tune(study, config, source, rest, [bar])
        except Exception:  # of a batch that cannot run, until its programs are ready
            with running(output) if bar.training else resolving():
                raise
    if len(result.trials):
        console.print(trials_table(result.trials, config.score_metric, result.mode))
    done = result.tuning.sweep
    complete = sum(one.complete for one in result.tuning.tried)
    print(
        f"{len(result.tuning.tried)} trials, of which {complete} did all rounds: {len(done.runs)} "
        f"runs ({done.resumed} found), {done.compilations} programs compiled in "
        f"{done.compile_seconds:.0f} s, training {done.run_seconds:.0f} s"
    )
    if done.interrupted:
        print(f"interrupted; finished trials are in {output}")
        print(f"to resume: {shlex.join(['fedjax-sim', 'tune', source, *rest])}")
        return exit_code()
    print(f"results: {output} (trials.csv, history.csv{', best.json' if result.command else ''})")
    if result.command:
        print(f"the best: {result.command}")
    return 0


def measure(arguments: list[str]) -> int:
    """Measures ways to execute a comparison; returns the exit code."""
    from fedjax_sim.cli.measured import MeasureOptions, run_measure

    with resolving():
        _refuse(arguments, _RESULTS, "a measurement is stored for later runs")
        given, study, _ = _typed(MeasureOptions, "measure", MEASURE_DESCRIPTION, arguments)
        project, user = _measured_files()
        path = user if given.user else project

        from rich.console import Console

        from fedjax_sim.cli.tables import measured_table
        from fedjax_sim.studies.setups import resolve

        comparison = resolve(study)
    console = Console()
    with running(None):
        for name, measured in run_measure(comparison, path, console.status):
            console.print(measured_table(name, measured))
    print(f"stored in {path}")
    return 0


def clients(arguments: list[str]) -> int:
    """Draws the clients of a comparison; returns the exit code."""
    from fedjax_sim.cli import draw_clients

    with resolving():
        kind, text = draw_clients.ClientsOptions, draw_clients.DESCRIPTION
        output = pathlib.Path("results/clients")
        given, study, _ = _typed(kind, "clients", text, arguments, output)
        from rich.console import Console

        table, names = draw_clients.draw(study, given.max_clients)
    Console().print(table)
    print(f"figures: {given.run.output} ({', '.join(names)})")
    return 0


def advise(arguments: list[str]) -> int:
    """Prints what theory says about the task of a comparison; returns the exit code."""
    from fedjax_sim.cli import advise as advising

    with resolving():
        _refuse(arguments, _RESULTS, "advice is printed")
        kind, text = advising.AdviseOptions, advising.DESCRIPTION
        given, study, _ = _typed(kind, "advise", text, arguments)
        from fedjax_sim.studies.setups import resolve

        advice = advising.run_advise(resolve(study), given.target, given.gradient_target)
    print(advice)
    return 0


def list_names(arguments: list[str]) -> int:
    """Prints the names that options take, or algorithms' hyper-parameters."""
    if not {"-h", "--help"}.isdisjoint(arguments):
        print(LIST_HELP, end="")
        return 0
    from rich.console import Console

    from fedjax_sim.cli.listing import algorithm_table, list_tables
    from fedjax_sim.cli.options import study_of
    from fedjax_sim.studies.setups import Study, algorithms_of

    try:
        own = arguments[:1] if "".join(arguments[:1]).endswith(".py") else []
        study, names = study_of(*own) if own else Study(), arguments[len(own) :]
        entries = algorithms_of(names, study.algorithms) if names else {}
    except ValueError as error:
        raise Failure(re.sub("^algorithms has", "unknown algorithm", str(error)), 2) from error
    console = Console()
    for table in map(algorithm_table, entries.values()) if names else list_tables(study):
        console.print(table)
    return 0


def _described(template: str) -> str:
    from fedjax_sim.studies.setups import PRESETS

    return template.format(presets=", ".join(PRESETS), cache=_cache_dir())


def _start_jax() -> None:
    """Chooses the cache of compiled programs, all cores of a CPU, a GPU's command buffers.

    JAX is not started, so that processes can be connected afterwards.
    """
    import jax

    from fedjax_sim.engine import use_all_cores, use_command_buffers

    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(_cache_dir()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # A run compiles some forty small programs before its first round.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    use_command_buffers()
    use_all_cores()


def _measured_files() -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the files of this project and of the user; the project's comes first."""
    # In the current folder, so that one project does not change another.
    return pathlib.Path(".fedjax_sim/executions.json"), _cache_dir() / "executions.json"


def _cache_dir() -> pathlib.Path:
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home) / "fedjax_sim"
