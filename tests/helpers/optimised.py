"""Runs code with the optimisation that the tests leave out to compile faster."""

import os
import pathlib
import subprocess
import sys


def run_optimised(test_file: str, script: str) -> None:
    """Runs a script that imports a test file, in a process whose programs are optimised."""
    flags = os.environ["XLA_FLAGS"].replace("--xla_backend_optimization_level=0", "")
    folders = [str(pathlib.Path(test_file).parent), *filter(None, sys.path)]
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(folders)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
