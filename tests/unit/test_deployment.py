"""The files in deploy/: systemd accepts the units, and the sources and commands of the image files exist."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cdc.main import cli
from change_agent.configuration.config import option_names
from change_agent.reporting.http_endpoint import HttpEndpoint

_ROOT = Path(__file__).parent.parent.parent
_UNIT = _ROOT / "deploy" / "cassandra-cdc-agent.service"
_IMAGE = _ROOT / "deploy" / "Containerfile"


def _unit() -> str:
    return _UNIT.read_text(encoding="utf-8")


def _values(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", _unit(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """The path of the program is replaced by that of this environment. There is no warning."""
    unit = tmp_path / _UNIT.name
    program = Path(sys.executable).parent / "cdc"
    unit.write_text(_unit().replace("/opt/cassandra-cdc/bin/cdc", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if _UNIT.name in line]
    assert (done.returncode, complaints) == (0, [])


@pytest.mark.parametrize("command", _values("ExecStart"))
def test_the_unit_starts_a_command_that_there_is(command: str) -> None:
    """The installed program accepts these options."""
    program, name, *words = shlex.split(command)
    assert program == "/opt/cassandra-cdc/bin/cdc"
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    values, rest, _ = found.make_parser(click.Context(found)).parse_args(words)
    assert (values["path"], rest) == ("/etc/cassandra-cdc/agent.yaml", [])


@pytest.mark.parametrize("unit", ["cassandra-cdc-connector-watch.service", "cassandra-cdc-resolved.service"])
def test_a_unit_of_the_line_starts_a_command_that_there_is(unit: str) -> None:
    """The installed program accepts these options. The unit is not restarted after a wrong configuration."""
    text = (_ROOT / "deploy" / unit).read_text(encoding="utf-8")
    [line] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *words = shlex.split(line)
    assert program == "/opt/cassandra-cdc/bin/cdc"
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    values, rest, _ = command.make_parser(click.Context(command)).parse_args(words)
    assert (values["path"], rest) == ("/etc/cassandra-cdc/line.yaml", [])
    assert "RestartPreventExitStatus=2" in text


@pytest.mark.parametrize("unit", sorted((_ROOT / "deploy").glob("*.service")), ids=lambda each: each.name)
def test_what_a_unit_needs_is_installed_by_the_documented_steps(unit: Path) -> None:
    """Without its user, the unit ends with 217. Without its configuration, it ends with 2 and is not restarted."""
    text = unit.read_text(encoding="utf-8")
    install = (_ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    [user] = re.findall(r"^User=(.*)$", text, re.MULTILINE)
    created = re.findall(r"^useradd --system (?:--gid (\S+)|--user-group) .*? (\S+)$", install, re.MULTILINE)
    groups = {group for group, name in created if name == user}
    [group] = re.findall(r"^Group=(.*)$", text, re.MULTILINE) or [""]
    assert group in groups
    assert f"\ncp {unit.name} /etc/systemd/system/\n" in install
    for configuration in re.findall(r"--config (\S+)", text):
        name = Path(configuration).name
        command = rf"^install -o root -g {group or user} -m 0640 {name} {configuration}$"
        assert re.search(command, install, re.MULTILINE), command


def test_the_steps_prepare_the_folders_that_the_unit_names() -> None:
    """All other folders are read-only for the agent, as docs/agent.md says."""
    install, agent = ((_ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("install.md", "agent.md"))
    [raw] = _values("ReadWritePaths")
    assert re.search(rf"^install -d -o cassandra -g cassandra -m 0775 {raw}$", install, re.MULTILINE)
    assert f"`{raw}`" in agent
    for option in ("cdcRawDirectory", "cdcWorkingDir", "spillDir", "archiveUrl"):
        assert f"`{option}`" in agent.partition("**systemd.**")[2].partition("**Container.**")[0], option
        assert option in _unit().partition("[Unit]")[0], option


def test_the_unit_gives_the_agent_time_to_drain_and_does_not_repeat_a_wrong_configuration() -> None:
    """SIGTERM ends the agent within 5 s, and SIGHUP reloads its configuration.

    Exit code 2 means a wrong configuration.
    """
    assert _values("KillSignal") == ["SIGTERM"]
    assert int(_values("TimeoutStopSec")[0]) >= 10
    assert _values("ExecReload") == ["/bin/kill -HUP $MAINPID"]
    assert (_values("Restart"), _values("RestartPreventExitStatus")) == (["always"], ["2"])


def test_a_wrong_configuration_ends_the_main_process_with_the_code_that_is_not_repeated(tmp_path: Path) -> None:
    """systemd checks only the main process. After exit code 2 of an ExecStartPre it would restart the unit for ever."""
    [command], commands_before = (
        _values("ExecStart"),
        re.findall(r"^Exec(?:StartPre|Condition)=", _unit(), re.MULTILINE),
    )
    wrong = tmp_path / "agent.yaml"
    wrong.write_text("port: nine\n")
    _, *words = shlex.split(command.replace("/etc/cassandra-cdc/agent.yaml", str(wrong)))
    done = subprocess.run(
        [sys.executable, "-m", "cdc.main", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert [str(done.returncode)] == _values("RestartPreventExitStatus")
    assert f"cdc: {wrong}: port: must be a whole number" in done.stderr.splitlines()
    assert commands_before == []


def test_what_the_agent_stores_is_its_users_only() -> None:
    """This holds for the folder that systemd creates, and for files in it."""
    assert (_values("StateDirectoryMode"), _values("UMask")) == (["0700"], ["0077"])


@pytest.mark.exhaustive
def test_what_the_image_installs_is_a_whole_agent(tmp_path: Path) -> None:
    """The copied folders make a wheel. The installed wheel alone can check a configuration and run `cdc agent`."""
    source, target = tmp_path / "source", tmp_path / "target"
    for line in re.findall(r"^COPY (?!--from)(.*)$", _IMAGE.read_text(encoding="utf-8"), re.MULTILINE):
        *names, place = line.split()
        for name in names:
            copy = tmp_path / place.strip("/") / ("" if (_ROOT / name).is_dir() else name)
            if (_ROOT / name).is_dir():
                shutil.copytree(_ROOT / name, copy, ignore=shutil.ignore_patterns("_compiled", "__pycache__"))
            else:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(_ROOT / name, copy)
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    _python(*install, "--target", str(target), str(source))
    config = tmp_path / "agent.yaml"
    (tmp_path / "cdc_raw").mkdir()
    config.write_text(f"cdcRawDirectory: {tmp_path}/cdc_raw\ncdcWorkingDir: {tmp_path / 'work'}\n")
    where = _python("-c", "import cdc.main, change_agent; print(change_agent.__file__)", path=target)
    assert where.startswith(str(target))
    assert "no problems found" in _python("-m", "cdc.main", "agent", "--config", str(config), "--check", path=target)
    assert "--config" in _python("-m", "cdc.main", "agent", "--help", path=target)


def _python(*arguments: str, path: Path | None = None) -> str:
    """Return the output of Python, run in a folder without our code."""
    environment = {**os.environ, "PYTHONPATH": "" if path is None else str(path)}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd="/", env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["agent", "pulsar"])
def test_an_image_of_the_distribution_copies_what_make_dist_makes(name: str) -> None:
    """The names are those in the docstring of make_dist."""
    made = (_ROOT / "deploy" / "make_dist.py").read_text(encoding="utf-8").split('"""')[1].replace("VERSION", "0.1.0")
    names = [word.rstrip(",") for line in made.splitlines() if line.startswith("    ") for word in line.split()]
    text = (_ROOT / "deploy" / "images" / f"{name}.Containerfile").read_text(encoding="utf-8")
    patterns = [
        pattern for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for pattern in line.split()[:-1]
    ]
    assert patterns
    for pattern in patterns:
        assert fnmatch.filter(names, pattern), pattern


def test_the_image_copies_what_there_is_and_sets_options_that_there_are() -> None:
    """Each source of a COPY is in the repository, each CDC_ variable is an option, and the entry point is a command."""
    text = _IMAGE.read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (_ROOT / source).exists(), source
    without_check = re.sub(r"^HEALTHCHECK (?:.*\\\n)*.*\n", "", text, flags=re.MULTILINE)
    settings = "".join(line for line in without_check.splitlines() if not line.startswith("#"))
    assert set(re.findall(r"\bCDC_\w+", text)) <= set(option_names().values())
    assert ("CDC_HTTP_ADDRESS" in settings, "EXPOSE" in settings) == (False, False), "the image listens on loopback"
    assert 'ENTRYPOINT ["cdc", "agent"]' in text
    assert cli.get_command(click.Context(cli), "agent") is not None


@pytest.mark.parametrize(
    "image", [_IMAGE, _ROOT / "deploy" / "images" / "agent.Containerfile"], ids=lambda path: path.name
)
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "127.1.2.3"])
def test_the_health_check_of_an_image_asks_where_the_agent_answers(image: Path, address: str) -> None:
    """The image's command is run while an agent's page is served with the same variables."""
    text = image.read_text(encoding="utf-8").replace("\\\n", "")
    (command,) = re.findall(r"^HEALTHCHECK .*? CMD (\[.*\])$", text, re.MULTILINE)
    _, *arguments = json.loads(command)
    is_well = [False]
    page = HttpEndpoint(address, 0, {"/healthz": lambda: (is_well[0], b"", "text/plain")})
    page.start()
    environment = {**os.environ, "CDC_HTTP_ADDRESS": address, "CDC_HTTP_PORT": page.address.rpartition(":")[2]}

    def exit_code() -> int:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, timeout=30, check=False).returncode

    unhealthy = exit_code()
    is_well[0] = True
    healthy = exit_code()
    page.stop()
    assert (unhealthy, healthy) == (1, 0)
