"""pulsar-admin itself parses its commands in documents and messages. This needs Pulsar's jars, but no server."""

from __future__ import annotations

import re
import shlex
import subprocess

from cdc.sandbox import artifacts
from cdc.sandbox.prerequisites import java_home
from tests.tools.document_commands import ROOT, block_commands, inline_commands, message_commands

_PROGRAM = "pulsar-admin"


def answers(commands: list[str]) -> dict[str, str]:
    """For each command: `whole`, `incomplete` (parameters are left out), or the error."""
    words = [[word for word in shlex.split(each, comments=True)[1:] if word != "..."] for each in commands]
    jars = artifacts.pulsar_distribution() / "lib" / "*"
    done = subprocess.run(
        [
            java_home() / "bin" / "java",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            str(jars),
            ROOT / "tests/java/PulsarAdminCheck.java",
        ],
        input="".join("\t".join(each) + "\n" for each in words),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found = re.findall(r"^> (.*)$", done.stdout, re.MULTILINE)
    return dict(zip(commands, found, strict=True))


def test_every_command_is_one_that_pulsar_admin_understands() -> None:
    """Commands in code blocks are complete. Commands in sentences and messages may leave out parameters."""
    whole = [each for each in block_commands() if each.startswith(f"{_PROGRAM} ")]
    short = [*inline_commands(_PROGRAM), *message_commands(_PROGRAM)]
    short = [each for each in short if each.split()[1] != "--admin-url"]
    wrong = f"{_PROGRAM} topics no-such-command"
    found = answers([*whole, *short, wrong])
    assert "no-such-command" in found.pop(wrong)
    assert {each: found[each] for each in whole if found[each] != "whole"} == {}
    assert {each: found[each] for each in short if found[each] not in ("whole", "incomplete")} == {}
