"""One line about a lost process, which replaces JAX's C++ messages and stack trace.

If one process of a run is killed or frozen, JAX ends all others from C++, where no handler of
Python runs.  :func:`report_lost_process` therefore gives the C++ messages to a small reporter
process, which outlives this one.  The reporter is this file as a script; it imports only the
standard library.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator

_OF_JAX = re.compile(r"coordination_service|distributed runtime")
_FATAL = "Terminating process because the JAX distributed service"
_MOST_PENDING = 40  # lines
_STACK = "*** Check failure stack trace"
_GLOO = "[Gloo] Rank "  # every device announces its connections on the standard output
_TASK = re.compile(r"Task (\d+) heartbeat timeout|stopped sending heartbeats\):\n(\d+)")


def report_lost_process(num_processes: int, heartbeat_timeout: int) -> None:
    """Starts the reporter, and gives it what C++ code writes to both standard streams from now on.

    Python's own messages still go to their stream directly, line by line.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    output, terminal = os.dup(1), os.dup(2)
    reader, writer = os.pipe()
    subprocess.Popen(
        [sys.executable, "-I", __file__, str(num_processes), str(heartbeat_timeout)],
        stdin=reader, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.close(reader)
    os.close(writer)
    sys.stdout = os.fdopen(output, "w", buffering=1, errors="backslashreplace")
    sys.stderr = os.fdopen(terminal, "w", buffering=1, errors="backslashreplace")


def filtered(lines: Iterable[str], num_processes: int, heartbeat_timeout: int) -> Iterator[str]:
    """Yields the lines to print: other messages as they are, and one about a lost process.

    Lines in which Gloo announces its connections are left out.
    """
    pending: list[str] = []  # a message of JAX and the lines after it, which may belong to it
    ending = reported = False
    for line in lines:
        if line.startswith(_GLOO):
            continue
        ending = ending or _FATAL in line
        if not (ending or pending or _OF_JAX.search(line)):
            yield line
            continue
        pending.append(line)
        if ending and not reported and _STACK in line:
            reported = True
            task = _TASK.search("".join(pending))
            # Process 0 is the one that all others talk to; about its loss there is no message.
            lost = next(filter(None, task.groups())) if task else "0"
            yield (
                f"process {lost} of {num_processes} was lost: it ended, or showed no sign of life "
                f"for {heartbeat_timeout} s (its own output may have the reason). Start all "
                "processes again with the same command; they continue from the last checkpoint.\n"
            )
        if not ending and len(pending) == _MOST_PENDING:  # the message was about something else
            yield from pending
            pending.clear()
    if not ending:
        yield from pending


def _main() -> None:
    # Ctrl-C and Slurm signal every process of a step. The reporter ends when its pipe ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    num_processes, heartbeat_timeout = map(int, sys.argv[1:])
    for text in filtered(sys.stdin, num_processes, heartbeat_timeout):
        sys.stderr.write(text)
        sys.stderr.flush()


if __name__ == "__main__":
    _main()
