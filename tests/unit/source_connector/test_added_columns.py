"""Events that name a column that the table did not have at the last read of its schema."""

from __future__ import annotations

from uuid import UUID

import pytest

from source_connector.errors import FetchError
from source_connector.host.host_protocol import SchemaTaken
from source_connector.tables.newest_schema import NewestSchemaAnswer
from tests.unit.source_connector.events import event, table
from tests.unit.source_connector.table_line_case import OLD, Case


def columns_read(case: Case) -> list[list[str]]:
    """The columns that each read selects."""
    return [sorted(read.request.projection.column_names) for read in case.around.reads]


def of_dropped_column(monkeypatch: pytest.MonkeyPatch) -> Case:
    """A case whose table has no column `x`, which a look at the schema has confirmed."""
    case = Case(monkeypatch)
    case.receive(event(1, columns=("v", "x")))
    case.pass_time()
    assert columns_read(case) == [["pk", "v"]]
    return case


def test_the_first_row_with_a_column_that_was_added_again_is_read_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """This also holds before the next regular check of the schema."""
    case = of_dropped_column(monkeypatch)
    case.around.current, case.around.number = table(columns=("v", "x"), table_id=OLD), case.around.number + 1
    case.receive(event(2, columns=("v", "x")))
    case.pass_time()
    case.line.schema_answered(SchemaTaken(2))
    case.line.schema_answered(NewestSchemaAnswer(schema_id=2, is_newest=True))
    case.pass_time()
    assert columns_read(case)[1:] == [["pk", "v", "x"]]


def test_late_events_of_a_dropped_column_ask_for_the_schemas_version_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such events of one moment share one question, so a backlog of them continues. The table is not read for them."""
    case = of_dropped_column(monkeypatch)
    asked: list[float] = []

    def version_since(asked_after: float) -> UUID:
        asked.append(asked_after)
        return case.around.version()

    monkeypatch.setattr(case.around, "version_since", version_since)
    monkeypatch.setattr(case.around, "read_versioned", lambda: pytest.fail("the table is read"))
    for key in range(2, 100):
        case.receive(event(key, columns=("x",)))
    assert (len(asked), len(case.around.reads)) == (1, 2)
    case.now += 0.05
    case.timers.run_due()
    case.line.work()
    assert (len(asked), len(case.around.reads)) == (2, 99)


def test_late_events_wait_alone_while_cassandra_does_not_tell_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other events are read meanwhile, and these follow once Cassandra answers."""
    case = of_dropped_column(monkeypatch)

    def fail(after: float) -> UUID:
        raise FetchError("system_schema", "OperationTimedOut")

    with monkeypatch.context() as patched:
        patched.setattr(case.around, "version_since", fail)
        case.receive(event(2, columns=("x",)))
        case.receive(event(3))
        case.pass_time()
        assert len(case.around.reads) == 2
    case.pass_time()
    assert len(case.around.reads) == 3
