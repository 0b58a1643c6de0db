"""Messages of JAX about a lost process become one line; all other messages stay."""

import signal
import subprocess
import sys
import time

import pytest

from fedjax_sim.engine.execution import lost_process
from fedjax_sim.engine.execution.lost_process import filtered

FATAL = "F1122 client.h:80] Terminating process because the JAX distributed service detected fatal"
STACK = "*** Check failure stack trace: ***"
FRAMES = ["    @  0x7ff73 absl::log_internal::LogMessage::Flush()", "    @  0x7ff72 (unknown)"]


def printed(lines):
    return list(filtered([line + "\n" for line in lines], 4, heartbeat_timeout=9))


@pytest.mark.parametrize(
    ("messages", "lost"),
    [
        (["E1122 coordination_service.cc] UNAVAILABLE: Task 2 heartbeat timeout. This"], 2),
        (["E1122 coordination_service.cc] unhealthy (stopped sending heartbeats):", "3", "The"], 3),
        (["E1122 coordination_service_agent.cc] Polled an error: Socket closed"], 0),
        ([], 0),
    ],
)
def test_the_lost_process_is_named(messages, lost):
    lines = printed(["a warning", *messages, FATAL, "status: INTERNAL", STACK, *FRAMES])
    assert lines[0] == "a warning\n"
    assert len(lines) == 2
    assert lines[1].startswith(f"process {lost} of 4 was lost: it ended, or showed no sign of life")
    assert "for 9 s" in lines[1]


def test_a_message_without_an_end_is_printed():
    lines = ["E1122 coordination_service.cc] a retry", *map(str, range(60))]
    assert printed(lines) == [line + "\n" for line in lines]
    assert printed(lines[:5]) == [line + "\n" for line in lines[:5]]


def test_lines_of_gloo_are_left_out():
    line = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks: 1"
    assert printed([line, "[Gloo] timed out"]) == ["[Gloo] timed out\n"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_reporter_outlives_signals(number):
    """Slurm and a terminal signal every process; the reporter ends with its pipe."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-I", lost_process.__file__, "2", "20"]
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) as reporter:
        reporter.stdin.write("ready\n")
        reporter.stdin.flush()
        assert reporter.stderr.readline() == "ready\n"
        reporter.send_signal(number)
        time.sleep(0.05)
        _, printed = reporter.communicate("after\n")
    assert printed == "after\n"
    assert reporter.returncode == 0
