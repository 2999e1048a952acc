"""SignalRequest: a request by a signal handler, which may run at any moment."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time

from change_agent.signal_request import SignalRequest

# The signal of a timer interrupts every part of the main thread's waits. A `threading.Event` hung within a second, and
# an agent did not stop (found by the fault kit, seed 8112026, fault 810).
_UNDER_SIGNALS = """
import random
import signal
from change_agent.signal_request import SignalRequest

signal.signal(signal.SIGALRM, lambda *_: request.send())
for _ in range(5_000):
    request = SignalRequest()
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.0003))
    while not request.wait(0.00002):
        pass
"""


def test_a_signal_may_come_at_any_moment_of_a_wait() -> None:
    subprocess.run([sys.executable, "-c", _UNDER_SIGNALS], check=True, timeout=120)


def test_it_is_waited_for_until_it_is_told() -> None:
    request = SignalRequest()
    assert not request.wait(0.01)
    threading.Timer(0.05, request.send).start()
    started = time.monotonic()
    assert request.wait(60)
    assert time.monotonic() - started < 30
    assert request.wait(0)


def test_a_wait_wakes_up_only_when_it_ends() -> None:
    """The main thread of an idle agent woke up ten times a second."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    assert not SignalRequest().wait(1.0)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 5


def test_an_earlier_request_does_not_end_a_later_wait() -> None:
    request = SignalRequest()
    request.send()
    request.send()
    assert request.wait(60)
    assert request.take()
    started = time.monotonic()
    assert not request.wait(0.2)
    assert time.monotonic() - started >= 0.2


def test_it_is_taken_once() -> None:
    request = SignalRequest()
    assert not request.take()
    request.send()
    assert request.take()
    assert not request.take()
