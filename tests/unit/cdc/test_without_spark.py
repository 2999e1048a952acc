"""Operators need no PySpark (docs/install.md): commands that run without it, and the errors of the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

# A machine on which only the wheel was installed, without [spark].
_BLOCKED: Final = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j", "pandas", "pyarrow"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
_CDC: Final = "from cdc.main import main\nmain()"
_BROKER: Final = ("--service-url", "pulsar://127.0.0.1:1", "--admin-url", "http://127.0.0.1:1")
_TABLE: Final = ("--topic", "data-shop.orders", "--table", "shop.orders", "--contact-point", "127.0.0.1")


def _run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{_BLOCKED}{code}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def line(tmp_path: Path) -> str:
    """A line.yaml with servers that are not running."""
    path = tmp_path / "line.yaml"
    path.write_text("pulsarServiceUrl: pulsar://127.0.0.1:1\npulsarAdminUrl: http://127.0.0.1:1\n")
    return str(path)


def test_resolved_timestamps_are_read_without_pyspark(line: str) -> None:
    """The connection is the first step that fails."""
    done = _run(_CDC, "resolved", "--config", line)
    assert done.returncode == 1
    assert done.stderr.startswith("cdc: Pulsar at http://127.0.0.1:1: the admin service does not answer")
    assert done.stderr.count("\n") == 1


def test_the_tables_of_the_status_are_judged_without_pyspark(line: str) -> None:
    """The findings are unknown only because Pulsar does not answer."""
    code = """
from pathlib import Path
from cdc.health.completeness import completeness_of
from cdc.health.line_config import LineConfig
print(completeness_of(LineConfig.load(Path(sys.argv[1])), ["shop.orders"], ()).text)
"""
    done = _run(code, line)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the admin service does not answer" in done.stdout


def test_the_page_for_prometheus_says_that_pulsar_is_away_and_why(line: str) -> None:
    """The metric is for the alarm, and the line on stderr for people."""
    done = _run(_CDC, "resolved", "--config", line, "--prometheus")
    assert done.returncode == 0
    assert "\ncdc_resolved_up 0.0\n" in done.stdout
    assert done.stderr.startswith("cdc resolved: Pulsar at http://127.0.0.1:1: the admin service does not answer")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", *_BROKER, *_TABLE),
        ("mirror", *_BROKER, "--topic", "data-shop.orders", "--target", "/tmp/nowhere"),
        ("resync", *_BROKER, "--contact-point", "127.0.0.1"),
        ("prepare",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_that_needs_pyspark_says_how_it_is_installed(arguments: tuple[str, ...]) -> None:
    """The error is one line, with exit code 2."""
    done = _run(_CDC, "spark", *arguments)
    assert done.stderr.rstrip("\n").endswith("is not installed; pip install 'cassandra-cdc[spark]'")
    assert (done.returncode, done.stderr.count("\n"), done.stderr.startswith("cdc: ")) == (2, 1, True)
