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
