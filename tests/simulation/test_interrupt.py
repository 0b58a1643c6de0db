"""The first Ctrl-C sets a flag, the second raises, and afterwards all is as before."""

import signal
import threading

import pytest

from fedjax_sim.simulation.interrupt import deferred_interrupt


@pytest.fixture
def usual_handler():
    """That of a process in the foreground; one started by a script with ``&`` ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_sets_a_flag_and_the_second_raises(usual_handler):
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupt() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interrupted()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_handler_is_restored_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), deferred_interrupt():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_leave_signals_alone():
    """Only the main thread may set handlers; elsewhere the context does nothing."""
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with deferred_interrupt() as interrupted:
            seen.append((interrupted(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
