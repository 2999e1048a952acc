"""A trace knows which records of the topic count no more: of an earlier table, or from before a truncation or a drop."""

from __future__ import annotations

from uuid import UUID

import pytest

from cdc.trace.removed_records import Removals
from cdc.trace.topic_places import DataRecord
from schemas import record_properties as names
from spark_bridge.topics.table_clearing import TableClearing

_TABLE, _OTHER = UUID(int=1), UUID(int=2)
_EARLIER = "of an earlier table with this name, so it does not count"


def _record(
    entry: int,
    *,
    table: UUID | None = _TABLE,
    generation: int | None = 7,
    written_us: int | None = 5_000_000,
    gone: bool = False,
) -> DataRecord:
    told = {names.TABLE_ID: str(table), names.TABLE_GENERATION: generation, names.WRITETIME: written_us}
    return DataRecord(
        place="",
        partition=0,
        position=(3, entry, -1),
        published_ms=0,
        is_marker=False,
        data=None if gone else b"\x02",
        value=None if gone else {"v": 1},
        properties={name: str(value) for name, value in told.items() if value is not None and value != "None"},
    )


def _clearing(
    kind: str = "truncation", *, generation: int | None = 7, last: tuple[int, int] | None = (3, 10)
) -> TableClearing:
    return TableClearing(
        kind=kind,
        table_id=str(_TABLE),
        table_generation=generation,
        time_ms=6_000,
        nodes=(),
        data_topic="persistent://public/default/data-shop.orders",
        positions=(last,),
    )


def _reason(record: DataRecord, *clearings: TableClearing, others: tuple[DataRecord, ...] = ()) -> str:
    return Removals(_TABLE, [record, *others], clearings).reason(record)


def test_a_record_before_a_truncation_is_removed() -> None:
    """The trace told that such a record differs from Cassandra, and to send the row again."""
    assert _reason(_record(10), _clearing()) == "removed by the truncation of 1970-01-01 00:00:06 UTC"
    assert _reason(_record(10, written_us=None), _clearing()) != ""
    assert _reason(_record(10)) == ""


@pytest.mark.parametrize(
    ("record", "clearing"),
    [
        (_record(11), _clearing()),
        (_record(10, written_us=6_000_000), _clearing()),
        (_record(10, written_us=None, gone=True), _clearing()),
        (_record(10), _clearing(last=None)),
        (_record(10), _clearing(generation=6)),
    ],
    ids=["behind it", "written later", "a deletion without a time", "an empty partition", "of an earlier life"],
)
def test_other_records_count(record: DataRecord, clearing: TableClearing) -> None:
    """The rule is that of all readers (docs/records.md)."""
    assert _reason(record, clearing) == ""


def test_a_drop_removes_whatever_the_write_time_is() -> None:
    """A client can set any."""
    assert _reason(_record(10, written_us=9_000_000), _clearing("drop")).startswith("removed by the drop of ")


def test_records_of_an_earlier_life_of_the_table_do_not_count() -> None:
    """The table was dropped and created again, with another id or with the same one."""
    assert _reason(_record(1, table=_OTHER)) == _EARLIER
    assert _reason(_record(1, generation=6), others=(_record(2),)) == _EARLIER
    assert _reason(_record(1, generation=None), others=(_record(2),)) == ""
    assert _reason(_record(1, table=None, generation=None)) == ""
