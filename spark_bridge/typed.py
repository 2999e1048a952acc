"""Raw rows to typed rows: Avro is decoded in the JVM by spark-avro's `from_avro`.

Every record is read with the schema version it was written with and resolved to the newest: columns that were added
later are null in earlier rows, dropped ones are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.avro.functions import from_avro

from spark_bridge.avro_columns import AvroColumns, Numbers
from spark_bridge.topic_schemas import AvroRecord, TopicSchemas

__all__ = ["RecordDecoder", "key_decoder", "typed_rows", "value_decoder"]


class RecordDecoder:
    """Decodes the keys, or the values, of one topic. Spark refuses the columns by name when spark-avro is not loaded.

    In two steps, each of which belongs in a projection of its own, so that Spark decodes a record once and not once
    for each of its columns.
    """

    def __init__(self, topic: str, schemas: Sequence[tuple[int, AvroRecord]], numbers: Numbers) -> None:
        """`schemas`: version and schema, oldest first."""
        self._topic = topic
        self._schemas = schemas
        self._columns = AvroColumns(schemas[-1][1], numbers)

    @property
    def names(self) -> list[str]:
        """The record's column names, of the newest schema."""
        return self._columns.names

    def decode(self, data: Column, version: Column) -> Column:
        """First step: Avro bytes to a struct; null for null. An unknown schema version fails the query."""
        reader = json.dumps(self._schemas[-1][1])
        writers: dict[str, list[int]] = {}
        for number, schema in self._schemas:
            writers.setdefault(json.dumps(schema), []).append(number)
        record: Column | None = None
        for writer, versions in writers.items():
            known, struct = version.isin(versions), _from_avro(data, writer, reader)
            record = F.when(known, struct) if record is None else record.when(known, struct)
        assert record is not None
        return record.otherwise(F.raise_error(self._unknown_version(version)))

    def finish(self, record: Column) -> Column:
        """Second step: numbers in their final types."""
        return self._columns.converted(record)

    def _unknown_version(self, version: Column) -> Column:
        known = ", ".join(str(number) for number, _ in self._schemas)
        return F.concat(
            F.lit(f"topic {self._topic}: a record has schema version "),
            version.cast("string"),
            F.lit(
                f", which this query does not know (it knows {known}); start it again to see the table's new columns"
            ),
        )


def key_decoder(schemas: TopicSchemas, numbers: Numbers) -> RecordDecoder:
    """For keys: the columns of the primary key."""
    newest = schemas.newest.key
    # A renamed key column changes no byte, but Avro would look for it by its name.
    keys = [(each.version, newest if _types(each.key) == _types(newest) else each.key) for each in schemas.versions]
    return RecordDecoder(schemas.topic, keys, numbers)


def value_decoder(schemas: TopicSchemas, numbers: Numbers) -> RecordDecoder:
    """For values: regular columns by name, then static columns by name."""
    return RecordDecoder(schemas.topic, [(each.version, each.value) for each in schemas.versions], numbers)


def typed_rows(raw: DataFrame, schemas: TopicSchemas, numbers: Numbers) -> DataFrame:
    """The raw contract with `key` as a struct of the primary key and `value` as a struct of the other columns.

    A deleted row has a null `value`.
    """
    key, value = key_decoder(schemas, numbers), value_decoder(schemas, numbers)
    version = F.col("schema_version")
    structs = raw.withColumns(
        {"key": key.decode(F.col("key"), version), "value": value.decode(F.col("value"), version)}
    )
    return structs.withColumns({"key": key.finish(F.col("key")), "value": value.finish(F.col("value"))})


def _from_avro(data: Column, writer: str, reader: str) -> Column:
    options = {"mode": "FAILFAST"}
    return from_avro(data, writer, options if writer == reader else {**options, "avroSchema": reader})


def _types(record: AvroRecord) -> list[str]:
    fields = record["fields"]
    assert isinstance(fields, list)
    return [json.dumps(each["type"], sort_keys=True) for each in fields]
