"""`cdc sandbox` without servers: usage, and folders without a sandbox."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cdc.commands.sandbox import _check_folder
from cdc.sandbox import running
from cdc.sandbox.errors import SandboxError
from cdc.sandbox.running import Condition, server_statuses, take_down
from cdc.sandbox.sandbox import _lock_folder
from cdc.sandbox.state import ProcessId, SandboxState, ServerState, read_state, write_state
from cdc.sandbox.supervision import attach
from schemas.errors import ConfigError
from tests.servers.other_user import as_another_user

_REPOSITORY = Path(__file__).parents[3]
_STATE = SandboxState(
    cassandra="5.0",
    nodes=1,
    pulsar=False,
    address_prefix="127.41.7",
    supervisor=ProcessId(pid=1, created=12.5),  # pid 1 runs, but was not started then
    servers=(
        ServerState(
            name="cassandra-1",
            version="5.0.9",
            address="127.41.7.1",
            ports={"native": 9042},
            details={"contact_point": "127.41.7.1:9042"},
            log="/tmp/s/logs/cassandra-1.log",
            process=ProcessId(pid=1, created=12.5),
        ),
    ),
)


def _cdc(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdc.main", "sandbox", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=_REPOSITORY)


def test_status_of_an_empty_folder_says_so(tmp_path: Path) -> None:
    """The exit code tells it to scripts."""
    run = _cdc("status", "--dir", tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (1, f"no sandbox in {tmp_path}\n", "")


def test_down_may_be_called_where_nothing_runs(tmp_path: Path) -> None:
    """Scripts may call it in any state."""
    run = _cdc("down", "--dir", tmp_path / "none")
    assert (run.returncode, run.stdout) == (0, f"nothing runs in {tmp_path / 'none'}\n")


def test_json_of_down_and_status_is_one_object(tmp_path: Path) -> None:
    """The output is for programs."""
    assert json.loads(_cdc("down", "--json", "--dir", tmp_path).stdout) == {"dir": str(tmp_path), "ended": 0}
    assert json.loads(_cdc("status", "--json", "--dir", tmp_path).stdout) == {"dir": str(tmp_path), "servers": []}


def test_down_never_removes_a_folder_that_holds_no_sandbox(tmp_path: Path) -> None:
    """A wrong --dir must not delete other files."""
    (tmp_path / "thesis.txt").write_text("text")
    assert _cdc("down", "--remove", "--dir", tmp_path).returncode == 0
    assert (tmp_path / "thesis.txt").read_text() == "text"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--cassandra", "2.2"], "'2.2' is not one of '5.0', '4.1', '4.0', '3.11'."),
        (["up", "--nodes", "0"], "0 is not in the range 1<=x<=50."),
        (["up", "--commitlog-sync-ms", "fast"], "'fast' is not a valid integer range."),
        (["up", "--turbo"], "No such option '--turbo'"),
    ],
)
def test_wrong_usage_names_the_option_and_exits_with_2(arguments: list[str], message: str) -> None:
    """No server is started."""
    run = _cdc(*arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_up_refuses_a_folder_with_other_files(tmp_path: Path) -> None:
    """`down --remove` would delete them."""
    (tmp_path / "thesis.txt").write_text("text")
    run = _cdc("up", "--dir", tmp_path)
    assert run.returncode == 2
    assert run.stderr == f"cdc: --dir: {tmp_path} holds other files (thesis.txt, ...); take a new or empty folder\n"


def test_up_takes_a_folder_whose_first_start_failed(tmp_path: Path) -> None:
    """The start failed before sandbox.json was written.

    Other files, and folders of servers that ran, are still refused.
    """
    names = ["lock", "cassandra-1", "cassandra-2", "pulsar", ".sandbox.json"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "supervisor.log").touch()
    _check_folder(tmp_path)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"holds other files \(thesis\.txt, "):
        _check_folder(tmp_path)
    (tmp_path / "thesis.txt").unlink()
    (tmp_path / "logs" / "cassandra-1.log").touch()
    with pytest.raises(ConfigError, match="holds other files"):
        _check_folder(tmp_path)


@pytest.mark.parametrize("foreign", [[], ["thesis.txt"], ["logs/cassandra-1.log"]])
def test_down_removes_a_folder_whose_first_start_failed(tmp_path: Path, foreign: list[str]) -> None:
    """The start failed before sandbox.json was written. With other files in the folder, nothing is removed."""
    folder = tmp_path / "sandbox"
    (folder / "logs").mkdir(parents=True)
    (folder / "cassandra-1" / "conf").mkdir(parents=True)
    for name in ["lock", "logs/supervisor.log", *foreign]:
        (folder / name).touch()
    assert take_down(folder) == 0
    assert folder.is_dir()
    assert take_down(folder, remove=True) == 0
    assert (folder / "cassandra-1").is_dir() == bool(foreign)
    assert folder.is_dir() == bool(foreign)


@pytest.mark.parametrize("state", [None, _STATE])
def test_down_removes_nothing_below_a_start_in_progress(tmp_path: Path, state: SandboxState | None) -> None:
    """The start holds the lock and has not written its state yet. The state of an earlier sandbox may exist."""
    if state is not None:
        write_state(tmp_path, state)
    with _lock_folder(tmp_path), pytest.raises(SandboxError, match="a sandbox that is just starting"):
        take_down(tmp_path, remove=True)
    assert (tmp_path / "lock").exists()
    assert read_state(tmp_path) == state
    take_down(tmp_path, remove=True)
    assert not tmp_path.exists()


def test_up_refuses_a_folder_that_is_a_file(tmp_path: Path) -> None:
    """The error is one line without a traceback."""
    (tmp_path / "file").write_text("")
    run = _cdc("up", "--dir", tmp_path / "file")
    assert (run.returncode, run.stderr) == (2, f"cdc: --dir: {tmp_path / 'file'} cannot be used: File exists\n")


def test_up_refuses_a_folder_that_pulsars_scripts_cannot_take(tmp_path: Path) -> None:
    """They would fail later without a reason."""
    run = _cdc("up", "--dir", tmp_path / "my sandbox")
    assert run.returncode == 2
    assert run.stderr.startswith(f"cdc: sandbox folder: '{tmp_path}/my sandbox' has a space or colon")
    assert list((tmp_path / "my sandbox").iterdir()) == []


def test_up_refuses_the_data_of_another_version(tmp_path: Path) -> None:
    """Cassandra would refuse such data, or convert it permanently."""
    write_state(tmp_path, _STATE)
    run = _cdc("up", "--cassandra", "4.1", "--dir", tmp_path)
    assert run.returncode == 2
    assert "holds the data of Cassandra 5.0 with 1 node(s) and no Pulsar; take another folder" in run.stderr


def test_a_state_that_was_written_is_read_again(tmp_path: Path) -> None:
    """`status` and `down` depend on it."""
    write_state(tmp_path, _STATE)
    assert read_state(tmp_path) == _STATE


def test_a_file_is_no_sandbox_and_nobody_is_told_to_remove_it(tmp_path: Path) -> None:
    """The file was named by mistake."""
    file = tmp_path / "thesis.txt"
    file.write_text("text")
    assert read_state(file) is None
    assert take_down(file, remove=True) == 0
    assert file.read_text() == "text"


def test_a_broken_state_is_one_line(tmp_path: Path) -> None:
    """A full disk or an editor may have cut the file."""
    (tmp_path / "sandbox.json").write_text("{")
    run = _cdc("status", "--dir", tmp_path)
    assert run.returncode == 1
    assert run.stderr.startswith(f"cdc: {tmp_path / 'sandbox.json'} cannot be read (")
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["servers", "supervisor"])
@pytest.mark.parametrize("command", ["status", "down"])
def test_a_state_without_one_of_its_fields_is_one_line(name: str, command: str, tmp_path: Path) -> None:
    """The file was edited."""
    write_state(tmp_path, _STATE)
    state = tmp_path / "sandbox.json"
    fields = json.loads(state.read_text())
    del fields[name]
    state.write_text(json.dumps(fields))
    run = _cdc(command, "--dir", tmp_path)
    assert run.returncode == 1
    assert run.stderr == f"cdc: {state} is damaged (KeyError('{name}')); remove the folder to start afresh\n"


def test_a_state_of_another_user_is_no_reason_to_remove_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the rights prevent the reading. The test raises the refusal itself, because root may read every file."""

    def refused(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(SandboxError, match=r"sandbox\.json may not be read by this user; use the one who started"):
        read_state(tmp_path)


def test_down_removes_the_folder_behind_a_link(tmp_path: Path) -> None:
    """The link is removed too, because a dangling link would prevent the next start."""
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    write_state(link, _STATE)
    run = _cdc("down", "--remove", "--dir", link)
    assert (run.returncode, run.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_a_pid_that_belongs_to_another_process_by_now_is_neither_running_nor_ended(tmp_path: Path) -> None:
    """Process ids are reused after a reboot. `down` must not kill such a process."""
    write_state(tmp_path, _STATE)
    assert [status.condition for status in server_statuses(tmp_path)] == ["stopped"]
    assert take_down(tmp_path) == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_down_of_a_sandbox_of_another_user_ends_and_removes_nothing(open_folder: Path) -> None:
    """One line names the user who may end it. Process 1, which runs as root, stands for its supervisor."""
    if psutil.Process(1).uids().real != 0:
        pytest.skip("process 1 of this container does not run as root")
    write_state(open_folder, replace(_STATE, supervisor=ProcessId.of(1)))
    assert as_another_user(lambda: take_down(open_folder, remove=True)) == (
        f"the sandbox in {open_folder} runs as the user root (pid 1); nothing was ended: call `cdc sandbox down` as this"
        " user, or as root"
    )
    assert read_state(open_folder) is not None


def test_a_server_of_a_sandbox_of_another_user_is_not_said_to_be_down(open_folder: Path) -> None:
    """Its control socket exists, but this user may not connect to it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(open_folder / "control.sock"))
        (open_folder / "control.sock").chmod(0 if os.geteuid() else 0o700)
        listener.listen()
        assert as_another_user(lambda: attach(open_folder)) == (
            f"the sandbox in {open_folder} is of another user; use the one who started it"
        )


@pytest.mark.parametrize("script", ["echo $$; exec sleep 60", "trap '' TERM; echo $$; exec sleep 60"])
def test_a_supervisor_whose_end_nobody_collects_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """In a container, process 1 often does not reap processes, so a supervisor that has ended remains as a zombie."""
    monkeypatch.setattr(running, "_SUPERVISOR_WAIT_S", 2.0)
    parent = ["sh", "-c", 'sh -c "$0" & exec sleep 60', script]
    with subprocess.Popen(parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        supervisor = ProcessId.of(int(process.stdout.readline()))
        write_state(tmp_path, replace(_STATE, supervisor=supervisor))
        try:
            take_down(tmp_path)
            assert supervisor.process() is None
        finally:
            process.kill()


@pytest.mark.parametrize(("patience_s", "condition"), [(0.0, "unresponsive"), (60.0, "ready")])
def test_a_server_that_is_silent_for_a_moment_is_asked_again_by_who_has_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience_s: float, condition: Condition
) -> None:
    """`up` has patience, because its servers have just answered. `status` reports the first result."""
    running = [replace(each, process=ProcessId.of(os.getpid())) for each in _STATE.servers]
    write_state(tmp_path, replace(_STATE, servers=tuple(running)))
    answers = iter([False, True])
    monkeypatch.setattr("cdc.sandbox.running.answers", lambda server: next(answers))
    assert [each.condition for each in server_statuses(tmp_path, patience_s=patience_s)] == [condition]
