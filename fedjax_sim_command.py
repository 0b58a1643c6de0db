"""Start of the command ``fedjax-sim``.

Importing the library takes seconds.  Ctrl-C meanwhile ends the process without a traceback; that
needs a module outside of the package, whose import is what takes the time.
"""

import signal


def main() -> int:
    """Runs the command; returns its exit code."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not if a script ignores Ctrl-C for this process
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    from fedjax_sim.cli.main import main as run

    signal.signal(signal.SIGINT, handler)
    return run()
