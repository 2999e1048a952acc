"""Which tables may read while the broker is behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from source_connector.host.host_connection import HostConnection
from source_connector.host.record import SourceRecord
from source_connector.rows.outbox import Outbox
from source_connector.rows.task import TaskOwner
from tests.unit.source_connector.events import event
from tests.unit.source_connector.table_line_case import Case
from tests.unit.source_connector.task_owner import MemoryOwner, a_task

MIB = 1024 * 1024


def publish(outbox: Outbox, mebibytes: int, owner: TaskOwner) -> None:
    """Publish records of one mebibyte each, which the broker does not acknowledge."""
    task = a_task(owner)
    for _ in range(mebibytes):
        outbox.publish(task, SourceRecord(1, b"", bytes(MIB), {}))


def test_a_table_whose_topic_takes_nothing_lets_the_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """That table's large rows fill the shared memory, but each other table has a reserved part."""
    case = Case(monkeypatch)
    publish(case.outbox, 33, MemoryOwner())
    case.receive(event(1))
    assert len(case.around.reads) == 1


def test_what_all_tables_have_unanswered_is_bounded() -> None:
    """The limit is 32 MiB and one record of each table: the tables fill the shared part together, and then each fills
    its own part."""
    outbox = Outbox(cast("HostConnection", SimpleNamespace(send=lambda frame: None)))
    tables = [MemoryOwner() for _ in range(4)]
    sizes = dict.fromkeys(tables, 0)
    for table in tables:
        outbox.has_room(table)
    for table in tables:
        while outbox.has_room(table):
            publish(outbox, 1, table)
            sizes[table] += 1
    assert [sizes[table] for table in tables] == [24, 2, 2, 2]
    outbox.answered(1, refused=False)
    assert not any(map(outbox.has_room, tables))


def test_small_records_are_bounded_too() -> None:
    """The objects of a record in this process and in the host take more memory than a short record itself."""
    outbox = Outbox(cast("HostConnection", SimpleNamespace(send=lambda frame: None)))
    owner = MemoryOwner()
    task = a_task(owner)
    while outbox.has_room(owner):
        outbox.publish(task, SourceRecord(1, b"key", b"value", {}))
    assert 10_000 < task.unanswered <= 32 * MIB // 2048
    outbox.answered(1, refused=True)
    assert task.refused_bytes < 100
