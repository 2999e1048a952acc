"""How a mirror's tables follow the topic's schema, on tables in memory that refuse the same statements as Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Final, cast

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, DecimalType, IntegerType, StringType, StructType

from schemas.errors import ConfigError
from spark_bridge.jobs.batch_content import NO_CONTENT
from spark_bridge.jobs.epoch_plan import EpochPlan
from spark_bridge.jobs.history_table import refuse_own_columns
from spark_bridge.jobs.lake_table import LakeTable
from spark_bridge.jobs.mirror_schema import follow_schema, refuse_other_types
from spark_bridge.jobs.mirror_state import Applied, BegunEpoch, MirrorTables, applied_from_state
from spark_bridge.topics.topic_schemas import SchemaVersion, TopicSchemas

_OWN: Final = ["_cdc_id", "_cdc_owner", "_cdc_writetime", "_cdc_expires_at"]


class Table:
    """A table of only columns; without columns it does not exist. `fails_at`: the statement at which the run ends."""

    path = "/lake/t/history"

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
class Log:
    """The epochs of a change log; None: there is no change log."""

    epochs: Sequence[int] | None = None

    def read(self) -> Log | None:
        return None if self.epochs is None else self

    def where(self, condition: str) -> Log:
        assert self.epochs is not None
        return Log([each for each in self.epochs if f"epoch = {each}" == condition])

    def isEmpty(self) -> bool:  # noqa: N802  (PySpark's name)
        return not self.epochs


@dataclass
class Tables:
    """The tables of a mirror, with the saved states."""

    rows: Table
    history: Table = field(default_factory=Table)
    changes: Log = field(default_factory=Log)
    saved: list[Applied] = field(default_factory=list)

    def save_applied(self, applied: Applied) -> None:
        self.saved.append(applied_from_state(json.dumps(asdict(applied))))

    def follow(self, applied: Applied, schemas: TopicSchemas) -> Applied:
        plan = EpochPlan(schemas, applied, NO_CONTENT, False, 0)
        return follow_schema(cast(MirrorTables, self), plan)


def topic(*versions: tuple[str, str]) -> TopicSchemas:
    """A topic's schemas, from names of key columns and of others; the first key column is the partition key."""

    def record(kind: str, names: str, *, bare: int) -> Mapping[str, object]:
        """A record type; the partition key's columns have bare types."""
        types = [["null", "string"] if at >= bare else "string" for at in range(len(names.split()))]
        fields = [{"name": name, "type": each} for name, each in zip(names.split(), types, strict=True)]
        return {"type": "record", "name": kind, "namespace": "ks", "fields": fields}

    found = [
        SchemaVersion(version=at, key=record("k", key, bare=1), value=record("v", value, bare=0))
        for at, (key, value) in enumerate(versions)
    ]
    return TopicSchemas(topic="t", versions=tuple(found))


def test_a_column_that_was_dropped_is_noted_with_the_last_epoch_that_has_its_values() -> None:
    """It is noted before the drop, because nothing shows it later. This also holds if its name is added again in the
    same micro-batch."""
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


@pytest.mark.parametrize(
    ("log", "until"), [(Log([6, 7]), 7), (Log([6, 7, 8, 8]), 8)], ids=["before the log", "behind it"]
)
def test_what_a_run_that_failed_has_written_to_the_change_log_is_old_too(log: Log, until: int) -> None:
    """No run repeats that epoch there, and its changes have the column's values from before the drop."""
    tables = Tables(Table("id", "a", "c"), changes=log)
    known = Applied(epoch=7, schema_version=0, begun=BegunEpoch({"t-partition-0": (1, 5, -1)}))
    followed = tables.follow(known, topic(("id", "a c"), ("id", "a"), ("id", "a c")))
    assert followed.gone_until == tables.saved[0].gone_until == {"c": until}


def test_a_column_that_comes_back_later_is_noted_as_of_its_drop() -> None:
    """The micro-batch of the ADD finds no difference: its values are new, and the values before the drop stay old."""
    tables = Tables(Table("id", "a", "c"))
    dropped = tables.follow(Applied(epoch=7, schema_version=0), topic(("id", "a c"), ("id", "a")))
    later = Applied(epoch=9, schema_version=1, gone_until=dropped.gone_until)
    assert tables.follow(later, topic(("id", "a c"), ("id", "a"), ("id", "a c"))).gone_until == {"c": 7}
    assert len(tables.saved) == 1


@pytest.mark.parametrize(
    ("before", "after", "done"),
    [
        (("id at", "a"), ("key at", "a"), ["id to key"]),
        (("id at", "a"), ("Id at", "a"), ["id to _cdc_renamed_0", "_cdc_renamed_0 to Id"]),
        (("a b", "x"), ("b c", "x"), ["b to _cdc_renamed_1", "a to b", "_cdc_renamed_1 to c"]),
        (
            ("a b", "x"),
            ("b a", "x"),
            [
                "a to _cdc_renamed_0",
                "b to _cdc_renamed_1",
                "_cdc_renamed_0 to b",
                "_cdc_renamed_1 to a",
            ],
        ),
        (("a", "v w"), ("v", "w"), ["drop v", "a to v"]),
        (("a", "v w"), ("V", "w"), ["drop v", "a to V"]),
        (("a", "v w"), ("v", "w a"), ["drop v", "a to v"]),
    ],
    ids=[
        "renamed",
        "in other letters",
        "one to the name of another",
        "exchanged",
        "to that of a dropped column",
        "to that in other letters",
        "and its own name is another's",
    ],
)
def test_names_that_collide_end_no_run(before: tuple[str, str], after: tuple[str, str], done: list[str]) -> None:
    """This also holds if a run ended at any statement and the next run does the rest."""
    columns, schemas = " ".join(before).split(), topic(before, after)
    wanted = [*after[0].split(), *[each for each in after[1].split() if each in before[1].split()], *_OWN]
    tables = Tables(Table(*columns), Table(*columns))
    tables.follow(Applied(epoch=7, schema_version=0), schemas)
    assert tables.rows.done == tables.history.done == done
    assert tables.rows.columns == tables.history.columns == wanted
    for statement in done:
        stopped = Tables(Table(*columns))
        stopped.rows.fails_at = statement
        with pytest.raises(OSError, match="stopped"):
            stopped.follow(Applied(epoch=7, schema_version=0), schemas)
        stopped.rows.fails_at = None
        stopped.follow(stopped.saved[-1] if stopped.saved else Applied(epoch=7, schema_version=0), schemas)
        assert stopped.rows.columns == wanted


@pytest.mark.parametrize(
    ("keys", "noted"),
    [
        (("a b", "b a"), {"b": 7, "a": 7}),
        (("a b", "b c"), {"b": 7}),
        (("a b", "a c", "b c"), {"b": 7}),
        (("a b", "B c"), {"B": 7}),
        (("a b", "key b"), {}),
        (("a b", "A b"), {}),
        (("a b", "c b", "a b"), {}),
    ],
    ids=[
        "exchanged",
        "the next one's",
        "that it had before",
        "in other letters",
        "a new one",
        "its own",
        "its own again",
    ],
)
def test_a_key_column_that_gets_a_name_of_another_one_is_noted(keys: Sequence[str], noted: Mapping[str, int]) -> None:
    """The change log has values of the other one there. A run that ended at any of the statements has noted it before."""
    schemas = topic(*[(each, "x") for each in keys])
    begun = Applied(epoch=7, schema_version=0)
    columns = [*keys[-2].split(), "x"]
    tables = Tables(Table(*columns))
    assert tables.follow(begun, schemas).gone_until == noted
    for statement in tables.rows.done:
        stopped = Tables(Table(*columns))
        stopped.rows.fails_at = statement
        with pytest.raises(OSError, match="stopped"):
            stopped.follow(begun, schemas)
        stopped.rows.fails_at = None
        assert stopped.follow(stopped.saved[-1] if stopped.saved else begun, schemas).gone_until == noted


def test_a_column_of_the_historys_own_name_says_how_to_go_on() -> None:
    """A mirror continues an existing history, so the history must be deleted first."""
    added = r"history: the table has columns that a history adds itself \(Closed\): "
    with pytest.raises(ConfigError, match=added + "keep a change log instead"):
        refuse_own_columns(cast(LakeTable, Table()), ["id", "Closed"])
    with pytest.raises(ConfigError, match=added + "delete /lake/t/history, and keep a change log instead"):
        refuse_own_columns(cast(LakeTable, Table("id")), ["id", "Closed"])
    refuse_own_columns(cast(LakeTable, Table("id")), ["id", "closing"])


class Changes:
    """The columns of a change log or of steps, and the session's case sensitivity."""

    path = "/lake/t/changes"

    def __init__(self, column: str, kind: DataType, *, is_exact: bool = False) -> None:
        self.schema = {"after": SimpleNamespace(dataType=StructType().add("id", StringType()).add(column, kind))}
        self.sparkSession = SimpleNamespace(conf={"spark.sql.caseSensitive": str(is_exact).lower()})

    def read(self) -> Changes:
        return self


def refuse(log: Changes, column: str, kind: DataType, *gone: str) -> None:
    refuse_other_types(cast(LakeTable, log), cast(DataFrame, Changes(column, kind)), gone)


@pytest.mark.parametrize("name", ["v", "V"])
def test_a_name_that_comes_back_with_another_type_says_how_to_go_on(name: str) -> None:
    """The change log keeps the dropped column, and Spark ignores the case of names by default."""
    with pytest.raises(ConfigError) as refused:
        refuse(Changes("v", StringType()), name, IntegerType(), "v")
    assert str(refused.value) == (
        f"target: the change log /lake/t/changes has column {name} as STRING, from before a column of this name was dropped "
        "or renamed, and the table has it as INT now: mirror the topic into a new target"
    )
    with pytest.raises(ConfigError, match=r"as DECIMAL\(38,18\).* as DECIMAL\(38,0\) now"):
        refuse(Changes("v", DecimalType(38, 18)), name, DecimalType(38, 0), name)
    refuse(Changes("v", StringType()), name, StringType(), "v")
    refuse(Changes("v", StringType()), name, IntegerType(), "w")
    refuse(Changes("v", ArrayType(StructType())), name, ArrayType(StructType().add("new", StringType())), "v")
    if name == "V":
        refuse(Changes("v", StringType(), is_exact=True), name, IntegerType(), "v")
