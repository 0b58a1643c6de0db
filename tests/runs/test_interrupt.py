"""The first signal sets a flag, the second acts as before, and afterwards all is as before."""

import signal
import threading

import pytest

from fedjax_sim.runs.interrupt import deferred_interrupt, exit_code, raising

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def usual_handlers():
    """Those of a process in the foreground; one started by a script with ``&`` ignores Ctrl-C."""
    before = [signal.signal(signal.SIGINT, signal.default_int_handler)]
    with raising():
        yield
    signal.signal(signal.SIGINT, before[0])


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_the_first_sets_a_flag_and_the_second_raises(number, second):
    before = list(map(signal.getsignal, SIGNALS))
    with deferred_interrupt() as interrupted:
        assert not interrupted()
        signal.raise_signal(number)
        assert interrupted()
        assert exit_code() == 128 + number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)
        assert interrupted()
    assert list(map(signal.getsignal, SIGNALS)) == before


def test_the_handlers_are_restored_after_an_error():
    before = list(map(signal.getsignal, SIGNALS))
    with pytest.raises(ZeroDivisionError), deferred_interrupt():
        raise ZeroDivisionError
    assert list(map(signal.getsignal, SIGNALS)) == before


def test_sigterm_raises_outside_of_a_run_and_gives_its_exit_code():
    before = signal.getsignal(signal.SIGTERM)
    with raising():
        assert exit_code() == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert exit_code() == 143
    assert signal.getsignal(signal.SIGTERM) is before


class _Finalised:
    def __init__(self, number):
        self._number = number

    def __del__(self):
        signal.raise_signal(self._number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_python_drops_is_not_lost(number, capfd):
    with raising():
        _Finalised(number)  # Python drops exceptions of finalisers
        with deferred_interrupt() as interrupted:
            assert interrupted()
        assert exit_code() == 128 + number
    with raising(), deferred_interrupt() as interrupted:
        assert not interrupted()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("context", [deferred_interrupt, raising])
def test_other_threads_leave_signals_alone(context):
    """Only the main thread may set handlers; elsewhere the contexts do nothing."""
    before, seen = list(map(signal.getsignal, SIGNALS)), []

    def work():
        with context() as interrupted:
            seen.append(interrupted is not None and interrupted())
            seen.append(list(map(signal.getsignal, SIGNALS)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, before]
