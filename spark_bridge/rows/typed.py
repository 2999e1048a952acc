"""Raw rows to typed rows: Avro is decoded in the JVM by spark-avro's `from_avro`.

Every record is read with the schema version with which it was written, and resolved to the newest version: columns
that were added later are null in earlier rows, and dropped columns are left out. If a column was dropped and added
again, both rules hold: its earlier values are left out, and it is null in these rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.avro.functions import from_avro

from spark_bridge.rows.avro_columns import AvroColumns, Numbers
from spark_bridge.rows.avro_types import named_records
from spark_bridge.rows.unfit_times import MOST_MS, has_times, unfit_times
from spark_bridge.rows.user_types import with_newest_fields, with_newest_key
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import topic_of
from spark_bridge.topics.topic_schemas import AvroRecord, TopicSchemas

__all__ = [
    "RecordDecoder",
    "is_corrupt",
    "key_decoder",
    "typed_rows",
    "value_decoder",
    "with_numbers",
    "with_times_as_numbers",
]

_DECODED: Final = "__cdc_decoded"
_DATA: Final = "__cdc_data"
_AS_WRITTEN: Final = {"datetimeRebaseMode": "CORRECTED"}
"""Dates before 1582 stay as they are. The session's setting, which is about files of Spark 2, does not apply."""


class RecordDecoder:
    """Decodes the keys, or the values, of one topic. Spark's error says so when spark-avro is not loaded.

    The steps are `decode` and `finish`, or `try_decode`, `checked` (or `kept`) and `finish`. Each step belongs in a
    separate projection, so that Spark decodes a record once, and not once for each of its columns.
    """

    def __init__(self, topic: str, schemas: Sequence[tuple[int, AvroRecord]], numbers: Numbers) -> None:
        """`schemas`: version and schema, oldest first."""
        self._topic = topic
        self._schemas = [(version, with_times_as_numbers(schema)) for version, schema in schemas]
        self._columns = AvroColumns(self._schemas[-1][1], numbers)

    @property
    def names(self) -> list[str]:
        """Column names of the newest schema."""
        return self._columns.names

    def decode(self, data: Column, version: Column) -> Column:
        """First step: Avro bytes to a struct; null for null. An unknown schema version fails the query."""
        reader = json.dumps(self._schemas[-1][1])
        return self._by_writer(self._schemas, version, lambda writer: _from_avro(data, writer, reader))

    def try_decode(self, data: Column, version: Column) -> Column:
        """As `decode`, but bytes that cannot be decoded give a struct of nulls, which `is_corrupt` recognizes."""
        return self._tried(self._schemas, data, version)

    @property
    def has_numbers(self) -> bool:
        """True if `finish` changes a record."""
        return self._columns.has_numbers

    def finish(self, record: Column) -> Column:
        """Last step: numbers in their final types."""
        return self._columns.converted(record)

    def checked(self, record: Column, data: Column, what: str, place: Column, version: Column) -> Column:
        """Step between `try_decode` of `data` and `finish`: undecodable bytes fail the query, with their `place`."""
        return F.when(is_corrupt(record), F.raise_error(self.complaint(data, what, place, version))).otherwise(
            record.dropFields(_DECODED)
        )

    def kept(self, record: Column) -> Column:
        """Step between `try_decode` and `finish`: null for bytes that could not be decoded."""
        return F.when(~is_corrupt(record), record.dropFields(_DECODED))

    def complaint(self, data: Column, what: str, place: Column, version: Column) -> Column:
        """The error's text: why `data` could not be decoded."""
        message = F.concat(F.lit(f"topic {self._topic}: the {what} of message "), place)
        advice = F.lit(
            "; typed rows go on without it, and show it in the column _corrupt, with the option corruptRows=keep"
        )
        undecodable = F.concat(
            message, F.lit(" cannot be decoded by its schema version "), version.cast("string"), advice
        )
        if not has_times(self._schemas[-1][1], named_records(self._schemas[-1][1])):
            return undecodable
        as_numbers = [(number, _as_numbers(schema, "timestamp-millis")) for number, schema in self._schemas]
        unfit = unfit_times(self._tried(as_numbers, data, version), self._schemas[-1][1])
        limit = F.lit(
            f" has timestamps that do not fit Spark's TIMESTAMP (at most {MOST_MS} milliseconds before and after 1970): "
        )
        remedy = F.lit("; correct the row in Cassandra, and for a mirror see docs/spark.md, Timestamps that do not fit")
        return F.coalesce(F.concat(message, limit, unfit, remedy, advice), undecodable)

    def _tried(self, schemas: Sequence[tuple[int, AvroRecord]], data: Column, version: Column) -> Column:
        newest = schemas[-1][1]
        fields = newest["fields"]
        assert isinstance(fields, list)
        # No writer has this field, so it has its default in every record that could be decoded.
        marked = json.dumps({**newest, "fields": [*fields, {"name": _DECODED, "type": "boolean", "default": True}]})
        return self._by_writer(
            schemas,
            version,
            lambda writer: from_avro(data, writer, {**_AS_WRITTEN, "mode": "PERMISSIVE", "avroSchema": marked}),
        )

    def _by_writer(
        self, schemas: Sequence[tuple[int, AvroRecord]], version: Column, decoded: Callable[[str], Column]
    ) -> Column:
        writers: dict[str, list[int]] = {}
        for number, schema in schemas:
            writers.setdefault(json.dumps(schema), []).append(number)
        record: Column | None = None
        for writer, versions in writers.items():
            known, struct = version.isin(versions), decoded(writer)
            record = F.when(known, struct) if record is None else record.when(known, struct)
        assert record is not None
        return record.otherwise(F.raise_error(self._unknown_version(version)))

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
    """Decoder of keys: the columns of the primary key."""
    newest = schemas.newest.key
    # A renamed key column does not change the bytes, but Avro would search for the new name.
    keys = [
        (each.version, newest if _types(each.key) == _types(newest) else with_newest_key(each.key, newest))
        for each in schemas.versions
    ]
    return RecordDecoder(schemas.topic, keys, numbers)


def value_decoder(schemas: TopicSchemas, numbers: Numbers) -> RecordDecoder:
    """Decoder of values: regular columns by name, then static columns by name."""
    newest = schemas.newest.value
    values = [
        (each.version, with_newest_fields(_without(each.value, schemas.dropped_since(each.version)), newest))
        for each in schemas.versions
    ]
    return RecordDecoder(schemas.topic, values, numbers)


def with_numbers(rows: DataFrame, decoders: Mapping[str, RecordDecoder]) -> DataFrame:
    """The last step of these decoders, each for the column of its name. It is left out where it changes nothing."""
    changed = {name: each.finish(F.col(name)) for name, each in decoders.items() if each.has_numbers}
    return rows.withColumns(changed) if changed else rows


def is_corrupt(record: Column) -> Column:
    """True for a record that `RecordDecoder.try_decode` could not decode."""
    return record.isNotNull() & record.getField(_DECODED).isNull()


def typed_rows(raw: DataFrame, schemas: TopicSchemas, options: BridgeOptions) -> DataFrame:
    """The raw rows with `key` as a struct of the primary key, and `value` as a struct of the other columns.

    A deleted row has a null `value`. With `corruptRows=keep` there is one more column, `_corrupt`: why a record could
    not be decoded, with its bytes. Otherwise such a record fails the query, and the error names its message id. A row of
    another topic fails the query, too, if the raw rows still have the column `topic`.
    """
    key, value = key_decoder(schemas, options.numbers), value_decoder(schemas, options.numbers)
    version, place = F.col("schema_version"), F.col("message_id")
    own = _own_version(schemas.topic) if "topic" in raw.columns else version
    tried = {"key": key.try_decode(F.col("key"), own), "value": value.try_decode(F.col("value"), own)}
    if options.corrupt_rows == "fail":
        data = F.struct(F.col("key"), F.col("value"))
        checked = (
            raw.withColumns({**tried, _DATA: data})
            .withColumns(
                {
                    "key": key.checked(F.col("key"), F.col(_DATA).getField("key"), "key", place, version),
                    "value": value.checked(F.col("value"), F.col(_DATA).getField("value"), "value", place, version),
                }
            )
            .drop(_DATA)
        )
    else:
        bytes_kept = raw.withColumns({**tried, "_corrupt": F.struct(F.col("key"), F.col("value"))})
        data = F.col("_corrupt")
        reason = F.when(is_corrupt(F.col("key")), key.complaint(data.getField("key"), "key", place, version)).when(
            is_corrupt(F.col("value")), value.complaint(data.getField("value"), "value", place, version)
        )
        corrupt = F.struct(reason.alias("reason"), F.col("_corrupt.key"), F.col("_corrupt.value"))
        checked = bytes_kept.withColumns(
            {
                "key": key.kept(F.col("key")),
                "value": value.kept(F.col("value")),
                "_corrupt": F.when(reason.isNotNull(), corrupt),
            }
        )
    return with_numbers(checked, {"key": key, "value": value})


def _own_version(topic: str) -> Column:
    """The schema version of a raw row; an error for a row of another topic.

    Versions are numbers of a topic, and Avro's bytes do not name their schema. So a row of another table might be
    decoded to wrong values.
    """
    is_own = F.col("topic").isin(topic, topic_of(topic)[0])
    wrong = F.concat(
        F.lit(f"topic {topic}: a row comes from topic "),
        F.col("topic"),
        F.lit(", which has other columns; give typed() the options of that topic, and only rows of one topic"),
    )
    return F.when(is_own, F.col("schema_version")).otherwise(F.raise_error(wrong))


def _from_avro(data: Column, writer: str, reader: str) -> Column:
    options = {**_AS_WRITTEN, "mode": "FAILFAST"}
    return from_avro(data, writer, options if writer == reader else {**options, "avroSchema": reader})


def with_times_as_numbers(record: AvroRecord) -> AvroRecord:
    """The schema with `time-micros` as long, as in mirrors.

    PySpark 4.2 would read it as its type TIME, which it then does not support.
    """
    return _as_numbers(record, "time-micros")


def _as_numbers(record: AvroRecord, logical: str) -> AvroRecord:
    """The schema with a logical type replaced by long, which is its encoding."""

    def plain(each: dict[str, object]) -> dict[str, object]:
        return {"type": "long"} if each.get("logicalType") == logical else each

    found: AvroRecord = json.loads(json.dumps(record), object_hook=plain)
    return found


def _without(record: AvroRecord, names: frozenset[str]) -> AvroRecord:
    """A writer's schema in which these fields have names that no reader has: they are read, and then left out."""
    fields = record["fields"]
    assert isinstance(fields, list)
    kept = [
        {**each, "name": f"__cdc_dropped_{at}"} if each["name"] in names else each for at, each in enumerate(fields)
    ]
    return {**record, "fields": kept}


def _types(record: AvroRecord) -> list[str]:
    fields = record["fields"]
    assert isinstance(fields, list)
    return [json.dumps(each["type"], sort_keys=True) for each in fields]
