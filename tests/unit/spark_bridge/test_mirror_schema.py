"""How a mirror's tables follow the topic's schema, on tables in memory that refuse what Spark refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, cast

import pytest

from spark_bridge.jobs.batch_content import NO_CONTENT
from spark_bridge.jobs.epoch_plan import EpochPlan
from spark_bridge.jobs.mirror_schema import follow_schema
from spark_bridge.jobs.mirror_state import Applied, MirrorTables, applied_from_state
from spark_bridge.topics.topic_schemas import SchemaVersion, TopicSchemas

_OWN: Final = ["_cdc_id", "_cdc_owner", "_cdc_writetime", "_cdc_expires_at"]


class Table:
    """Columns only; without any it does not exist. `fails_at`: the statement at which the run ends."""

    def __init__(self, *columns: str) -> None:
        self.columns = [*columns, *_OWN] if columns else []
        self.done: list[str] = []
        self.fails_at: str | None = None

    def read(self) -> Table | None:
        return self if self.columns else None

    def drop_columns(self, names: Sequence[str]) -> None:
        self._do(*[f"drop {each}" for each in names])
        assert set(names) <= set(self.columns)
        self.columns = [each for each in self.columns if each not in names]

    def rename_column(self, old: str, new: str) -> None:
        self._do(f"{old} to {new}")
        assert old in self.columns
        assert new.lower() not in [each.lower() for each in self.columns], f"FIELD_ALREADY_EXISTS: {new}"
        self.columns[self.columns.index(old)] = new

    def _do(self, *statements: str) -> None:
        if self.fails_at in statements:
            raise OSError("stopped")
        self.done += statements


@dataclass
class Tables:
    """A mirror's, with the states that were saved."""

    rows: Table
    history: Table = field(default_factory=Table)
    saved: list[Applied] = field(default_factory=list)

    def save_applied(self, applied: Applied) -> None:
        self.saved.append(applied_from_state(json.dumps(asdict(applied))))

    def follow(self, applied: Applied, schemas: TopicSchemas) -> Applied:
        plan = EpochPlan(schemas, applied, NO_CONTENT, False, 0)
        return follow_schema(cast(MirrorTables, self), plan)


def topic(*versions: tuple[str, str]) -> TopicSchemas:
    """Names of the key's and of the other columns; the partition key is the first."""

    def record(kind: str, names: str, *, bare: int) -> Mapping[str, object]:
        """The columns of the partition key are bare types."""
        types = [["null", "string"] if at >= bare else "string" for at in range(len(names.split()))]
        fields = [{"name": name, "type": each} for name, each in zip(names.split(), types, strict=True)]
        return {"type": "record", "name": kind, "fields": fields}

    found = [
        SchemaVersion(version=at, key=record("k", key, bare=1), value=record("v", value, bare=0))
        for at, (key, value) in enumerate(versions)
    ]
    return TopicSchemas(topic="t", versions=tuple(found))


def test_a_column_that_was_dropped_is_noted_with_the_last_epoch_that_has_its_values() -> None:
    """Before it is dropped, since nothing shows it later; also where its name is added again in the same micro-batch."""
    schemas = topic(("id", "a b c"), ("id", "a"), ("id", "a c"))
    tables = Tables(Table("id", "a", "b", "c"), Table("id", "a", "b", "c"))
    known = Applied(epoch=7, schema_version=0, gone_until={"b": 2, "z": 3})
    tables.rows.fails_at = "drop b"
    with pytest.raises(OSError, match="stopped"):
        tables.follow(known, schemas)
    assert tables.saved[-1].gone_until == {"b": 7, "c": 7, "z": 3}
    assert tables.saved[-1].schema_version == 0, "the columns are there still"
    tables.rows.fails_at = None
    followed = tables.follow(tables.saved[-1], schemas)
    assert followed == tables.saved[-1]
    assert (followed.gone_until, followed.schema_version) == ({"b": 7, "c": 7, "z": 3}, 2)
    assert tables.rows.columns == tables.history.columns == ["id", "a", *_OWN]


def test_a_column_that_comes_back_later_is_noted_as_of_its_drop() -> None:
    """The micro-batch of the ADD finds no difference: its values are new, and those before the drop are old for good."""
    tables = Tables(Table("id", "a", "c"))
    dropped = tables.follow(Applied(epoch=7, schema_version=0), topic(("id", "a c"), ("id", "a")))
    later = Applied(epoch=9, schema_version=1, gone_until=dropped.gone_until)
    assert tables.follow(later, topic(("id", "a c"), ("id", "a"), ("id", "a c"))).gone_until == {"c": 7}
    assert len(tables.saved) == 1
