"""Parts of the fault kit that need no servers: index files, the clock, kept files, and limits of growth."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cassandra import ProtocolVersion
from cassandra.protocol import ErrorMessage

from tests.fault_kit.clock import SteppedClock
from tests.fault_kit.disks import cdc_raw_filled, folder_on_another_disk
from tests.fault_kit.index_files import disturb_index
from tests.fault_kit.keeper import SegmentKeeper
from tests.fault_kit.kinds import FaultKind
from tests.fault_kit.literals import ELEMENT_TYPES, NATIVE_TYPES, literal
from tests.fault_kit.soak import Sample, SoakReport, backlog, growth
from tests.fault_kit.soak_plot import plot_soak
from tests.fault_kit.tables import ALL_TYPES
from tests.fault_kit.workload import Failures


@pytest.mark.parametrize(
    ("kind", "wrong"), [(FaultKind.IDX_EMPTY, ""), (FaultKind.IDX_TORN, "12"), (FaultKind.IDX_SHRUNK, "617")]
)
def test_an_index_is_wrong_for_a_moment_and_right_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: FaultKind, wrong: str
) -> None:
    """The newest index is disturbed; content that Cassandra wrote meanwhile stays."""
    (tmp_path / "CommitLog-7-5_cdc.idx").write_text("99\nCOMPLETED")
    index = tmp_path / "CommitLog-7-10_cdc.idx"
    index.write_text("1234")
    seen: list[str] = []
    contents: list[str] = []
    monkeypatch.setattr("tests.fault_kit.index_files.time.sleep", lambda seconds: contents.append(index.read_text()))
    disturb_index(tmp_path, kind, 0.5, seen.append)
    assert [*contents, index.read_text()] == [wrong, "1234", "1234"]
    assert seen == [f"CommitLog-7-10_cdc.idx: '1234' becomes {wrong!r}"]


def test_a_segment_that_cassandra_finished_meanwhile_is_complete_again(tmp_path: Path) -> None:
    """Cassandra never writes this index again, so the kit writes what Cassandra would have written."""
    index = tmp_path / "CommitLog-7-10_cdc.idx"
    index.write_text("1234")

    def start_next(text: str) -> None:
        (tmp_path / "CommitLog-7-11_cdc.idx").write_text("50")

    disturb_index(tmp_path, FaultKind.IDX_SHRUNK, 0.0, start_next)
    assert index.read_text() == "1234\nCOMPLETED"


def test_an_index_that_says_nothing_is_waited_for(tmp_path: Path) -> None:
    """Cassandra empties an index before it writes it again: the kit waits, as emptying an empty file is no fault."""
    index = tmp_path / "CommitLog-7-10_cdc.idx"
    index.touch()
    seen: list[str] = []
    threading.Timer(0.3, index.write_text, ["1234"]).start()
    disturb_index(tmp_path, FaultKind.IDX_EMPTY, 0.0, seen.append)
    assert seen == ["CommitLog-7-10_cdc.idx: '1234' becomes ''"]


def test_a_clock_steps_in_a_process_that_runs(tmp_path: Path) -> None:
    """The clock steps by the environment, and in an isolated process by its interpreter."""
    clock = SteppedClock(tmp_path / "clock")
    clock.step(3600)
    tell = "import time; print(time.time())"
    script = tmp_path / "script.py"
    script.write_text(tell)
    commands = (
        [sys.executable, "-c", tell],
        [str(clock.python), "-I", "-S", str(script)],
        [str(clock.python), "-I", "-c", tell],
    )
    for command in commands:
        done = subprocess.run(command, env=clock.environment, capture_output=True, text=True, check=True, timeout=60)
        assert 3000 < float(done.stdout) - time.time() <= 3600


def test_segments_are_off_loaded_to_another_disk(tmp_path: Path) -> None:
    """On another disk a move is a copy, which can fail; the kit knows if there is no other disk."""
    other = folder_on_another_disk(tmp_path)
    assert other is not None and other.stat().st_dev != tmp_path.stat().st_dev
    assert folder_on_another_disk(other) is None
    other.rmdir()


def test_cdc_raw_is_filled_as_cassandra_counts(tmp_path: Path) -> None:
    """The file lengths count, and the space is taken only for a while."""
    with cdc_raw_filled(tmp_path, 0.8):
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) == int(0.8 * 2**30)
    assert list(tmp_path.iterdir()) == []


def test_segments_and_schemas_outlive_their_names(tmp_path: Path) -> None:
    """Files that the agent deletes remain for the judge."""
    cdc_raw, data = tmp_path / "cdc_raw", tmp_path / "data"
    (data / "system_schema" / "tables-1").mkdir(parents=True)
    cdc_raw.mkdir()
    (data / "system_schema" / "tables-1" / "nb-1-Data.db").write_text("schema")
    (cdc_raw / "CommitLog-7-1.log").write_text("segment")
    keeper = SegmentKeeper({1: (cdc_raw, data)}, tmp_path / "kept")
    keeper.keep_schema()
    (cdc_raw / "CommitLog-7-1.log").unlink()
    (data / "system_schema" / "tables-1" / "nb-1-Data.db").unlink()
    assert [path.read_text() for path in keeper.segments(1)] == ["segment"]
    [schema] = keeper.schemas(1)
    assert schema.newest_segment == "CommitLog-7-1.log"
    assert (schema.folder / "data" / "system_schema" / "tables-1" / "nb-1-Data.db").read_text() == "schema"


def _samples(rss_mib: float, last_rss_mib: float) -> list[Sample]:
    return [
        Sample(
            at_s=float(at_s),
            process=process,
            rss_mib=last_rss_mib if process == "agent" and at_s >= 75 else rss_mib,
            open_files=20,
            threads=10,
        )
        for at_s in range(0, 101, 5)
        for process in ("agent", "connector child", "connector host", "Cassandra")
    ]


def test_growth_is_told_and_a_flat_run_is_good(tmp_path: Path) -> None:
    """A growth of some megabytes is allowed, and a growth by half is not; a process without samples is not flat."""
    assert growth(_samples(100, 120)) == []
    assert growth(_samples(100, 150)) == ["agent: rss_mib grew from 100 to 150"]
    assert len(growth([])) == 3
    report = SoakReport(seed=1, minutes=2, samples=_samples(100, 120), lag_s=[(0, 0.1), (100, 0.2)])
    plot_soak(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_line_that_falls_behind_is_told() -> None:
    """The agent's lag in seconds and the connector's waiting messages count; a run without measurements is not flat."""

    def report(lag_s: float, waiting: float) -> SoakReport:
        moments = [float(at_s) for at_s in range(0, 101, 5)]
        return SoakReport(
            seed=1,
            minutes=2,
            lag_s=[(at_s, lag_s if at_s >= 75 else 0.2) for at_s in moments],
            waiting=[(at_s, waiting if at_s >= 75 else 40.0) for at_s in moments],
        )

    assert backlog(report(9.0, 900.0)) == []
    assert backlog(report(31.0, 900.0)) == ["the agent's lag in seconds grew from 0.2 to 31"]
    assert backlog(report(9.0, 5_000.0)) == ["messages that wait in events topics grew from 40 to 5000"]
    assert len(backlog(SoakReport(seed=1, minutes=2))) == 2


def test_what_two_nodes_answer_to_a_lease_that_is_unsure_ends_no_workload() -> None:
    """CAS_WRITE_UNKNOWN of Cassandra 4.0 and later (native_protocol_v5.spec, 9), for which the driver has no class."""
    text = b"CAS operation result is unknown - proposal accepted by 1 but not a quorum."
    body = struct.pack(">iH", 0x1700, len(text)) + text + struct.pack(">Hii", 8, 1, 2)
    answer = ErrorMessage.recv_body(io.BytesIO(body), ProtocolVersion.V5, None, None, None, None)
    with pytest.raises(Failures, match="CAS operation result is unknown"):
        raise answer.to_exception()


def test_a_literal_of_every_type_can_be_drawn() -> None:
    """Each type has a literal, and an unknown type is an error."""
    import random

    rng = random.Random(1)
    assert all(literal(cql_type, rng) for cql_type in ALL_TYPES.values())
    assert set(ELEMENT_TYPES) < set(NATIVE_TYPES)
    with pytest.raises(ValueError, match="no literal of unheard"):
        literal("unheard<of>", rng)
