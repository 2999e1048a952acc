"""Ctrl-C while Spark works: one line, and the exit code of Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Final

import pytest

pytestmark = pytest.mark.spark

# Spark plans a query that takes a minute. The main thread waits for Java's answer.
_JOB: Final = """
import click
from cdc.commands.spark_session import open_session, spark_errors
from cdc.commands.spark_progress import spark_progress
from cdc.main import run

@click.command()
def job():
    session = open_session((), "local[1]", is_short=True)
    print("ready", flush=True)
    try:
        with spark_errors(), spark_progress(session, "sleeping"):
            session.sql("SELECT java_method('java.lang.Thread', 'sleep', 60000L)").collect()
    finally:
        session.stop()

run(job, "cdc")
"""


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_a_job_without_a_traceback(times: int) -> None:
    """PySpark's handler made py4j fail, so the exit code was 1, and several tracebacks were printed.

    A second Ctrl-C, while the session is being stopped, has the same result. It may also end the process when Python
    itself ends, which a shell reports by the same exit code.
    """
    command = [sys.executable, "-c", _JOB]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for pause_s in (1.0, 0.1)[:times]:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(pause_s)
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode in (130, -signal.SIGINT)[:times], said
    assert said.endswith("cdc: interrupted\n")
    assert "Traceback" not in said
    assert "Error" not in said


# Ctrl-C comes when PySpark has just set its own handler, and the session is not ready.
_START: Final = """
import os, signal, threading, time
import click
from pyspark import SparkContext
from cdc.commands.spark_session import open_session
from cdc.main import run

def interrupt():
    while SparkContext._active_spark_context is None:
        time.sleep(0.001)
    print("sent", flush=True)
    os.kill(os.getpid(), signal.SIGINT)

@click.command()
def job():
    signal.signal(signal.SIGINT, signal.{before})
    threading.Thread(target=interrupt, daemon=True).start()
    session = open_session((), "local[1]", is_short=True)
    print("ready", flush=True)
    session.stop()

run(job, "cdc")
"""


@pytest.mark.parametrize(
    ("before", "code", "told"),
    [("default_int_handler", 130, "sent\n"), ("SIG_IGN", 0, "sent\nready\n")],
    ids=["usual", "ignored"],
)
def test_ctrl_c_while_a_session_starts_has_its_usual_effect(before: str, code: int, told: str) -> None:
    """It is ignored if it was, as a shell's script does for jobs in the background: PySpark would have ended them."""
    command = [sys.executable, "-c", _START.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (code, told), done.stderr
    assert "Traceback" not in done.stderr
