"""The command ``fedjax-sim``.

``fedjax-sim run [PRESET | CONFIG.json] [options]`` compares algorithms, ``fedjax-sim list`` says
what the options can name.  Exit codes: 0 done, 1 a run that cannot go on, 2 bad options, 130
interrupted.
"""

import importlib.metadata
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence

USAGE = """\
usage: fedjax-sim run [PRESET | CONFIG.json] [options]    compare federated algorithms
       fedjax-sim run --help                              all options and their defaults
       fedjax-sim list                                    algorithms, data sets, models, partitions
       fedjax-sim --version
"""

RUN_DESCRIPTION = """\
Compares federated algorithms: same clients, cohorts, minibatches and initial models for all.
PRESET is one of: {presets} (default quickstart); CONFIG.json repeats the run that wrote it.
Options override either. Compiled programs are kept in {cache}; the environment
variable JAX_COMPILATION_CACHE_DIR names another folder."""


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
        if command == "list" and not rest:
            return _list()
    except KeyboardInterrupt:  # while importing or loading: no algorithm had begun
        print("interrupted", file=sys.stderr)
        return 130
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


def _run(arguments: list[str]) -> int:
    import tyro

    from fedjax_sim.config import CompareConfig, read

    known = presets()
    chosen = "quickstart"
    if arguments and not arguments[0].startswith("-"):
        chosen, *arguments = arguments
    try:
        if chosen in known:
            defaults = known[chosen]
        elif chosen.endswith(".json"):
            defaults = read(chosen)
        else:
            raise ValueError(
                f"PRESET is {chosen!r}; expected {', '.join(known)} or the path of a config.json"
            )
    except ValueError as error:
        return _refuse(error)
    description = RUN_DESCRIPTION.format(presets=", ".join(known), cache=_cache_dir())
    config = tyro.cli(
        CompareConfig,
        prog=f"fedjax-sim run {chosen}",
        description=description,
        args=arguments,
        default=defaults,
    )
    return _compare(config, ["fedjax-sim", "run", chosen, *arguments])


def _compare(config, command: list[str]) -> int:
    # Imported here, so that --help does not wait for pandas and matplotlib.
    import jax
    from rich.console import Console

    from fedjax_sim.compare import compare
    from fedjax_sim.console import progress_bars, summary_table
    from fedjax_sim.simulation import DivergenceError

    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(_cache_dir()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    console = Console()
    try:
        with progress_bars(config, console) as on_progress:
            result = compare(config, on_progress)
    except (DivergenceError, ImportError) as error:
        print(f"fedjax-sim: error: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        return _refuse(error)
    if len(result.summary):
        console.print(summary_table(result.summary, config.target_accuracy))
    if result.interrupted:
        print(f"interrupted; everything so far is in {config.output}")
        print(f"to resume: {shlex.join(command)}")
        return 130
    print(f"results: {config.output} (history.csv, summary.json, config.json, *.png)")
    return 0


def presets():
    """The comparisons that have a name, by it.

    Example:
        >>> presets()["quickstart"].rounds
        100
    """
    from fedjax_sim.config import CompareConfig

    femnist = CompareConfig(
        output=pathlib.Path("results/femnist"),
        dataset="femnist",
        partition="natural",
        rounds=200,
        local_epochs=1,
        batch_size=20,
        seeds=1,
        eval_every=10,
    )
    return {"quickstart": CompareConfig(), "femnist": femnist}


def _list() -> int:
    from rich.console import Console

    from fedjax_sim.console import choice_tables

    console = Console()
    for table in choice_tables():
        console.print(table)
    return 0


def _refuse(error: ValueError) -> int:
    """One line about a bad value; a message that begins with an option's field names the option."""
    from fedjax_sim.config import CompareConfig

    message = str(error)
    field = re.match(r"(\w+) (?:is|has) ", message)
    if field and field[1] in CompareConfig.__dataclass_fields__:
        message = f"--{field[1].replace('_', '-')}{message[field.end(1) :]}"
    print(f"fedjax-sim: error: {message}", file=sys.stderr)
    return 2


def _cache_dir() -> pathlib.Path:
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home) / "fedjax_sim"


if __name__ == "__main__":
    sys.exit(main())
