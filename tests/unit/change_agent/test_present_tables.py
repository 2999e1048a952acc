"""PresentTables: which tables the node has now, as several threads of the agent see them."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from change_agent.schema.present_tables import PresentTables
from schemas.table_metadata import TableMetadata
from tests.cql.tables import table_of


def _table(number: int, name: str, *, cdc: bool = True) -> TableMetadata:
    return table_of({}, name=f"shop.{name}", table_id=UUID(int=number), cdc=cdc)


_DROPPED, _ORDERS, _LOGS = _table(1, "orders"), _table(2, "orders"), _table(3, "logs", cdc=False)


class _Schema:
    """What the agent knows of the schema."""

    def __init__(self) -> None:
        self.published = (_DROPPED, _ORDERS)
        self.left_out = (_LOGS,)
        self.present: frozenset[UUID] | None = frozenset({_ORDERS.table_id, _LOGS.table_id})

    def tables(self) -> PresentTables:
        return PresentTables(lambda: self.published, lambda: self.left_out, lambda: self.present)


def test_tables_that_were_dropped_do_not_count() -> None:
    tables = _Schema().tables()
    assert (tables.captured(), tables.left_out(), tables.names()) == ((_ORDERS,), (_LOGS,), {("shop", "orders")})


def test_before_the_first_answer_of_the_node_it_has_no_table() -> None:
    schema = _Schema()
    schema.present = None
    assert (schema.tables().captured(), schema.tables().left_out()) == ((), ())


def test_a_change_of_each_part_is_seen() -> None:
    schema = _Schema()
    tables = schema.tables()
    assert tables.captured() == (_ORDERS,)
    schema.present = frozenset({_DROPPED.table_id})
    assert (tables.captured(), tables.left_out()) == ((_DROPPED,), ())
    schema.published = (replace(_DROPPED, cdc=False),)
    assert (tables.captured(), tables.names()) == ((), frozenset())
    schema.left_out = (_DROPPED,)
    assert tables.left_out() == (_DROPPED,)


def test_while_the_schema_stays_nothing_is_computed() -> None:
    """Four times a second, all tables of the cluster were looked at."""
    tables = _Schema().tables()
    assert tables.captured() is tables.captured()
    assert tables.names() is tables.names()
    assert tables.left_out() is tables.left_out()
