"""Random changes of a table's schema between writes: the newest records are the table's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
from cassandra.cluster import Session
from hypothesis import strategies as st

from schemas.cql_type import CqlType, NativeType, UserType
from tests.cql.forms import consumer_form, sorted_sets
from tests.cql.strategies import cql_text, cql_types, declared, literals, user_types_of
from tests.fixtures.drawn import Serve, drawn, newest, table_rows
from tests.topics.data_topic import DataTopic
from tests.topics.events_topic import wait_until

_STEPS: Final = 6
_EVOLUTIONS: Final = st.lists(
    st.sampled_from(["add", "drop", "field", "nothing"]).flatmap(
        lambda kind: cql_types(2).flatmap(lambda each: st.tuples(st.just(kind), st.just(each), literals(each)))
    ),
    min_size=_STEPS,
    max_size=_STEPS,
)


class Evolution:
    """A table whose columns are added and dropped. `types` are its current columns, except the one of the user type."""

    def __init__(self, cql: Session, keyspace: str, name: str) -> None:
        self.name = f"{keyspace}.{name}"
        self.types: dict[str, CqlType] = {"c": NativeType("int"), "gone": NativeType("text")}
        self._cql = cql
        self._fields = 1
        cql.execute(f"CREATE TYPE {self.name}_type (f0 int)")
        cql.execute(f"CREATE TABLE {self.name} (pk int PRIMARY KEY, c int, u {name}_type, gone text) WITH cdc = true")

    def evolve(self, step: int, kind: str, cql_type: CqlType, literal: str) -> None:
        """Change the schema by one step, insert a row that uses the change, and update the row before it."""
        values = {"pk": str(step + 1), "c": str(step)}
        if kind == "add":
            for user_type in user_types_of(cql_type):
                self._cql.execute(f"CREATE TYPE IF NOT EXISTS {self.name.partition('.')[0]}.{declared(user_type)}")
            self._cql.execute(f"ALTER TABLE {self.name} ADD n{step} {cql_text(cql_type)}")
            self.types[f"n{step}"] = cql_type
            values[f"n{step}"] = literal
        elif kind == "drop" and (others := self._droppable()):
            name = others[0]
            self._cql.execute(f"ALTER TABLE {self.name} DROP {name}")
            del self.types[name]
        elif kind == "field":
            self._cql.execute(f"ALTER TYPE {self.name}_type ADD f{self._fields} int")
            self._fields += 1
        values["u"] = "{" + ", ".join(f"f{at}: {at + step}" for at in range(self._fields)) + "}"
        self._cql.execute(f"INSERT INTO {self.name} ({', '.join(values)}) VALUES ({', '.join(values.values())})")
        self._cql.execute(f"UPDATE {self.name} SET c = {100 + step} WHERE pk = {max(1, step)}")

    def _droppable(self) -> list[str]:
        """Columns that can be dropped: Cassandra drops no column of a user type that is not frozen."""
        return sorted(name for name, each in self.types.items() if name != "c" and not isinstance(each, UserType))

    def expected(self) -> dict[int, dict[str, Any]]:
        """The rows as a consumer must find them, without nulls: an earlier schema may lack the column."""
        forms = {}
        for pk, row in table_rows(self._cql, self.name).items():
            assert row.keys() == {"pk", "u", *self.types}
            values = {name: consumer_form(each, row[name]) for name, each in self.types.items()}
            forms[pk] = _without_nulls(values | {"u": _without_nulls(row["u"]._asdict())})
        return forms

    def found(self, topic: DataTopic) -> dict[int, dict[str, Any]]:
        """The newest record of each row, by the table's current columns."""
        forms = {}
        for pk, record in newest(topic, _STEPS).items():
            assert record.value is not None
            values = {name: sorted_sets(each, record.value.get(name)) for name, each in self.types.items()}
            forms[pk] = _without_nulls(values | {"u": _without_nulls(record.value["u"])})
        return forms


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@pytest.mark.timeout(1800)
def test_any_evolution_of_a_schema_leaves_the_newest_records_equal_to_the_table(
    cql: Session, keyspace: str, serve: Serve
) -> None:
    """Columns come and go and user types grow between writes; columns that a schema lacks are null or missing."""
    plans = drawn(_EVOLUTIONS, 6)
    tables = [Evolution(cql, keyspace, f"t{number}") for number in range(len(plans))]
    topics = serve([f"t{number}" for number in range(len(plans))], "key-value-avro")["key-value-avro"]
    for step in range(_STEPS):
        for table, plan in zip(tables, plans, strict=True):
            table.evolve(step, *plan[step])
    for table, topic, plan in zip(tables, topics, plans, strict=True):
        expected = table.expected()

        def is_equal(table: Evolution = table, topic: DataTopic = topic, expected: Any = expected) -> bool:
            topic.poll(0.1)
            return table.found(topic) == expected

        try:
            wait_until(is_equal, "the newest records are the table's rows")
        except AssertionError:
            pytest.fail(f"after {plan}: {table.found(topic)} is not {expected}")
