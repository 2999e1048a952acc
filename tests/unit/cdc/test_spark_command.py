"""`cdc spark`: what is wrong is said before Spark starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

PULSAR = ["--service-url", "pulsar://h:1", "--admin-url", "http://h:2"]


def cdc(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdc.main", "spark", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["mirror", *PULSAR], "Missing option '--topic'"),
        (
            ["mirror", *PULSAR, "--topic", "t", "--target", "x", "-o", "numbers"],
            "--option: 'numbers' is not NAME=VALUE",
        ),
        (["verify", *PULSAR, "--topic", "t", "--table", "x", "--contact-point", "h"], "'x' is not KEYSPACE.TABLE"),
        (["backfill", *PULSAR, "--table", "x", "--contact-point", "h"], "--table: 'x' is not KEYSPACE.TABLE"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    """No session is started, no traceback is shown."""
    done = cdc(*arguments)
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
