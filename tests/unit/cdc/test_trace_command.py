"""`cdc trace` and `cdc resend`: arguments, checked before any server is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from cassandra import OperationTimedOut
from click.testing import CliRunner, Result

from cdc.commands import spark_jars
from cdc.commands.trace import _first_line, _of_mirrors
from cdc.health.findings import Level
from cdc.health.line_config import LineConfig
from cdc.main import cli
from cdc.trace.report import _agent_here
from cdc.trace.row_key import RowKey
from change_agent.schema.node_connection import NodeConnection, NodeUnavailableError
from schemas.errors import ConfigError
from tests.cql.tables import table_of


def _called(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--config", "no-such-line.yaml"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trace", "ks.t", "1", "--no-mirror"], "No such option: --no-mirror. Did you mean '--no-mirrors'?"),
        (["trace", "ks.t", "1", "--limits=3"], "No such option: --limits. Did you mean '--limit'?"),
        (["resend", "ks.t", "--draft"], "No such option: --draft. A value that begins so goes behind --"),
    ],
)
def test_a_wrong_option_is_no_word_of_the_key(arguments: list[str], said: str) -> None:
    """The exit code is 2."""
    done = _called(*arguments)
    assert (done.exit_code, said in " ".join(done.output.split())) == (2, True), done.output


def test_a_level_is_one_that_cassandra_has() -> None:
    """The error lists Cassandra's levels."""
    done = _called("trace", "ks.t", "1", "--consistency", "LOCALQUORUM")
    assert isinstance(done.exception, ConfigError), done.output
    assert str(done.exception).startswith("--consistency: 'LOCALQUORUM' is no level of reads, which are ONE, TWO, ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["trace", "ks.t", "-1", "--no-mirrors", "--consistency", "local_quorum"],
        ["trace", "ks.t", "--limit=3", "-1", "--", "--draft"],
        ["resend", "ks.t", "--", "--draft"],
    ],
)
def test_other_words_are(arguments: list[str], tmp_path: Path) -> None:
    """The command accepts them, and reads its configuration next."""
    missing = tmp_path / "line.yaml"
    done = CliRunner().invoke(cli, [arguments[0], "--config", str(missing), *arguments[1:]])
    assert isinstance(done.exception, ConfigError), done.output
    assert str(missing) in str(done.exception)


@pytest.mark.parametrize("command", ["trace", "resend"])
@pytest.mark.parametrize("is_given", [False, True])
def test_a_trace_that_fails_says_whether_a_line_was_given(
    command: str, is_given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, it may have asked the wrong servers. It used to say nothing."""

    def refuses(connection: NodeConnection) -> None:
        raise OperationTimedOut

    monkeypatch.setattr(NodeConnection, "_connected", refuses)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("CDC_LINE", raising=False)
    (tmp_path / "line.yaml").write_text("contactPoints: 10.0.0.1\n")
    given = ["--config", str(tmp_path / "line.yaml")] if is_given else []
    done = CliRunner().invoke(cli, [command, "ks.t", "1", *given])
    assert isinstance(done.exception, NodeUnavailableError), done.output
    said = (
        "line.yaml: none was given: the servers on localhost are used, for no sandbox runs in its default folder; agents of other machines and mirrors are not looked"
        " at; give a file by --config or CDC_LINE (docs/status.md has an example)\n"
    )
    assert done.stderr == ("" if is_given else said)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PySpark leaves a pipe open
def test_a_spark_that_does_not_start_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other sections of the trace are still printed."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(spark_jars, "cached_jars", lambda *line, **parts: ())
    table = table_of({"id": "int"})
    line = LineConfig.from_mapping({"mirrors": [str(tmp_path / "mirror")]})
    [found] = _of_mirrors(line, RowKey.of_words(table, ["1"]))
    assert (found.level, "Spark's Java did not start" in found.text) == (Level.FAILURE, True)
    assert found.remedy.endswith("--no-mirrors")


def test_an_error_without_a_text_has_its_name() -> None:
    """Otherwise the first line of its text is used."""
    assert (_first_line(KeyError()), _first_line(ValueError("a\nb"))) == ("KeyError", "a")


def test_an_agents_file_that_cannot_be_looked_at_is_a_reason() -> None:
    """The name of the file is too long. A folder without access rights has the same effect."""
    assert _agent_here("/" + "x" * 300) == "its agent.yaml cannot be read (File name too long)"


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--watch", "--interval", "1e300"],
        ["connector", "watch", "--interval", "1e300"],
        ["connector", "watch", "--patience", "1e300"],
    ],
)
def test_an_interval_that_nobody_can_wait_for_is_wrong_usage(arguments: list[str]) -> None:
    """It used to end in a traceback after the first check."""
    done = _called(*arguments)
    assert (done.exit_code, "1e+300 is not in the range" in " ".join(done.output.split())) == (2, True), done.output


@pytest.mark.parametrize("table", ["orders", ".orders", "shop."])
def test_resolved_takes_tables_with_their_keyspace(table: str, tmp_path: Path) -> None:
    """Pulsar is not asked."""
    (tmp_path / "line.yaml").touch()
    done = CliRunner().invoke(cli, ["resolved", table, "--config", str(tmp_path / "line.yaml")])
    assert isinstance(done.exception, ConfigError), done.output
    assert str(done.exception) == f"TABLE: {table!r} is not KEYSPACE.TABLE"
