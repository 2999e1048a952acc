"""`cdc agent status`: one screen, or the file as it is."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cdc.main import cli

_STATUS: dict[str, object] = {
    "pid": 4711,
    "started": "2026-01-02T03:04:05.678Z",
    "node_id": "00000000-0000-0000-0000-000000000001",
    "cassandra_problem": None,
    "http": "127.0.0.1:9465",
    "segments": {"1795219249195": 94628, "1795219249196": 0},
    "progress": {"lag_bytes": 5_242_880, "lag_s": 130.0, "stuck_s": 0.0, "events_per_s": 1234.5, "bytes_per_s": 2048.0},
    "topics": {
        "shop.orders": {"is_usable": True, "problem": None, "waiting_events": 0, "held_bytes": 0},
        "shop.log": {
            "is_usable": False, "problem": "no producer for cdc-events-shop.log: IncompatibleSchema " + "x" * 100,
            "waiting_events": 12_345, "held_bytes": 2048,
        },
    },
    "metrics": {
        "events_acknowledged": 1_000_000, "parked": 3, "corrupt_entries": 0, "cdc_raw_bytes": 1_048_576,
        "cdc_raw_limit_bytes": 4_194_304, "cdc_raw_seconds_to_full": 240, "spilled_bytes": 0,
    },
}  # fmt: skip


def _run(directory: Path, *arguments: str, age_s: float = 0.0, **changed: object) -> Result:
    moment = datetime.fromtimestamp(time.time() - age_s, UTC).isoformat()
    (directory / "status.json").write_text(json.dumps(_STATUS | {"time": moment} | changed))
    return CliRunner().invoke(cli, ["agent", "status", "--working-dir", str(directory), *arguments])


def test_the_screen_says_what_an_operator_asks(tmp_path: Path) -> None:
    """Position, lag, rates, trouble, disk and topics, each on its line, none wider than a terminal."""
    done = _run(tmp_path)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines == [
        "agent      runs, pid 4711, since 2026-01-02 03:04 UTC",
        "node       00000000-0000-0000-0000-000000000001",
        "position   1795219249195:94628, 1795219249196:0",
        "lag        5.0 MiB, 2 min",
        "rates      1,234 events/s, 2.0 KiB/s read; 1,000,000 events since the start",
        "trouble    3 parked (cdc parked)",
        "cdc_raw    1.0 MiB of 4.0 MiB, ! full in 4 min",
        "topics     1 of 2 usable",
        "  ! shop.log: 12,345 wait, 2.0 KiB held",
        "      no producer for cdc-events-shop.log: IncompatibleSchema " + "x" * 18,
        "http       http://127.0.0.1:9465/metrics  /healthz  /readyz",
    ]
    assert max(map(len, lines)) == 80


def test_an_agent_that_does_not_run_is_told_and_the_exit_code_is_1(tmp_path: Path) -> None:
    """Its last status is shown all the same."""
    done = _run(tmp_path, age_s=600)
    assert done.exit_code == 1
    assert done.output.splitlines()[0] == (
        "agent      DOES NOT RUN, seen 10 min ago, pid 4711, since 2026-01-02 03:04 UTC"
    )


def test_json_is_the_file(tmp_path: Path) -> None:
    """For programs."""
    assert json.loads(_run(tmp_path, "--json").output)["segments"] == {"1795219249195": 94628, "1795219249196": 0}


@pytest.mark.parametrize("content", [None, "{"])
def test_without_a_status_there_is_one_line(tmp_path: Path, content: str | None) -> None:
    """No agent ran there, or the file is damaged."""
    if content is not None:
        (tmp_path / "status.json").write_text(content)
    done = CliRunner().invoke(cli, ["agent", "status", "--working-dir", str(tmp_path)])
    assert str(tmp_path / "status.json") in str(done.exception)
    assert "\n" not in str(done.exception)
