import os
import signal
import threading

import pytest

from uedp.signals import STOPPING, deferred, handled_by


def stop(number, frame):
    raise SystemExit(number)


def handlers():
    return [signal.getsignal(number) for number in STOPPING]


def interrupt_twice() -> None:
    with deferred():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        interrupt_twice.finished = True


def test_a_deferred_signal_comes_after_the_block():
    before = handlers()
    interrupt_twice.finished = False
    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    assert interrupt_twice.finished
    assert handlers() == before


@pytest.mark.parametrize("number", STOPPING)
def test_every_way_of_stopping_reaches_the_handler(number):
    before = handlers()
    with pytest.raises(SystemExit) as stopped, handled_by(stop):
        os.kill(os.getpid(), number)
    assert stopped.value.code == number
    assert handlers() == before


def test_an_ignored_signal_stays_ignored():
    """As `nohup` wants it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled_by(stop):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is stop
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_signals_alone():
    seen = []

    def elsewhere() -> None:
        with handled_by(stop), deferred():
            seen.append(handlers())

    before = handlers()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]
