"""The command `cdc` itself: unknown commands, unexpected errors, and completion in a shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import click
import pulsar
import pytest

from cdc.main import main, run

_PAGE: Final = Path(__file__).parents[3] / "docs" / "cli.md"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["agnt"], "cdc: No such command 'agnt'. Did you mean 'agent'? (`cdc --help` lists what there is)\n"),
        (["xyzzy"], "cdc: No such command 'xyzzy'. (`cdc --help` lists what there is)\n"),
        (
            ["agent", "staus"],
            "cdc agent: No such command 'staus'. Did you mean 'status'? (`cdc agent --help` lists what there is)\n",
        ),
        (
            ["sandbox", "strat"],
            "cdc sandbox: No such command 'strat'. Did you mean 'start'? (`cdc sandbox --help` lists what there is)\n",
        ),
    ],
    ids=" ".join,
)
def test_a_mistyped_command_is_named_with_the_one_that_was_meant(
    typed: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code of usage errors is 2."""
    monkeypatch.setattr(sys, "argv", ["cdc", *typed])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (2, said)


def test_ctrl_c_has_its_usual_exit_code(tmp_path: Path) -> None:
    """It used to be 1, which means that there is a failure, or for `cdc spark verify` that rows differ."""
    line = tmp_path / "line.yaml"
    line.write_text("port: 1\npulsarAdminUrl: http://127.0.0.1:1\npulsarServiceUrl: pulsar://127.0.0.1:1\n")
    command = [sys.executable, "-m", "cdc.main", "status", "--watch", "--config", str(line)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("TROUBLE: ")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (130, "cdc: interrupted")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/x"), "[Errno 13] Permission denied: '/x'"),
        (pulsar.ConnectError("no\nbroker"), "no broker"),
        (TimeoutError(), "TimeoutError"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_what_no_command_has_foreseen_of_files_and_servers_is_one_line(
    error: Exception, said: str, debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--debug` shows the traceback."""
    monkeypatch.setattr(sys, "argv", ["cdc", *["--debug"][: int(debug)]])
    with pytest.raises(SystemExit) as ended:
        run(_raising(error), "cdc")
    *traceback, line = capsys.readouterr().err.splitlines()
    assert (ended.value.code, line) == (1, f"cdc: {said} (`cdc --debug` shows where)")
    assert bool(traceback) == debug


def test_an_error_of_the_program_itself_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users should report such an error."""
    monkeypatch.setattr(sys, "argv", ["cdc"])
    with pytest.raises(KeyError):
        run(_raising(KeyError("x")), "cdc")


def _raising(error: Exception) -> click.Command:
    @click.command()
    @click.option("--debug", is_flag=True)
    def fail(debug: bool) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("words", "completed"),
    [("cdc resol", ["resolved"]), ("cdc sandbox st", ["start", "status", "stop"]), ("cdc sandbax st", ["status"])],
)
def test_a_shell_completes_commands_also_those_below_another_one(words: str, completed: list[str]) -> None:
    """The request is that of bash with the line in docs/cli.md."""
    [variable] = set(re.findall(r"(_\w+)=bash_source", _PAGE.read_text(encoding="utf-8")))
    asked = {variable: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [Path(sys.executable).with_name("cdc")],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert sorted(line.removeprefix("plain,") for line in done.stdout.splitlines()) == completed
