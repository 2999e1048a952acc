"""`cdc trace` and `cdc resend`: words of the command line, before any server is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cdc.main import cli
from schemas.errors import ConfigError


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
    """Exit code 2."""
    done = _called(*arguments)
    assert (done.exit_code, said in " ".join(done.output.split())) == (2, True), done.output


def test_a_level_is_one_that_cassandra_has() -> None:
    """The error has their names."""
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
    """The command goes on to its configuration."""
    missing = tmp_path / "line.yaml"
    done = CliRunner().invoke(cli, [arguments[0], "--config", str(missing), *arguments[1:]])
    assert isinstance(done.exception, ConfigError), done.output
    assert str(missing) in str(done.exception)
