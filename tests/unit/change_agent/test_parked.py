"""ParkedMutations and `cdc parked`: parked mutations survive kill -9, are listed, and are never lost silently."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner

from cdc.main import cli
from change_agent.events.mutation_interpreter import MutationInterpreter
from change_agent.metrics import AgentMetrics
from change_agent.parking.parked import DamagedParkedError, ParkedMutation, ParkedMutations, read_parked
from change_agent.positions.inflight import InflightPositions
from change_agent.positions.offsets import StoredPositions, StoredSegment, reading_again
from change_agent.positions.segment_ids import SegmentIds
from change_agent.publishing.held_events import HeldEvents
from change_agent.publishing.outgoing import Outgoing
from change_agent.schema.schema_history import NodeSchema, SchemaHistory
from change_agent.schema.table_metadata import KnownTables
from change_agent.segments.late_events import LateEvents
from change_agent.segments.unparking import Unparker
from change_agent.sqlite_file import UnwritableFileError
from schemas.mutation_event import MutationEvent, MutationEvents, MutationKind, encode_events
from tests.agent.killed_script import lines_before_kill_9
from tests.agent.stages import GOLDEN, MemoryTables, payloads

_TABLE = UUID(int=5)


def _mutation(position: int, *, segment_id: int = 7, payload: bytes = b"\x01\x02") -> ParkedMutation:
    return ParkedMutation(
        segment=f"CommitLog-7-{segment_id}.log",
        segment_id=segment_id,
        position=position,
        version=7,
        table_id=_TABLE,
        reason="table id [x] is not in the known schema",
        payload=payload,
        parked_at_ms=1_700_000_000_000,
    )


def test_a_mutation_that_is_parked_twice_waits_once(tmp_path: Path) -> None:
    """After a crash the same position of the log is read again."""
    parked = ParkedMutations(tmp_path, lambda: None)
    parked.park(_mutation(10))
    parked.save()
    parked.park(_mutation(10))
    parked.park(_mutation(20, segment_id=8))
    parked.save()
    assert (parked.count, parked.segment_ids) == (2, frozenset({7, 8}))
    parked.close()


def test_a_segment_is_held_until_nothing_of_it_waits(tmp_path: Path) -> None:
    """A new process returns the same as this one."""
    parked = ParkedMutations(tmp_path, lambda: None)
    parked.park(_mutation(10))
    parked.park(_mutation(20))
    parked.save()
    first, second = parked.waiting(0, 10)
    assert (first.position, second.payload) == (10, b"\x01\x02")
    parked.remove([first])
    assert parked.segment_ids == {7}
    parked.close()
    again = ParkedMutations(tmp_path, lambda: None)
    assert again.segment_ids == {7}
    again.remove(again.waiting(first.number, 10))
    assert (again.segment_ids, again.count) == (frozenset(), 0)
    again.close()


def test_what_was_saved_survives_kill_9(tmp_path: Path) -> None:
    """The process is killed while it parks mutations. All that `save` has returned for are in an intact file."""
    script = (
        "import sys; from pathlib import Path; from uuid import UUID\n"
        "from change_agent.parking.parked import ParkedMutation, ParkedMutations\n"
        "parked = ParkedMutations(Path(sys.argv[1]), lambda: None)\n"
        "for at in range(1, 100_000):\n"
        "    parked.park(ParkedMutation(segment='s', segment_id=1, position=at, version=7, table_id=UUID(int=5),\n"
        "                reason='r', payload=b'x' * 1000, parked_at_ms=1))\n"
        "    parked.save(); print(at, flush=True)\n"
    )
    count = lines_before_kill_9(script, tmp_path)
    assert [each.position for each in read_parked(tmp_path)][:count] == list(range(1, count + 1))


def test_a_full_disk_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    """Mutations that could not be saved stay for the next attempt."""
    parked = ParkedMutations(tmp_path, lambda: None)
    pages = parked._database.execute("PRAGMA page_count").fetchone()[0]
    parked._database.execute(f"PRAGMA max_page_count = {pages + 1}")
    parked.park(_mutation(10))
    parked.park(_mutation(20, payload=b"x" * 100_000))
    for _ in range(2):
        with pytest.raises(UnwritableFileError, match=r"parked\.sqlite cannot be written .*full.*; trying again"):
            parked.save()
    assert (parked.count, list(read_parked(tmp_path))) == (0, [])
    parked._database.execute("PRAGMA max_page_count = 10000")
    parked.save()
    assert (parked.count, [each.position for each in read_parked(tmp_path)]) == (2, [10, 20])
    parked.close()


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_store_is_set_aside_when_it_is_sure_that_its_segments_are_read_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """If the positions for that cannot be stored, the file stays, so that the next start finds the damage too."""
    path = tmp_path / "parked.sqlite"
    path.write_bytes(content)

    def full() -> None:
        raise UnwritableFileError("positions cannot be stored")

    with pytest.raises(UnwritableFileError):
        ParkedMutations(tmp_path, full)
    assert path.read_bytes() == content
    told: list[str] = []
    parked = ParkedMutations(tmp_path, lambda: told.append("all is read again"))
    parked.park(_mutation(10))
    parked.save()
    assert (told, parked.count) == (["all is read again"], 1)
    assert (tmp_path / "parked.sqlite.damaged").read_bytes() == content
    [line] = [each.getMessage() for each in caplog.records]
    assert "set aside as parked.sqlite.damaged; the existing segments are read again" in line
    parked.close()


def test_changed_bytes_of_a_payload_are_noticed(tmp_path: Path) -> None:
    """The checksum of each mutation is checked when it is listed, and at the agent's start."""
    parked = ParkedMutations(tmp_path, lambda: None)
    parked.park(_mutation(10, payload=b"a payload to be damaged"))
    parked.close()
    path = tmp_path / "parked.sqlite"
    path.write_bytes(path.read_bytes().replace(b"to be damaged", b"to be_damaged"))
    with pytest.raises(DamagedParkedError, match="position 10 have another checksum"):
        list(read_parked(tmp_path))
    told: list[str] = []
    again = ParkedMutations(tmp_path, lambda: told.append("all is read again"))
    assert (told, again.count) == (["all is read again"], 0)
    again.close()


def test_a_file_that_cannot_be_opened_is_not_taken_for_damaged(tmp_path: Path) -> None:
    """On a full disk at the agent's start, the file is not set aside, and opening it is tried again."""
    (tmp_path / "folder").touch()
    with pytest.raises(UnwritableFileError, match=r"cannot be written .*; trying again"):
        ParkedMutations(tmp_path / "folder", lambda: None)
    parked = ParkedMutations(tmp_path, lambda: None)
    parked.park(_mutation(10))
    parked.close()
    script = (
        "import resource, sys; from pathlib import Path; from change_agent.parking.parked import ParkedMutations\n"
        "from change_agent.sqlite_file import UnwritableFileError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
        "try:\n    ParkedMutations(Path(sys.argv[1]), lambda: print('damaged'))\n"
        "except UnwritableFileError:\n    print('unwritable')\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert (done.stdout, [each.position for each in read_parked(tmp_path)]) == ("unwritable\n", [10])


def test_what_is_still_there_is_read_from_its_beginning_and_what_is_gone_stays_finished(tmp_path: Path) -> None:
    """Finished segments that are gone may be linked again by a replay of Cassandra. They must not be sent twice."""
    raw, spill = tmp_path / "cdc_raw", tmp_path / "spill"
    for folder, segment_id in ((raw, 5), (raw, 8), (spill, 6)):
        folder.mkdir(exist_ok=True)
        (folder / f"CommitLog-7-{segment_id}.log").write_bytes(b"x")
    stored = StoredPositions(
        segments={8: StoredSegment(position=900), 9: StoredSegment(position=70, fault="a checksum")},
        finished=SegmentIds.of([4, 5, 6, 7]),
        until_ms=12,
    )
    assert reading_again(stored, [raw, spill, tmp_path / "none"]) == StoredPositions(
        segments={8: StoredSegment(position=0), 9: StoredSegment(position=0, fault="a checksum")},
        finished=SegmentIds.of([4, 7]),
        until_ms=12,
    )


class _SameTables(MemoryTables):
    """The schema does not change, so only the failure can cause another try."""

    def as_of(self, time_ms: int, timeout_s: float, *, reread: bool = False) -> KnownTables:
        return KnownTables(version=1, node_id=UUID(int=1), tables=self.tables)


class _Published:
    """A publisher in memory."""

    def __init__(self) -> None:
        self.events: list[Outgoing] = []

    def publish(self, events: Sequence[Outgoing]) -> None:
        self.events += events


def test_parked_mutations_are_tried_again_when_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try failed when it was recorded. Without a change of the schema, there would be no other one."""
    monkeypatch.setattr("change_agent.segments.unparking._CHUNK", 1)
    parked, metrics, stopping = ParkedMutations(tmp_path, lambda: None), AgentMetrics(), threading.Event()
    positions, publisher = InflightPositions(max_events=9, max_bytes=9_999), _Published()
    interpreter = MutationInterpreter(_SameTables(GOLDEN.tables()), parked, metrics, stopping)
    late = LateEvents(interpreter, positions, publisher, metrics, stopping)
    parked.park(_mutation(10))
    parked.park(_mutation(20, payload=payloads(1)[0]))
    parked.save()
    unparker = Unparker(parked, interpreter, late, metrics)

    def refuse(reasons: object) -> None:
        raise UnwritableFileError("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(parked, "note_tries", refuse)
        unparker.run()
    assert publisher.events == []
    unparker.run()
    assert len(publisher.events) == 1
    parked.close()


def test_a_folder_that_cannot_be_listed_counts_as_having_every_segment(tmp_path: Path) -> None:
    """Segments in this folder may have parked mutations that are stored nowhere else."""
    (tmp_path / "cdc_raw").touch()
    stored = StoredPositions(segments={8: StoredSegment(position=900)}, finished=SegmentIds.of([4, 5]))
    found = reading_again(stored, [tmp_path / "cdc_raw"])
    assert found == StoredPositions(segments={8: StoredSegment(position=0)})


def test_only_the_owner_reads_the_file(tmp_path: Path) -> None:
    """The file contains rows of tables."""
    ParkedMutations(tmp_path, lambda: None).close()
    assert (tmp_path / "parked.sqlite").stat().st_mode & 0o777 == 0o600


def _listed(tmp_path: Path, width: int, *options: str) -> str:
    command = ["parked", "--working-dir", str(tmp_path), *options]
    result = CliRunner(env={"COLUMNS": str(width)}).invoke(cli, command)
    assert result.exit_code == 0, result.output
    return result.output


def test_cdc_parked_fits_its_terminal(tmp_path: Path) -> None:
    """A wide terminal shows all columns; a narrow one shows place and reason, folded."""
    parked = ParkedMutations(tmp_path, lambda: None)
    parked.park(_mutation(10))
    parked.save()
    wide = _listed(tmp_path, 200)
    assert "table id [x] is not in the known schema" in wide
    assert str(_TABLE) in wide and "2023-11-14T22:13:20Z" in wide
    assert "1 parked, of 1 segment, which stay in cdc_raw" in wide
    narrow = _listed(tmp_path, 50)
    assert max(map(len, narrow.splitlines())) <= 60
    assert "position 10" in " ".join(narrow.split())
    parked.close()


@pytest.mark.parametrize("given", ["--config", "CDC_CONFIG", "CDC_WORKING_DIR"])
def test_cdc_parked_finds_the_folder_as_the_agent_does(given: str, tmp_path: Path) -> None:
    """The folder comes from the file, from the file's variable, or from the option's own variable."""
    parked = ParkedMutations(tmp_path, lambda: None)
    parked.park(_mutation(10))
    parked.save()
    config = tmp_path / "agent.yaml"
    config.write_text(f"cdcWorkingDir: {tmp_path}\n")
    environment = {"CDC_CONFIG": {"CDC_CONFIG": str(config)}, "CDC_WORKING_DIR": {"CDC_WORKING_DIR": str(tmp_path)}}
    command = ["parked", "--json", *(["--config", str(config)] if given == "--config" else [])]
    result = CliRunner(env=environment.get(given, {})).invoke(cli, command)
    parked.close()
    assert (result.exit_code, len(result.output.splitlines())) == (0, 1), result.output


def test_cdc_parked_prints_objects_for_programs(tmp_path: Path) -> None:
    """One object for each line, with the bytes of the mutation."""
    parked = ParkedMutations(tmp_path, lambda: None)
    parked.park(_mutation(10))
    parked.save()
    assert json.loads(_listed(tmp_path, 80, "--json")) == {
        "kind": "parked",
        "segment": "CommitLog-7-7.log",
        "position": 10,
        "version": 7,
        "table_id": str(_TABLE),
        "table": None,
        "reason": "table id [x] is not in the known schema",
        "tries": 1,
        "parked_at": "2023-11-14T22:13:20Z",
        "payload": "0102",
    }
    parked.close()


def test_cdc_parked_names_the_tables_that_the_agent_knows(tmp_path: Path) -> None:
    """The names come from the agent's schema history. An unknown table is shown by its id."""
    history = SchemaHistory(tmp_path)
    history.add(NodeSchema(node_id=UUID(int=1), schema=json.loads(GOLDEN.schema_file.read_text())))
    history.close()
    known = next(each for each in GOLDEN.tables().values() if each.full_name == "golden.simple")
    parked = ParkedMutations(tmp_path, lambda: None)
    parked.park(replace(_mutation(10), table_id=known.table_id))
    parked.park(_mutation(20))
    parked.close()
    wide = _listed(tmp_path, 200)
    assert "golden.simple" in wide and str(_TABLE) in wide
    names = [json.loads(line)["table"] for line in _listed(tmp_path, 80, "--json").splitlines()]
    assert names == ["golden.simple", None]


def test_cdc_parked_lists_events_that_no_broker_took(tmp_path: Path) -> None:
    """They are listed until a broker with a larger limit has received them."""
    event = MutationEvent(
        position=40, ordinal=0, kind=MutationKind.ROW, key=b"k" * 70_000, partition_key=b"k" * 70_000, digest=b"d" * 16
    )
    message = MutationEvents(
        node_id=UUID(int=1), segment_id=7, keyspace="ks", table="t", table_id=_TABLE, key_schema="", events=(event,)
    )
    HeldEvents(tmp_path / "held" / "too-large" / "ks.t.events").append([encode_events(message)])
    listed = " ".join(_listed(tmp_path, 100).split())
    assert "ks.t 7 40 140" in listed
    assert "1 larger than the broker's maxMessageSize" in listed
    [line] = _listed(tmp_path, 100, "--json").splitlines()
    found = json.loads(line)
    assert (found["kind"], found["table"], found["position"], found["size"] > 140_000) == (
        "too_large",
        "ks.t",
        40,
        True,
    )


def test_cdc_parked_says_when_there_is_nothing(tmp_path: Path) -> None:
    """No agent has parked a mutation in this folder."""
    assert _listed(tmp_path, 80) == "nothing is parked\n"
