"""The jobs `mirror` and `verify` behind a real Cassandra, agent and connector."""

from __future__ import annotations

import itertools
import json
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from cassandra.cluster import Session
from pyspark.sql import SparkSession

from cdc.rest import rest
from schemas.errors import ConfigError
from schemas.topics import partition_of_token
from spark_bridge import raw_batch
from spark_bridge.jobs.backfill import BackfillReport, backfill
from spark_bridge.jobs.cassandra_rows import CassandraAccess, table_metadata
from spark_bridge.jobs.mirror import mirror
from spark_bridge.jobs.row_keys import token_of
from spark_bridge.jobs.table_comparison import Differences, TableComparison
from spark_bridge.jobs.token_sample import TokenSample
from spark_bridge.jobs.verify import VerifyReport, verify
from spark_bridge.topics.options import BridgeOptions
from tests.fixtures.connector import wait_until_acknowledged
from tests.fixtures.served_table import ServeTable
from tests.fixtures.spark import killed_driver, spark_command
from tests.topics.events_topic import wait_until
from tests.topics.events_writer import EventsWriter

# The first test compares its table eight times.
pytestmark = pytest.mark.timeout(1_500)

_ROWS = 300
_LATER_US: Final = 2_000_000_000_000_000
"""A write time in the year 2033: later than those of rows that are written now."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A table with an events topic, a connector, and a data topic that keeps its records."""

    keyspace: str
    name: str
    writer: EventsWriter
    options: Mapping[str, str]
    access: CassandraAccess
    spark: SparkSession

    def backfill(self, **more: Any) -> BackfillReport:
        return backfill(self.spark, self.options, self.access, self.keyspace, self.name, **more)

    def verify(self, **more: Any) -> VerifyReport:
        return verify(self.spark, self.options, self.access, self.keyspace, self.name, **more)

    def wait_until_published(self) -> None:
        wait_until_acknowledged(self.writer.topic, self.options["adminUrl"])


@pytest.fixture
def serve(keyspace: str, serve_table: ServeTable, spark: SparkSession) -> Callable[[str], Served]:
    """Serve an existing table of the test's keyspace, by its name."""

    def of(name: str) -> Served:
        made = serve_table(name)
        return Served(
            keyspace=keyspace, name=name, writer=made.writer, options=made.data, access=made.access, spark=spark
        )

    return of


def insert(table: str, number: int, text: str) -> str:
    return (
        f"INSERT INTO {table} (pk, at, name, amount, big, tags, attributes, day, who) VALUES ({number % 40},"
        f" {number}, '{text}', {number}.50, {10**20 + number}, {{'b', 'a{number}'}}, {{{number}: 'x', 3: 'y'}},"
        f" '2026-11-{1 + number % 28:02d}', 00000000-0000-4000-8000-{number:012d})"
    )


def where(number: int) -> str:
    return f"WHERE pk = {number % 40} AND at = {number}"


def found(report: VerifyReport) -> dict[str, list[str]]:
    """Sorted keys of the differences, by kind."""
    kinds = ("missing", "extra", "differing")
    return {kind: sorted(each.key for each in report.differences if each.kind == kind) for kind in kinds}


def key(number: int) -> str:
    return f'{{"pk":{number % 40},"at":{number}}}'


def is_in(sample: TokenSample, key_text: str) -> bool:
    return sample.holds(token_of([struct.pack(">i", json.loads(key_text)["pk"])]))


@contextmanager
def after_each_comparison(act: Callable[[int], object], compared: list[int]) -> Iterator[None]:
    """Call `act` with 1, 2, ... after each comparison that `verify` makes in this context."""
    compare = TableComparison.compare

    def compare_and_act(self: TableComparison, *ids: Any, **limit: Any) -> Differences:
        found = compare(self, *ids, **limit)
        compared.append(len(compared) + 1)
        act(compared[-1])
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TableComparison, "compare", compare_and_act)
        yield


def test_verify_finds_every_planted_difference_and_no_other_and_repairs_them(
    cql: Session, keyspace: str, serve: Callable[[str], Served], spark: SparkSession, tmp_path: Path
) -> None:
    """Verify finds 97 rows and 3 static rows that were inserted, deleted and updated without an event, on the topic and
    in a mirror."""
    table = f"{keyspace}.planted"
    cql.execute(
        f"CREATE TABLE {table} (pk int, at bigint, name text, amount decimal, big varint, tags set<text>,"
        " attributes map<int, text>, day date, who uuid, note text static, PRIMARY KEY (pk, at))"
    )
    for number in range(_ROWS):
        cql.execute(insert(table, number, f"row {number}"))
    for pk in (*range(0, 40, 3), 77, 78):
        cql.execute(f"UPDATE {table} SET note = 'note {pk}' WHERE pk = {pk}")
    served = serve("planted")
    options, access = served.options, served.access
    target = str(tmp_path / "mirror")

    def compare(**more: Any) -> VerifyReport:
        return served.verify(ranges=3, **more)

    with pytest.raises(
        ConfigError, match=r"there is no mirror below .*nowhere; give the --target of `cdc spark mirror`"
    ):
        compare(mirror_target=str(tmp_path / "nowhere"))  # every row counted as missing in it
    served.backfill(ranges=2)
    served.wait_until_published()
    marks = raw_batch(spark, options).selectExpr("properties['snapshot']", "left(properties['segpos'], 3)").distinct()
    assert [tuple(each) for each in marks.collect()] == [("true", "-2:")]
    where_pulsar = [
        "--service-url",
        options["serviceUrl"],
        "--admin-url",
        options["adminUrl"],
        "--topic",
        options["topic"],
    ]
    mirrored = spark_command(spark, "mirror", *where_pulsar, "--target", target, "--json")
    assert (mirrored.exit_code, json.loads(mirrored.stdout)["inserted"]) == (0, _ROWS + 2)

    chosen = random.Random(20261121).sample(range(_ROWS), 64)
    deleted, updated, added, moving = chosen[:32], chosen[32:], range(_ROWS, _ROWS + 33), _ROWS + 33
    for number in deleted:
        cql.execute(f"DELETE FROM {table} USING TIMESTAMP {_LATER_US} {where(number)}")
    for number in updated:
        cql.execute(
            f"UPDATE {table} USING TIMESTAMP {_LATER_US} SET amount = 0.001, tags = tags + {{'planted'}} {where(number)}"
        )
    for number in (*added, moving):
        cql.execute(insert(table, number, "planted"))
    cql.execute(f"DELETE note FROM {table} USING TIMESTAMP {_LATER_US} WHERE pk = 77")
    cql.execute(f"UPDATE {table} USING TIMESTAMP {_LATER_US} SET note = 'planted' WHERE pk = 78")
    cql.execute(f"UPDATE {table} SET note = 'planted' WHERE pk = 79")

    planted = {
        "missing": sorted([*map(key, added), '{"pk":79}']),
        "extra": sorted([*map(key, deleted), '{"pk":77}']),
        "differing": sorted([*map(key, updated), '{"pk":78}']),
    }
    assert sum(map(len, planted.values())) == 100

    def change(look: int) -> None:
        cql.execute(f"UPDATE {table} USING TIMESTAMP {_LATER_US + look} SET name = 'look {look}' {where(moving)}")

    with after_each_comparison(change, looks := []):
        in_mirror = compare(mirror_target=target, settle_s=1, give_up_s=0)
    assert (len(looks), in_mirror.unsettled) == (2, (key(moving),))
    everywhere = {**planted, "missing": sorted([*planted["missing"], key(moving)])}
    metadata = table_metadata(access, keyspace, "planted")
    sample = TokenSample.draw(metadata, 0.5, 3, seed=7)
    in_sample = {each for keys in everywhere.values() for each in keys if is_in(sample, each)}
    comparison = TableComparison(
        spark, BridgeOptions.from_mapping(options), access, metadata, sample.ranges, mirror=None, sample=sample
    )
    part = comparison.compare(at_most=10)
    assert 10 < part.differing == len(in_sample) < 100
    assert len({(row.cassandra or row.topic).key for row in part.shown} & in_sample) == 10
    assert part.rows == sum(sample.holds(row[0]) for row in cql.execute(f"SELECT token(pk) FROM {table}"))

    in_topic = compare(settle_s=1, repair=True)
    assert (in_topic.repaired, in_topic.unrepairable, in_topic.unsettled) == (101, (), ())
    for report, expected in ((in_mirror, planted), (in_topic, everywhere)):
        assert found(report) == expected
        assert (report.rows, report.left_out) == (_ROWS + 2 + 35 - 33, 0)
        differing = [each for each in report.differences if each.kind == "differing"]
        assert {each.columns for each in differing} == {("amount", "tags"), ("note",)}
        assert {each.cassandra_writetime_us for each in differing} == {_LATER_US}
        assert all((each.topic_writetime_us or 0) < _LATER_US for each in differing)
        extra = [each for each in report.differences if each.kind == "extra"]
        assert {each.cassandra_writetime_us for each in extra} == {None}

    served.wait_until_published()
    with after_each_comparison(lambda look: mirror(spark, options, target) if look == 1 else None, looks := []):
        on_their_way = compare(mirror_target=target, settle_s=1)
    assert (on_their_way.differences, on_their_way.unsettled, len(looks)) == ((), (), 2)
    where_cassandra = ["--contact-point", access.contact_points[0], "--port", str(access.port), "--consistency", "ONE"]
    sampled = ["--table", table, "--mirror", target, "--ranges", "3", "--sample", "0.5", "--sample-seed", "7", "--json"]
    half = spark_command(spark, "verify", *where_pulsar, *where_cassandra, *sampled)
    report = json.loads(half.stdout)
    assert (half.exit_code, report["differences"]) == (0, [])
    assert 0 < report["rows"] < on_their_way.rows


def write_live(cql: Session, table: str, writer: EventsWriter, ended: threading.Event) -> int:
    """Update rows and send their events, as an agent does, until `ended` is set; return the number of updates."""
    for count in itertools.count(1):
        number, written_us = count * 7 % _ROWS, time.time_ns() // 1000
        pk, at = struct.pack(">i", number % 50), f"at {number}"
        cql.execute(
            f"UPDATE {table} USING TIMESTAMP {written_us} SET v = {1000 + count} WHERE pk = {number % 50} AND at = '{at}'"
        )
        event = writer.event(pk, at.encode(), writetime_us=written_us, columns=("v",))
        writer.send(event, partition=partition_of_token(token_of([pk]), writer.partitions))
        if ended.wait(0.02):
            return count
    raise AssertionError("counts have no end")


def test_a_column_that_was_added_does_not_differ(cql: Session, keyspace: str, serve: Callable[[str], Served]) -> None:
    """Cassandra's rows counted as older than all versions of the topic's schema, so the column counted as added again."""
    table = f"{keyspace}.added"
    cql.execute(f"CREATE TABLE {table} (pk int PRIMARY KEY, v text)")
    cql.execute(f"INSERT INTO {table} (pk, v) VALUES (1, 'before')")
    served = serve("added")
    for statement in (
        f"ALTER TABLE {table} ADD w text",
        f"INSERT INTO {table} (pk, v, w) VALUES (2, 'after', 'new')",
        f"UPDATE {table} SET w = 'new' WHERE pk = 1",
    ):
        served.backfill(ranges=2)
        served.wait_until_published()
        cql.execute(statement)
    served.backfill(ranges=2)
    served.wait_until_published()
    report = served.verify(ranges=2, settle_s=1)
    assert (report.rows, report.differences) == (2, ())


def test_a_row_with_a_user_type_that_grew_in_its_key_does_not_differ(
    cql: Session, keyspace: str, serve: Callable[[str], Served]
) -> None:
    """The topic has the row's key without the new field, and each later record of the row has the field. The same row
    counted as missing and as extra."""
    table = f"{keyspace}.grown"
    cql.execute(f"CREATE TYPE {keyspace}.spot (x int)")
    cql.execute(f"CREATE TABLE {table} (pk int, at frozen<spot>, c text, v text, PRIMARY KEY (pk, at, c))")
    for pk in (1, 2):
        cql.execute(f"INSERT INTO {table} (pk, at, c, v) VALUES ({pk}, {{x: 1}}, 'c', 'before')")
    served = serve("grown")
    served.backfill(ranges=2)
    served.wait_until_published()
    cql.execute(f"ALTER TYPE {keyspace}.spot ADD y int")
    cql.execute(f"INSERT INTO {table} (pk, at, c, v) VALUES (2, {{x: 1}}, 'c', 'after')")
    cql.execute(f"INSERT INTO {table} (pk, at, c, v) VALUES (2, {{x: 1, y: 2}}, 'c', 'another')")
    served.backfill(ranges=2, where="pk = 2")
    served.wait_until_published()
    report = served.verify(ranges=2, settle_s=1)
    assert (report.rows, report.differences) == (3, ())
    cql.execute(f"UPDATE {table} SET v = 'not published' WHERE pk = 1 AND at = {{x: 1}} AND c = 'c'")
    cql.execute(f"DELETE FROM {table} WHERE pk = 2 AND at = {{x: 1}} AND c = 'c'")
    report = served.verify(ranges=2, settle_s=1, repair=True)
    assert [(each.kind, json.loads(each.key)["pk"]) for each in report.differences] == [("differing", 1), ("extra", 2)]
    assert (report.repaired, len(report.unrepairable)) == (1, 1)
    served.wait_until_published()
    assert [each.kind for each in served.verify(ranges=2, settle_s=1).differences] == ["extra"]


@pytest.mark.extended
def test_a_backfill_that_was_killed_goes_on_beside_live_writes_and_leaves_no_difference(
    cql: Session, keyspace: str, serve: Callable[[str], Served], tmp_path: Path
) -> None:
    """The driver is killed after two of four ranges; another one sends the others, no faster than its limit."""
    table = f"{keyspace}.old"
    cql.execute(f"CREATE TABLE {table} (pk int, at text, v int, note text static, PRIMARY KEY (pk, at))")
    for number in range(_ROWS):
        cql.execute(f"INSERT INTO {table} (pk, at, v) VALUES ({number % 50}, 'at {number}', {number})")
    cql.execute(f"UPDATE {table} SET note = 'static only' WHERE pk = 77")
    served = serve("old")
    progress = tmp_path / "progress.json"
    planned = served.backfill(ranges=4, dry_run=True)
    assert planned.rows == _ROWS + 1
    with ThreadPoolExecutor(1) as beside:
        ended = threading.Event()
        live = beside.submit(write_live, cql, table, served.writer, ended)
        try:
            arguments = {
                "options": served.options,
                "address": served.access.contact_points[0],
                "port": served.access.port,
                "keyspace": keyspace,
                "table": "old",
                "progress_file": str(progress),
            }
            assert killed_driver("backfill", "local[2]", arguments, tmp_path / "spark") == -9
            assert len(json.loads(progress.read_text())["done"]) == 2
            continued = served.backfill(ranges=4, progress_file=str(progress), rows_per_second=50)
        finally:
            ended.set()
        assert live.result() > 0
    assert (continued.ranges_before, continued.ranges) == (2, 2)
    assert 0 < continued.rows < _ROWS
    assert continued.seconds > (continued.rows - 10) / 50  # Each task does not wait after its last few rows.
    schema_url = f"{served.options['adminUrl']}/admin/v2/schemas/public/default/data-{table}/schema"
    wait_until(lambda: rest().get(schema_url).is_success, "the first record")
    report = served.verify(ranges=2, settle_s=60)
    assert (report.rows, report.differences, report.unsettled) == (_ROWS + 1, (), ())
