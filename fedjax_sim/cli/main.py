"""The command ``fedjax-sim``: :data:`USAGE` lists its commands.

Exit codes: 0 done, 1 a run that failed, 2 bad options, 130 interrupted by Ctrl-C, 143 by SIGTERM;
docs/files.md has the details.
"""

import importlib.metadata
import shlex
import sys
from collections.abc import Sequence

from fedjax_sim.checks import did_you_mean
from fedjax_sim.cli import commands, folder_commands, init
from fedjax_sim.cli.errors import Failure, warnings_in_one_line
from fedjax_sim.engine import distributed
from fedjax_sim.runs import interrupt

USAGE = """\
usage: fedjax-sim run [SOURCE] [options]                   compare federated algorithms
       fedjax-sim sweep [SOURCE] [options]                 a grid of hyper-parameters and settings
       fedjax-sim tune [SOURCE] [options]                  a sampler chooses (Optuna), the best stay
       fedjax-sim init STUDY.py [PRESET | TABLE]           a study module to start from
       fedjax-sim clients [SOURCE] [options]               draw the clients before training
       fedjax-sim advise [SOURCE] [options]                what theory says about the task
       fedjax-sim measure [SOURCE] [options]               measure ways to execute a run
       fedjax-sim plot FOLDER [FOLDER ...] [options]       figures of finished and unfinished runs
       fedjax-sim table FOLDER [FOLDER ...] [options]      tables: Markdown, LaTeX, CSV
       fedjax-sim report FOLDER [FOLDER ...] [options]     one HTML file of results
       fedjax-sim export FOLDER [options]                  a trained model: npz, safetensors, orbax
       fedjax-sim fork FOLDER --round T [options]          "what if, from round T": alternatives
       fedjax-sim run | sweep | ... --help                 all options and their defaults
       fedjax-sim list [STUDY.py]                          algorithms, data sets, models, presets
       fedjax-sim list [STUDY.py] ALGORITHM                an algorithm's hyper-parameters
       fedjax-sim --version

SOURCE is a preset, a study module (STUDY.py) or the CONFIG.json of a run.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    Errors while options are resolved are one line.  Later errors show their traceback, and say
    what was kept.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    known = {
        "run": commands.run,
        "sweep": commands.sweep,
        "tune": commands.tune,
        "init": init.init,
        "measure": commands.measure,
        "clients": commands.clients,
        "advise": commands.advise,
        "plot": folder_commands.plot,
        "table": folder_commands.table,
        "report": folder_commands.report,
        "export": folder_commands.export,
        "fork": folder_commands.fork,
        "list": commands.list_names,
    }
    try:
        if command in known:
            with interrupt.raising(), warnings_in_one_line():
                return known[command](rest)
    except Failure as error:
        if not distributed.first_says(str(error)):
            print(f"fedjax-sim: error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:  # while importing or loading: no algorithm had begun
        print("interrupted", file=sys.stderr)
        return interrupt.exit_code()
    except SystemExit as error:  # of the option parser: 0 after --help, 2 after an error
        return error.code if isinstance(error.code, int) else 2
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command == "--version":
        print("fedjax-sim", importlib.metadata.version("fedjax_sim"))
        return 0
    unknown = f"unknown command {shlex.join(arguments)!r}{did_you_mean(command, known)}"
    print(f"fedjax-sim: error: {unknown}", file=sys.stderr)
    print(USAGE, end="", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
