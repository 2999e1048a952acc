"""Token ranges, and the checks of a job's access to Cassandra."""

from __future__ import annotations

import itertools
import struct
from uuid import UUID, uuid4

import pytest
from cassandra.cluster import Cluster, NoHostAvailable, Session
from cassandra.connection import DefaultEndPoint
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host
from cassandra.protocol import ProtocolException

from schemas.errors import ConfigError
from spark_bridge.errors import CassandraReadError
from spark_bridge.jobs.cassandra_rows import CassandraAccess, RangeReader, find_table, host_ids, token_ranges
from tests.cql.tables import table_of

SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize("count", [1, 2, 3, 64, 1000])
def test_ranges_cover_the_ring_without_gap_or_overlap(count: int) -> None:
    """Each range is (start, end]; no partition has the smallest token."""
    ranges = token_ranges(count)
    assert len(ranges) == count
    assert (ranges[0][0], ranges[-1][1]) == (SMALLEST, LARGEST)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    assert all(low < high for low, high in ranges)


def test_a_range_of_tokens_is_divided_alike_and_a_wrong_one_is_refused() -> None:
    """Parts are (start, end]; a range with fewer tokens than the count gives fewer parts."""
    assert token_ranges(2, (-10, 10)) == [(-10, 0), (0, 10)]
    assert token_ranges(64, (0, 2)) == [(0, 1), (1, 2)]
    for wrong in ((5, 5), (5, 4), (0, 1 << 63)):
        with pytest.raises(ConfigError, match="is no range of tokens"):
            token_ranges(1, wrong)


def test_the_password_is_not_shown_and_the_level_is_checked() -> None:
    """`repr` does not show the password, and a wrong consistency level is refused before a connection."""
    access = CassandraAccess(contact_points=("127.0.0.1",), username="u", password="tell-nobody", consistency="MOST")
    assert "tell-nobody" not in repr(access)
    with pytest.raises(
        ConfigError, match=r"consistency: 'MOST' is no consistency level; they are ANY, ONE, .*LOCAL_QUORUM"
    ):
        find_table(access, "shop", "t")


def test_a_name_without_an_address_is_told() -> None:
    """The driver raises an error of its own before it connects, which ended `cdc spark verify` in a traceback."""
    with pytest.raises(CassandraReadError) as raised:
        find_table(CassandraAccess(contact_points=("nosuch.invalid",)), "shop", "t")
    said = "Cassandra at nosuch.invalid:9042: no address is known for nosuch.invalid; check the contact points"
    assert str(raised.value) == said


def test_a_data_center_without_nodes_is_told() -> None:
    """The driver then asks no node. A data center that is there may only be unreachable."""
    cluster = Cluster(["127.0.0.1"])
    for center, address in (("east", "127.0.0.1"), ("west", "127.0.0.2")):
        host = Host(DefaultEndPoint(address), SimpleConvictionPolicy, host_id=uuid4())
        host.set_location_info(center, "r1")
        cluster.metadata.add_or_return_host(host)
    no_pool = NoHostAvailable("Unable to connect to any servers", ["h"])
    said = [
        CassandraAccess(contact_points=("h",), local_dc=each)._refusal(cluster, no_pool) for each in ("dc9", "west")
    ]
    assert said[0] == "the cluster has no data center 'dc9'; it has east, west"
    assert said[1].startswith("does not answer (")
    down = NoHostAvailable("Unable to connect to any servers", {"h": OSError("refused")})
    assert CassandraAccess(contact_points=("h",))._refusal(Cluster(), down) == "does not answer (refused)"


@pytest.mark.parametrize(
    "error",
    [NoHostAvailable("none", {"h": OSError("refused")}), ProtocolException(0x0A, "Invalid message", None)],
    ids=lambda each: type(each).__name__,
)
def test_a_node_that_goes_away_after_the_connection_is_told(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Jobs ended in a traceback when the schema was not answered."""

    def refuse(session: Session, *query: object) -> None:
        raise error

    access = CassandraAccess(contact_points=("127.0.0.1",))
    monkeypatch.setattr(Cluster, "connect", lambda cluster: Session.__new__(Session))
    monkeypatch.setattr(Session, "execute", refuse)
    for ask in (lambda: find_table(access, "shop", "t"), lambda: host_ids(access)):
        with pytest.raises(CassandraReadError, match=r"^Cassandra at 127\.0\.0\.1:9042: "):
            ask()


_TABLE = table_of(
    {"pk": "int"},
    {"at": "int"},
    static={"note": "text"},
    regular={"name": "text", "tags": "set<text>"},
    name="shop.t",
    table_id=UUID(int=2),
)


@pytest.mark.parametrize(
    ("name_us", "note_us", "is_read"),
    [
        (15, None, True),
        (25, 15, True),
        (15, 25, True),
        (25, 25, False),
        (9, None, False),
        (None, None, False),
        (None, 20, True),
    ],
)
def test_a_row_is_read_for_the_write_time_of_its_newest_cell_or_static_cell(
    name_us: int | None, note_us: int | None, is_read: bool
) -> None:
    """The event has the write time of the regular cell, by which the connector proves that it has read the row."""
    access = CassandraAccess(contact_points=("127.0.0.1",))
    reader = RangeReader(access, _TABLE, keys_only=True, written=[(10, 20)])
    assert 'WRITETIME("name"), WRITETIME("note"), token("pk")' in reader.statement
    times = [None if each is None else struct.pack(">q", each) for each in (name_us, note_us)]
    row = reader._row([struct.pack(">i", 1), struct.pack(">i", 2), *times, struct.pack(">q", -7)])
    assert (row is not None) == is_read
    if row is not None:
        assert row[2:] == (True, name_us, [b"\0\0\0\1", b"\0\0\0\2"], -7, name_us)


@pytest.mark.parametrize(
    ("key", "tags", "shown"),
    [
        (b"", None, "the key 0x 0x00000007 cannot be converted"),  # an empty int: a partition key may have one
        (b"\0\0\0\1", b"\0\0\0\1\0\0\0\1\xff", "the key 0x00000001 0x00000007 cannot be converted"),
    ],
)
def test_a_row_that_has_no_avro_form_is_named(key: bytes, tags: bytes | None, shown: str) -> None:
    """It ended the job with Spark's traceback, which did not say which row it was."""
    reader = RangeReader(CassandraAccess(contact_points=("127.0.0.1",)), _TABLE)
    raw = [key, b"\0\0\0\7", None, tags, None, None, None, bytes(8)]
    with pytest.raises(
        CassandraReadError, match=rf"Cassandra at 127.0.0.1:9042, shop.t: the row with {shown} .*; correct it"
    ):
        reader._converted(raw)
