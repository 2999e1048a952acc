"""The command `cdc` itself: what it says of a command that does not exist."""

from __future__ import annotations

import sys

import pytest

from cdc.main import main


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("agnt", "cdc: No such command 'agnt'. Did you mean 'agent'? (`cdc --help` lists what there is)\n"),
        ("xyzzy", "cdc: No such command 'xyzzy'. (`cdc --help` lists what there is)\n"),
    ],
)
def test_a_mistyped_command_is_named_with_the_one_that_was_meant(
    typed: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Usage errors end with 2."""
    monkeypatch.setattr(sys, "argv", ["cdc", typed])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (2, said)
