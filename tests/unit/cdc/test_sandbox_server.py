"""The start of a server, with small real processes instead of servers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.sandbox.errors import ServerStartError
from cdc.sandbox.server import Server
from cdc.sandbox.supervision import Launch, SupervisorChannel

# The script gives up this many times. Each time, many later lines of its log follow the reason. Then it keeps running.
_SCRIPT = """
echo start >> starts
if [ "$(wc -l < starts)" -le "$1" ]; then
  echo "12:00 [main] ERROR the bookie has no room"
  echo "java.io.IOException: no room"
  for part in $(seq 30); do echo "12:01 [main] INFO part $part says goodbye"; done
  exit 1
fi
exec sleep 60
"""


class _Script(Server):
    """A server that is ready when its process was started more often than it gives up."""

    start_attempts = 3

    def __init__(self, folder: Path, supervisor: SupervisorChannel, *, gives_up: int) -> None:
        super().__init__("script", folder / "logs" / "script.log", supervisor)
        self._folder = folder
        self._gives_up = gives_up

    @property
    def version(self) -> str:
        """The version has no meaning."""
        return "1"

    @property
    def details(self) -> dict[str, str]:
        """No client connects to the server."""
        return {}

    @property
    def starts(self) -> int:
        """The number of starts of the process."""
        file = self._folder / "starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def _launch(self) -> Launch:
        argv = ["sh", "-c", _SCRIPT, "sh", str(self._gives_up)]
        return Launch(argv=argv, env=dict(os.environ), cwd=self._folder)

    def _why_not_ready(self) -> str | None:
        return None if self.starts > self._gives_up else "it gives up"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a sandbox."""
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.fixture
def supervisor(folder: Path) -> Iterator[SupervisorChannel]:
    """A supervisor owned by this process."""
    channel = SupervisorChannel(folder, held=[], remove_folder=False)
    yield channel
    channel.shutdown(0)


def test_a_server_that_gives_up_at_its_start_is_started_again_and_that_is_told(
    folder: Path, supervisor: SupervisorChannel, caplog: pytest.LogCaptureFixture
) -> None:
    """Two starts end with exit code 1. The third process keeps running."""
    server = _Script(folder, supervisor, gives_up=2)
    with caplog.at_level(logging.WARNING):
        server.start()
    assert server.running
    assert server.starts == 3
    told = [record.getMessage().splitlines()[0] for record in caplog.records]
    assert told == [
        "start 2 of 3 follows, for script did not start: it ended with exit code 1",
        "start 3 of 3 follows, for script did not start: it ended with exit code 1",
    ]


def test_a_server_that_never_stays_is_told_with_its_errors_before_the_tail_of_its_log(
    folder: Path, supervisor: SupervisorChannel
) -> None:
    """The reason is 30 lines before the end, which is more than the tail shows."""
    server = _Script(folder, supervisor, gives_up=9)
    with pytest.raises(ServerStartError) as failure:
        server.start()
    assert server.starts == 3
    assert failure.value.log_tail[:3] == (
        "12:00 [main] ERROR the bookie has no room",
        "java.io.IOException: no room",
        "12:01 [main] INFO part 11 says goodbye",
    )
