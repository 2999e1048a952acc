"""The commit log as a DataFrame, behind a real Cassandra and an agent with an archive, compared with SELECT."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import pytest
from cassandra.cluster import Session
from pyspark.sql import DataFrame, SparkSession

from schemas.errors import ConfigError
from spark_bridge import as_of, cell_history, commit_log, latest_cells
from tests.fixtures.agent import AgentArchive
from tests.topics.events_topic import wait_until

_COLUMNS: Final = (
    "pk int, ck int, v text, n bigint, s text static, m map<text, int>, e set<int>, l list<text>, gone int,"
    " PRIMARY KEY (pk, ck)"
)
_EARLY: Final = (
    "INSERT INTO {t} (pk, ck, v, n, m, e, l, gone) VALUES (1, 1, 'a', 1, {'x': 1, 'y': 2}, {3, -1, 2}, ['p', 'q'], 1)",
    "INSERT INTO {t} (pk, ck, v) VALUES (1, 2, 'b')",
    "INSERT INTO {t} (pk, ck, v) VALUES (1, 3, 'c')",
    "INSERT INTO {t} (pk, ck) VALUES (2, 1)",
    "INSERT INTO {t} (pk, s) VALUES (3, 'alone')",
    "UPDATE {t} SET v = 'no marker' WHERE pk = 4 AND ck = 1",
    "UPDATE {t} SET s = 'static' WHERE pk = 1",
    "INSERT INTO {t} (pk, ck, v) VALUES (5, 1, 'partition')",
    "UPDATE {t} SET m['y'] = 5, e = e - {2}, l = l + ['r'] WHERE pk = 1 AND ck = 1",
    "DELETE n FROM {t} WHERE pk = 1 AND ck = 1",
)
_LATER: Final = (
    "UPDATE {t} SET v = 'a2', n = 7 WHERE pk = 1 AND ck = 1",
    "UPDATE {t} SET m = {'z': 9} WHERE pk = 1 AND ck = 1",
    "DELETE FROM {t} WHERE pk = 1 AND ck >= 2 AND ck < 3",
    "DELETE FROM {t} WHERE pk = 1 AND ck = 3",
    "DELETE v FROM {t} WHERE pk = 4 AND ck = 1",
    "DELETE FROM {t} WHERE pk = 5",
    "INSERT INTO {t} (pk, ck, v) VALUES (6, 1, 'new')",
    "UPDATE {t} SET s = 'static 2' WHERE pk = 1",
)

Row = Mapping[str, Any]


def _write(cql: Session, table: str, statements: tuple[str, ...]) -> None:
    """Run each statement with its own write time."""
    for each in statements:
        text, time_us = each.replace("{t}", table), time.time_ns() // 1000
        if text.startswith("INSERT"):
            text += f" USING TIMESTAMP {time_us}"
        elif text.startswith("UPDATE"):
            text = text.replace(" SET ", f" USING TIMESTAMP {time_us} SET ", 1)
        else:
            text = text.replace(" WHERE ", f" USING TIMESTAMP {time_us} WHERE ", 1)
        cql.execute(text)


def _selected(cql: Session, table: str) -> dict[tuple[int, int | None], Row]:
    """The rows of SELECT, by key."""
    rows = cql.execute(
        f"SELECT pk, ck, v, n, s, m, e, l, WRITETIME(v) AS wv, WRITETIME(n) AS wn, WRITETIME(s) AS ws FROM {table}"
    )
    return {
        (each.pk, each.ck): {
            "v": each.v,
            "n": each.n,
            "s": each.s,
            "m": dict(each.m) if each.m else None,
            "e": list(each.e) if each.e else None,
            "l": each.l,
            "times": {
                name: found for name, found in (("v", each.wv), ("n", each.wn), ("s", each.ws)) if found is not None
            },
        }
        for each in rows
    }


def _shown(rows: DataFrame) -> dict[tuple[int, int | None], Row]:
    return {
        (each.pk, each.ck): {
            "v": each.v,
            "n": each.n,
            "s": each.s,
            "m": each.m,
            "e": each.e,
            "l": each.l,
            "times": dict(each.writetimes),
        }
        for each in rows.collect()
    }


def test_a_table_at_a_moment_is_what_select_said_then(
    spark: SparkSession, cql: Session, keyspace: str, archive: AgentArchive
) -> None:
    """Rows and write times at a moment equal SELECT then, although later a column was dropped, and rows, ranges and
    partitions were deleted."""
    table = f"{keyspace}.t"
    cql.execute(f"CREATE TABLE {table} ({_COLUMNS}) WITH cdc = true")
    _write(cql, table, ("INSERT INTO {t} (pk, ck, v) VALUES (7, 1, 'expires')",))
    cql.execute(f"INSERT INTO {table} (pk, ck, v) VALUES (7, 2, 'expires') USING TTL 1")
    _write(cql, table, _EARLY)
    wait_until(lambda: (7, 2) not in _selected(cql, table), "it has expired")
    middle_us, middle = time.time_ns() // 1000, _selected(cql, table)
    cql.execute(f"ALTER TABLE {table} DROP gone")
    _write(cql, table, _LATER)
    now_us, now = time.time_ns() // 1000, _selected(cql, table)
    assert middle != now
    archive.wait_for_all_writes(cql, keyspace)
    options = {"archiveUrl": str(archive.folder), "table": table}

    at_middle = as_of(spark, options, middle_us, writetimes=True)
    assert "gone" in at_middle.columns
    with_gone = _shown(at_middle)
    for row in with_gone.values():
        row["times"].pop("gone", None)
    assert with_gone == middle
    at_now = as_of(spark, options, now_us, writetimes=True)
    assert "gone" not in at_now.columns
    assert _shown(at_now) == now

    cells = latest_cells(spark, options).where("is_live AND path IS NULL").collect()
    assert {each.column for each in cells} == {"v", "n", "s"}
    found = {(each.pk, each.ck, each.column): each.writetime for each in cells}
    statics = {(pk, None, "s"): row["times"]["s"] for (pk, _), row in now.items() if "s" in row["times"]}
    rows = {(*key, name): row["times"][name] for key, row in now.items() for name in ("v", "n") if name in row["times"]}
    assert found == rows | statics

    history = cell_history(spark, options).where("pk = 1 AND ck = 1 AND column = 'v'").orderBy("writetime").collect()
    assert [(each.value, each.replaced_by) for each in history] == [('"a"', "value"), ('"a2"', None)]
    assert history[0].replaced_at == history[1].writetime == now[1, 1]["times"]["v"]

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        deletions = commit_log(spark, {"archiveUrl": str(archive.folder)}).where(
            f"keyspace = '{keyspace}' AND table = 't'"
        )
        kinds = {each.kind: each["count"] for each in deletions.groupBy("kind").count().collect()}
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert {kind: kinds[kind] for kind in ("partition_deletion", "range_deletion", "row_deletion", "static_row")} == {
        "partition_deletion": 1,
        "range_deletion": 1,
        "row_deletion": 1,
        "static_row": 3,
    }
    with pytest.raises(ConfigError, match="is before the archive began"):
        as_of(spark, options, "2020-01-01T00:00:00Z")
