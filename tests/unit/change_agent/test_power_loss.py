"""Stored state survives a loss of power, also in folders that the agent has just created."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from uuid import UUID

import pytest

from change_agent.archive.segment_archive import SegmentArchive, fetch_segment
from change_agent.cdc_raw.archiver import SegmentArchiver
from change_agent.errors import PublishError, TopicLostError
from change_agent.positions.inflight import Place
from change_agent.positions.offsets import OffsetStore, StoredPositions, StoredSegment
from change_agent.positions.segment_ids import SegmentIds
from change_agent.positions.stops import Stops, read_stops, remove_stops
from change_agent.private_files import sync_directory
from change_agent.publishing.awaited_clearings import AwaitedClearings
from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.held_events import TOO_LARGE, HeldEvents
from change_agent.publishing.partition_counts import PartitionCounts
from change_agent.publishing.topic_checks import TopicChecks, TopicState
from tests.agent.messages import message_without_events
from tests.agent.power_loss import PowerLoss

_NODE = "00000000-0000-0000-0000-000000000001"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The folder on the disk that loses its power."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def test_stored_positions_survive(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are deleted according to these positions.

    With earlier positions, a deleted segment would be reported as a gap.
    """
    power = PowerLoss(disk, monkeypatch)
    store = OffsetStore(disk / "work")
    store.load()
    for number in (1, 2, 3):
        positions = StoredPositions(segments={7: StoredSegment(position=number)}, finished=SegmentIds.of([number]))
        store.store(positions)
        again = OffsetStore(power.left_in(tmp_path / f"left{number}") / "work")
        assert again.load() == positions
        again.close()
    store.close()


def test_stops_survive(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that are stored after them survive: without the stop, a time would pass the gap."""
    power = PowerLoss(disk, monkeypatch)
    stops = Stops(disk)
    for number, table in enumerate(("ks.a", "ks.b"), 1):
        stops.note(table, "why")
        assert len(read_stops(power.left_in(tmp_path / f"left{number}"))) == number
    assert remove_stops(disk, "ks.a") == {"ks.a": "why"}
    assert read_stops(power.left_in(tmp_path / "left3")) == {"ks.b": "why"}


def test_what_is_known_of_topics_survives(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that are stored make the name of the file durable. The topics may be lost with the same power."""
    power, topic = PowerLoss(disk, monkeypatch), "persistent://public/default/cdc-events-ks.t"
    found = TopicState(partitions=1, mark="m", ends=((1, 10),), consumed=((1, 10),), is_drained=False)
    checks = TopicChecks(disk)
    checks.note(topic, found, Place(7, 100, 1_000))
    checks.save()
    sync_directory(disk)
    left = TopicChecks(power.left_in(tmp_path / "left"))
    with pytest.raises(TopicLostError, match="another subscription than before"):
        left.compare(topic, replace(found, mark="n"))


def test_truncations_for_which_events_wait_survive(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held events survive, and would be sent before the truncation."""

    def open_producers(topic: str) -> list[EventProducer]:
        raise PublishError(topic, "is away")

    power, stopping = PowerLoss(disk, monkeypatch), Event()
    awaited = AwaitedClearings(disk, open_producers, stopping)
    for number in (1, 2):
        awaited.add(UUID(int=number), f"events-{number}", b"x", is_late=False)
    awaited.remove(UUID(int=2))
    stopping.set()
    left = AwaitedClearings(power.left_in(tmp_path / "left"), open_producers, stopping)
    assert [left.holds_back(f"events-{number}", is_usable=True) for number in (1, 2)] == [True, False]


@pytest.mark.parametrize("folder", ["held", f"held/{TOO_LARGE}"])
def test_held_events_survive(tmp_path: Path, disk: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are acknowledged when they are appended, so they are not read from the log again."""
    power = PowerLoss(disk, monkeypatch)
    held = HeldEvents(disk / folder / "ks.t.events")
    for number in (1, 2):
        held.append([message_without_events(number)])
        left = HeldEvents(power.left_in(tmp_path / f"left{number}") / folder / "ks.t.events")
        assert [each.segment_id for each, _ in left.read_all()] == list(range(1, number + 1))


def test_numbers_of_partitions_survive(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the stored number, a change of it would not be noticed."""
    power = PowerLoss(disk, monkeypatch)
    PartitionCounts(disk).check("events-ks.a", 4)
    assert PartitionCounts(power.left_in(tmp_path / "left")).known("events-ks.a") == 4


def test_an_archived_segment_survives(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment in cdc_raw is deleted directly afterwards."""
    log = tmp_path / "CommitLog-7-5.log"
    log.write_bytes(b"entries")
    power = PowerLoss(disk, monkeypatch)
    SegmentArchive(str(disk / "archive"), "none").store(log, _NODE)
    left = power.left_in(tmp_path / "left")
    fetched = fetch_segment(str(left / "archive" / _NODE / log.name), tmp_path / "left")
    assert fetched.read_bytes() == b"entries"


def test_a_segment_that_is_set_aside_survives(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename may have removed its old name."""
    log = disk / "CommitLog-7-5.log"
    log.write_bytes(b"entries")
    power = PowerLoss(disk, monkeypatch)
    assert SegmentArchiver(disk / "work" / "error").set_aside(log, "broken")
    left = power.left_in(tmp_path / "left")
    assert (left / "work" / "error" / log.name).read_bytes() == b"entries"
