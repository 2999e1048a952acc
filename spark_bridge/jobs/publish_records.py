"""Makes the records to publish from rows of a mirror's change log: partition, order, key and value in Avro.

part INT             the topic's partition, by the key; it never changes
epoch, step, id      the order within the partition: that of the change log, and by `_cdc_id` within a step
key, value BINARY    as in the data topic; a null value: there is no such row
writetime BIGINT     microseconds
op STRING            c, u, d or r
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from spark_bridge.jobs.log_columns import KeyField, LogColumns
from spark_bridge.jobs.mirror_rows import newest_type
from spark_bridge.jobs.publish_envelope import ORIGIN_FIELDS, SOURCE_FIELDS, envelope_schema
from spark_bridge.rows.avro_encoding import AvroEncoder
from spark_bridge.rows.conformed import struct_type
from spark_bridge.rows.folding import key_forms
from spark_bridge.rows.key_columns import KeyColumns
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["ChangeRecords", "key_partition"]

_OPS: Final = {"insert": "c", "update": "u", "delete": "d"}
_LONG, _TEXT = LongType(), StringType()


@dataclass(frozen=True, slots=True)
class ChangeRecords:
    """Makes the records for the topics of one table. Argument `changes`: rows of the change log, with `source`.

    Two more columns: `is_there` is true for an existing row that is not a change; `log_epoch` is the epoch in the change
    log, which is earlier than `epoch` for such a row.
    """

    names: LogColumns
    partitions: int

    @property
    def schemas(self) -> TopicSchemas:
        return self.names.schemas

    def rows(self, changes: DataFrame) -> DataFrame:
        """Records for `rows-<keyspace>.<table>`: each changed row as it is at the end of each epoch."""
        newest = Window.partitionBy("epoch", "_cdc_id").orderBy(F.col("step").desc())
        last = changes.withColumn("at", F.row_number().over(newest)).where("at = 1")
        encoder = AvroEncoder(self.schemas.newest.value)
        columns = self._columns(_struct(last, "after"), "after")
        value = F.when(F.col("after").isNotNull(), encoder.encode(encoder.record(columns)))
        return self._records(last, value)

    def changes(self, changes: DataFrame) -> DataFrame:
        """Records for `changes-<keyspace>.<table>`: every change, in an envelope."""
        encoder = AvroEncoder(envelope_schema(self.schemas.newest))
        value = encoder.record(
            {
                "before": self._image(_struct(changes, "before"), "before"),
                "after": self._image(_struct(changes, "after"), "after"),
                "source": self._source(),
                "op": (_op(), _TEXT),
                "ts_ms": (F.unix_millis(F.current_timestamp()), _LONG),
            }
        )
        return self._records(changes, encoder.encode(value))

    def _records(self, changes: DataFrame, value: Column) -> DataFrame:
        key = self._key(changes)
        keyed = changes.select(
            "epoch",
            "step",
            F.col("_cdc_id").alias("id"),
            key.alias("key"),
            value.alias("value"),
            "writetime",
            _op().alias("op"),
        )
        return keyed.withColumn("part", key_partition(self.partitions))

    def _key(self, changes: DataFrame) -> Column:
        """The key of the record, from the row's identity in the mirror.

        For a partition that has only static columns: its key with null clustering columns. If a user type in the key
        has got more fields, identities have the forms of several versions, and the record has the newest one.
        """
        image = _struct(changes, "after")
        encoder = AvroEncoder(self.schemas.newest.key)
        old, new = self._keys(_struct(changes, "before"), "before"), self._keys(image, "after")
        columns = {name: (F.coalesce(each, old[name][0]), kind) for name, (each, kind) in new.items()}
        of_partition = {name: columns[name] for name in KeyColumns.of(self.schemas).partition}
        is_static = F.col("_cdc_id").startswith("static:")
        differ = key_forms(self.schemas).differ
        of_row = encoder.encode(encoder.record(columns)) if differ else F.unhex("_cdc_id")
        return F.when(is_static, encoder.encode(encoder.record(of_partition))).otherwise(of_row)

    def _keys(self, image: StructType, name: str) -> dict[str, tuple[Column, DataType]]:
        """Key columns by their newest names. The change log has values under an earlier name in a separate column."""
        kinds = {each.name: each.dataType for each in image}
        return {
            newest: self._in_newest_type(
                newest,
                F.coalesce(*[_within(F.col(name).getField(each.name), each) for each in fields]),
                kinds[fields[0].name],
            )
            for newest, fields in self.names.of_key(kinds).items()
            if fields
        }

    def _columns(self, image: StructType, name: str) -> dict[str, tuple[Column, DataType]]:
        """The columns of an image by their newest names, including those of the key."""
        names = self.names.newest_names(image.names)
        columns = {
            new: self._in_newest_type(new, F.col(name).getField(each.name), each.dataType)
            for each in image
            for new in [names[each.name]]
        }
        return columns | self._keys(image, name)

    def _in_newest_type(self, name: str, column: Column, kind: DataType) -> tuple[Column, DataType]:
        """The column with the newest names of the fields of its user types, which the mirror may not follow yet."""
        wanted = newest_type(name, kind, self.schemas)
        # A cast matches fields by position.
        return (column if wanted.simpleString() == kind.simpleString() else column.cast(wanted)), wanted

    def _image(self, image: StructType, name: str) -> tuple[Column, DataType]:
        columns = self._columns(image, name)
        made = F.struct(*[column.alias(each) for each, (column, _) in columns.items()])
        kind = StructType([StructField(each, found) for each, (_, found) in columns.items()])
        return F.when(F.col(name).isNotNull(), made), kind

    def _source(self) -> tuple[Column, DataType]:
        schema = self.schemas.newest.value
        is_no_change_of_now = F.col("is_there") | F.coalesce("source.snapshot", F.lit(False))
        values = {
            "connector": F.lit("cassandra-cdc"),
            "name": F.lit(self.schemas.topic),
            "keyspace_name": F.lit(schema["namespace"]),
            "table_name": F.lit(schema["name"]),
            "snapshot": F.when(is_no_change_of_now, "true").otherwise("false"),
            "ts_ms": F.expr("writetime div 1000"),
            "ts_us": F.col("writetime"),
            "epoch": F.col("epoch"),
            "step": F.col("step").cast("bigint"),
            "node": F.col("source.node"),
            "segment": F.col("source.segment"),
            "pos": F.col("source.position"),
            "table_id": F.col("source.table_id"),
        }
        types: dict[str, DataType] = {"string": _TEXT, "long": _LONG}
        fields = {**SOURCE_FIELDS, **ORIGIN_FIELDS}
        kind = StructType([StructField(name, types[each]) for name, each in fields.items()])
        return F.struct(*[values[name].alias(name) for name in fields]), kind


def key_partition(partitions: int) -> Column:
    """The partition for `key`, by a hash that is the same in all versions of Spark and Python."""
    return F.pmod(F.crc32("key"), F.lit(partitions)).cast(IntegerType())


def _within(column: Column, field: KeyField) -> Column:
    """The column, with null for changes of epochs in which the field has no value of this key column."""
    if field.since is not None:
        column = F.when(F.col("log_epoch") > field.since, column)
    return column if field.until is None else F.when(F.col("log_epoch") <= field.until, column)


def _op() -> Column:
    known = F.create_map(*[F.lit(each) for pair in _OPS.items() for each in pair])
    return F.when(F.col("is_there"), "r").otherwise(known[F.col("op")])


def _struct(changes: DataFrame, name: str) -> StructType:
    """The type of an image, without the columns that the mirror adds."""
    return StructType([each for each in struct_type(changes, name) if not each.name.startswith("_cdc_")])
