"""CdcRawGuard: which segments it moves out of `cdc_raw`, and when. Real folders, no servers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from change_agent.cdc_raw.space import CdcSpace, SpaceForecast, cdc_space_of
from change_agent.metrics import AgentMetrics
from change_agent.schema.node_connection import NodeUnavailableError
from change_agent.segments.cdc_raw_guard import CdcRawGuard, GuardLimits
from schemas.errors import ConfigError
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import GOLDEN, MemoryTables, StagedAgent, payloads, tracked_entries
from tests.topics.events_topic import wait_until

_MIB = 1024 * 1024
_ID = time.time_ns() // 1_000_000 - 10_000


class _Node:
    """A node with these settings. With None it is unavailable."""

    def __init__(self, settings: Mapping[str, str] | None, *, refuses: bool = False) -> None:
        self._settings = settings
        self._refuses = refuses

    def settings(self, names: tuple[str, ...]) -> Mapping[str, str]:
        if self._settings is None:
            raise NodeUnavailableError("away", is_refusal=self._refuses)
        return self._settings

    def close(self) -> None:
        pass


def _guard(
    cdc_raw: Path,
    spill: Path,
    metrics: AgentMetrics,
    *,
    total_mb: int = 8,
    min_free: int = 0,
    node: _Node | None = None,
    yaml: Mapping[str, object] | None = None,
) -> CdcRawGuard:
    settings = {"cdc_total_space": f"{total_mb}MiB", "commitlog_segment_size": "1MiB"}
    return CdcRawGuard(
        cdc_raw,
        spill,
        node or _Node(settings),
        yaml or {},
        GuardLimits(total_bytes=None, soon_s=60.0, min_free_bytes=min_free),
        metrics,
        lambda: None,
    )


@pytest.fixture
def cdc_raw(tmp_path: Path) -> Path:
    """An empty cdc_raw."""
    (tmp_path / "cdc_raw").mkdir()
    return tmp_path / "cdc_raw"


def _fill(cdc_raw: Path, segments: int, *, completed: bool = True, first: int = 0) -> None:
    for number in range(first, first + segments):
        (cdc_raw / f"CommitLog-7-{_ID + number}.log").write_bytes(bytes(_MIB))
        index = f"{_MIB}\nCOMPLETED" if completed else "100"
        (cdc_raw / f"CommitLog-7-{_ID + number}_cdc.idx").write_text(index)


def _logs(folder: Path) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) - _ID for path in folder.glob("*.log"))


@pytest.fixture
def running(cdc_raw: Path, tmp_path: Path) -> Iterator[tuple[CdcRawGuard, AgentMetrics]]:
    """A guard of a folder whose limit is 8 MiB."""
    metrics = AgentMetrics()
    guard = _guard(cdc_raw, tmp_path / "spill", metrics)
    yield guard, metrics
    guard.stop()
    assert guard.failure is None


def test_the_oldest_finished_segments_go_until_half_is_free(
    cdc_raw: Path, tmp_path: Path, running: tuple[CdcRawGuard, AgentMetrics]
) -> None:
    """Six segments, and the one that Cassandra counts in advance, are more than three quarters of eight."""
    guard, metrics = running
    _fill(cdc_raw, 6)
    guard.start()
    wait_until(lambda: metrics.segments_spilled == 4, "segments are moved")
    assert (_logs(tmp_path / "spill"), _logs(cdc_raw)) == ([0, 1, 2, 3], [4, 5])
    assert len(list(cdc_raw.glob("*_cdc.idx"))) == 2
    assert metrics.cdc_raw_limit_bytes == 8 * _MIB


@pytest.mark.parametrize("refuses", [False, True])
def test_a_node_that_does_not_tell_its_settings_is_told_once(
    cdc_raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, refuses: bool
) -> None:
    """The guard then uses a limit that may differ from the node's. A grant helps only if the role may not read them."""
    metrics = AgentMetrics()
    guard = _guard(cdc_raw, tmp_path / "spill", metrics, node=_Node(None, refuses=refuses))
    for _ in range(2):
        guard._settings_at = 0.0
        guard._ask_settings()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the node does not return its cdc_total_space: ")
    assert ("SELECT on system_views.settings" in line) == refuses and line.endswith("(away)")


def test_a_limit_from_cassandra_yaml_needs_no_remedy(
    cdc_raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log told to set cassandraYaml, which was set, while the node was down."""
    yaml = {"cdc_total_space_in_mb": 8}
    guard = _guard(cdc_raw, tmp_path / "spill", AgentMetrics(), node=_Node(None), yaml=yaml)
    guard._ask_settings()
    assert not caplog.records


@pytest.mark.parametrize(
    ("settings", "is_enabled"),
    [({"cdc_enabled": "false"}, False), ({"cdc_enabled": "true"}, True), ({}, True), (None, True)],
)
def test_a_node_that_runs_without_cdc_is_told_once(
    cdc_raw: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    settings: Mapping[str, str] | None,
    is_enabled: bool,
) -> None:
    """A node that does not return the setting is not reported: it is 3.11, or the role may not read settings."""
    guard = _guard(cdc_raw, tmp_path / "spill", AgentMetrics(), node=_Node(settings))
    for _ in range(2):
        guard._settings_at = 0.0
        guard._ask_settings()
    assert guard.ran_without_cdc is not is_enabled
    guard.ran_without_cdc = False
    guard._settings_at = 0.0
    guard._ask_settings()
    assert guard.ran_without_cdc is not is_enabled, "it still runs so"
    guard._node = _Node({"cdc_enabled": "true"})  # type: ignore[misc]  # restarted
    guard._settings_at = 0.0
    guard._ask_settings()
    assert guard.ran_without_cdc is not is_enabled, "nobody has noted it yet"
    told = [each for each in caplog.records if "the node runs with cdc_enabled: false" in each.getMessage()]
    assert len(told) == (not is_enabled)


def test_a_cdc_raw_that_becomes_the_commit_log_ends_the_agent(
    cdc_raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a mount: the folder is another one, without indexes, and the node says that it is its commit log.

    With an index it is cdc_raw in any case: the node may run in a container, with other names for the same folders.
    """
    commit_log = tmp_path / "commitlog"
    commit_log.mkdir()
    segment, index = commit_log / f"CommitLog-7-{_ID}.log", commit_log / f"CommitLog-7-{_ID}_cdc.idx"
    segment.write_bytes(bytes(100))
    guard = _guard(cdc_raw, tmp_path / "spill", AgentMetrics(), node=_Node({"commitlog_directory": str(commit_log)}))
    guard._ask_settings()
    guard._check()
    assert guard.failure is None
    cdc_raw.rmdir()
    cdc_raw.symlink_to(commit_log)
    index.write_text("100")
    guard._check()
    guard._ask_settings()
    assert guard.failure is None
    index.unlink()
    guard._folder = (0, 0)  # mounted once more
    guard.start()
    wait_until(lambda: not guard.is_running, "it has ended", 10)
    assert isinstance(guard.failure, ConfigError)
    assert "cdc_raw is the node's commit log, whose segments the agent would delete" in str(guard.failure)
    assert not caplog.text


@pytest.mark.parametrize(("segments", "moved"), [(4, 0), (5, 3)])
def test_a_segment_is_counted_in_advance_as_cassandra_counts_it(
    cdc_raw: Path, running: tuple[CdcRawGuard, AgentMetrics], segments: int, moved: int
) -> None:
    """Cassandra refuses writes one segment before the limit.

    Five of eight MiB are less than three quarters, but six are counted.
    """
    guard, metrics = running
    _fill(cdc_raw, segments)
    guard.start()
    wait_until(lambda: metrics.cdc_raw_limit_bytes > 0, "it has looked")
    wait_until(lambda: metrics.segments_spilled >= moved, "segments are moved")
    time.sleep(1.5)
    assert metrics.segments_spilled == moved


@pytest.mark.parametrize(("segments", "blocks", "told"), [(7, "false", 1), (7, "true", 0), (3, "false", 0)])
def test_a_start_on_a_full_cdc_raw_says_what_may_have_gone_before(
    cdc_raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, segments: int, blocks: str, told: int
) -> None:
    """No gap can be reported for segments that no agent saw.

    The log says only that Cassandra may have removed some, if `cdc_block_writes` is false.
    """
    metrics = AgentMetrics()
    settings = {"cdc_total_space": "8MiB", "commitlog_segment_size": "1MiB", "cdc_block_writes": blocks}
    guard = _guard(cdc_raw, tmp_path / "spill", metrics, node=_Node(settings))
    _fill(cdc_raw, segments)
    guard.start()
    wait_until(lambda: metrics.cdc_raw_bytes > 0, "it has looked")
    guard.stop()
    assert guard.failure is None
    assert metrics.started_on_full == told
    assert caplog.text.count("some may be gone that no agent ever saw") == told


def test_files_that_go_while_the_folder_is_measured_are_left_out(cdc_raw: Path, tmp_path: Path) -> None:
    """The archiver deletes files while the guard measures the folder. Neither fails."""
    metrics = AgentMetrics()
    guard = _guard(cdc_raw, tmp_path / "spill", metrics, total_mb=1000)
    for number in range(300):
        (cdc_raw / f"CommitLog-7-{_ID + number}.log").write_bytes(b"x")
    guard.start()
    for path in list(cdc_raw.iterdir()):
        path.unlink()
    wait_until(lambda: metrics.cdc_raw_limit_bytes > 0, "it has looked")
    guard.stop()
    assert guard.failure is None


def test_segments_that_cassandra_still_writes_are_never_moved(
    cdc_raw: Path, running: tuple[CdcRawGuard, AgentMetrics], caplog: pytest.LogCaptureFixture
) -> None:
    """No segment can be moved, and the log says so once."""
    guard, metrics = running
    _fill(cdc_raw, 7, completed=False)
    guard.start()
    wait_until(
        lambda: any("none of its segments is finished" in each.getMessage() for each in caplog.records), "told", 10
    )
    assert metrics.segments_spilled == 0 and len(_logs(cdc_raw)) == 7


def test_a_disk_that_is_nearly_full_takes_nothing_and_the_log_says_so(
    cdc_raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk would stop more than the tables with CDC."""
    metrics = AgentMetrics()
    guard = _guard(cdc_raw, tmp_path / "spill", metrics, min_free=2**60)
    _fill(cdc_raw, 7)
    guard.start()
    wait_until(lambda: any("and so is" in each.getMessage() for each in caplog.records), "told")
    time.sleep(1.2)
    guard.stop()
    assert [each.levelname for each in caplog.records] == ["WARNING", "ERROR"]
    assert len(_logs(cdc_raw)) == 7 and metrics.segments_spilled == 0


def test_a_move_that_fails_is_counted_and_tried_again(cdc_raw: Path, tmp_path: Path) -> None:
    """The segment and its index stay where they are until the move succeeds."""
    metrics = AgentMetrics()
    guard = _guard(cdc_raw, tmp_path / "spill", metrics)
    _fill(cdc_raw, 6)
    in_its_place = tmp_path / "spill" / f"CommitLog-7-{_ID}.log"
    in_its_place.mkdir(parents=True)
    guard.start()
    wait_until(lambda: metrics.spill_failures >= 2, "it is tried again")
    assert metrics.segments_spilled == 0 and _logs(cdc_raw) == [0, 1, 2, 3, 4, 5]
    assert len(list(cdc_raw.glob("*_cdc.idx"))) == 6
    in_its_place.rmdir()
    wait_until(lambda: metrics.segments_spilled == 4, "segments are moved")
    guard.stop()
    assert guard.failure is None


def test_segments_that_a_replay_has_linked_again_are_moved_again(cdc_raw: Path, tmp_path: Path) -> None:
    """The segments were moved before the node was killed.

    At its start the node links them again, even above the limit.
    """
    spill = tmp_path / "spill"
    metrics = AgentMetrics()
    guard = _guard(cdc_raw, spill, metrics)
    _fill(cdc_raw, 6)
    guard._ask_settings()
    guard._check()
    assert _logs(spill) == [0, 1, 2, 3]
    for log in spill.glob("*.log"):
        os.link(log, cdc_raw / log.name)
        (cdc_raw / f"{log.stem}_cdc.idx").write_text(f"{_MIB}\nCOMPLETED")
    _fill(cdc_raw, 3, first=6)
    guard._check()
    assert (_logs(spill), _logs(cdc_raw)) == ([0, 1, 2, 3, 4, 5, 6], [7, 8])
    assert len(list(cdc_raw.glob("*_cdc.idx"))) == 2
    assert all(log.stat().st_nlink == 1 for log in spill.iterdir())


def test_growth_is_answered_before_the_limit_is_near(cdc_raw: Path, tmp_path: Path) -> None:
    """At this rate the folder is full within a minute, so segments are moved above a quarter of the limit."""
    metrics = AgentMetrics()
    guard = _guard(cdc_raw, tmp_path / "spill", metrics, total_mb=40)
    _fill(cdc_raw, 4)
    guard.start()
    grown = [4]

    def grow() -> bool:
        if len(_logs(cdc_raw)) + len(_logs(tmp_path / "spill")) < 24:
            _fill(cdc_raw, 4, first=grown[0])
            grown[0] += 4
            time.sleep(0.5)
        return metrics.segments_spilled > 0

    wait_until(grow, "segments are moved", 15)
    guard.stop()
    assert 0 <= metrics.cdc_raw_seconds_to_full < 60
    assert metrics.cdc_raw_bytes < 0.75 * 40 * _MIB


def test_off_loaded_segments_are_read_in_the_order_of_their_ids_and_deleted(tmp_path: Path) -> None:
    """The reader finds segments in both folders, also if it had one open when it was moved.

    No event is published twice.
    """
    agent = StagedAgent(tmp_path, MemoryTables(GOLDEN.tables()))
    agent.acknowledges = False
    for number in range(4):
        log = agent.segment(_ID + number, segment_bytes(_ID + number, [payloads(3)]), "9\nCOMPLETED")
        if number < 2:
            log.rename(agent.spill / log.name)
    (agent.cdc_raw / f"CommitLog-7-{_ID}_cdc.idx").unlink()
    agent.start()
    wait_until(lambda: len(agent.published) == 12, "all are read")
    # A segment may also be moved while its events wait for acknowledgements.
    (agent.cdc_raw / f"CommitLog-7-{_ID + 2}.log").rename(agent.spill / f"CommitLog-7-{_ID + 2}.log")
    agent.positions.acknowledge(tracked_entries(agent.published), 12, 0)
    wait_until(lambda: agent.files() == [] and not list(agent.spill.iterdir()), "all are deleted")
    agent.stop()
    assert agent.places() == sorted(set(agent.places()))
    assert (agent.metrics.segments_gone_unread, agent.metrics.segments_unreadable) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "disk_mb", "total_mb", "segment_mb", "blocks"),
    [
        (
            {"cdc_total_space": "64MiB", "commitlog_segment_size": "1GiB", "cdc_block_writes": "false"},
            1,
            64,
            1024,
            False,
        ),
        ({"cdc_total_space_in_mb": 4096, "commitlog_segment_size_in_mb": "16"}, 1, 4096, 16, None),
        ({"cdc_total_space_in_mb": "0", "cdc_block_writes": True}, 8_000, 1_000, 32, True),
        ({}, 80_000, 4096, 32, None),
        ({"cdc_total_space": "a lot"}, 80_000, 4096, 32, None),
    ],
)
def test_settings_are_taken_by_their_names_of_all_versions(
    settings: dict[str, object], disk_mb: int, total_mb: int, segment_mb: int, blocks: bool | None
) -> None:
    """A missing or unreadable setting has Cassandra's default."""
    assert cdc_space_of(settings, disk_mb * _MIB) == CdcSpace(
        total_bytes=total_mb * _MIB, segment_bytes=segment_mb * _MIB, blocks_writes=blocks
    )


def test_the_forecast_follows_the_last_minute() -> None:
    """At ten bytes a second, a hundred bytes are used up after ten seconds. Without growth there is no forecast."""
    forecast = SpaceForecast()
    for second in range(100):
        forecast.add(second, second * 10)
    assert forecast.seconds_until(100) == pytest.approx(10.0)
    assert forecast.seconds_until(0) == 0.0
    for second in range(100, 200):
        forecast.add(second, 1_000)
    assert forecast.seconds_until(100) is None
