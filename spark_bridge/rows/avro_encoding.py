"""From Spark columns back to the data topic's Avro: the reverse of `spark_bridge.rows.avro_columns`.

spark-avro's `to_avro` encodes in the JVM, by the schema of the data topic. Types that it does not know are converted
first: a varint becomes its bytes, a decimal the struct of bytes and scale. A table whose numbers are texts
(`numbers=string`) gives the same number with the same scale. A table whose decimals are DECIMAL(38, 18) gives the scale
that the digits need.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from schemas.long_numbers import integer_of
from spark_bridge.rows.avro_types import AvroType, Converter, bare_type, field_types, named_records, nullable, same
from spark_bridge.rows.typed import with_times_as_numbers
from spark_bridge.topics.topic_schemas import AvroRecord

__all__ = ["AvroEncoder", "field_types"]

_SCALE: Final = 18  # of the mirror's decimals
_NUMBER: Final = StructType([StructField("bigint", BinaryType()), StructField("scale", IntegerType())])


def _integer_schema(scale: int) -> str:
    return json.dumps({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": scale})


class AvroEncoder:
    """Encodes structs of columns by one record schema."""

    def __init__(self, schema: AvroRecord) -> None:
        self._schema = schema
        self._text = json.dumps(with_times_as_numbers(schema))
        self._named = named_records(schema)

    def encode(self, record: Column) -> Column:
        """Avro bytes of a struct that `self.record` returned; null for null."""
        return to_avro(record, self._text)

    def record(self, columns: Mapping[str, tuple[Column, DataType]]) -> Column:
        """The struct to encode, from columns by name with their types.

        A field without a column is null in every record.
        """
        fields = [
            self._formed(*columns[name], avro_type).alias(name)
            for name, avro_type in field_types(self._schema)
            if name in columns
        ]
        return F.struct(*fields)

    def _formed(self, column: Column, found: DataType, avro_type: AvroType) -> Column:
        bare = bare_type(avro_type, self._named)
        if not self._is_other(found, bare):
            return column
        if self._has_text_number(found, bare):
            converter, kind = self._from_text(found, bare)
            column = F.udf(converter, kind, useArrow=True)(column)
            return self._formed(column, kind, bare)
        match found, bare:
            case DecimalType(), {"logicalType": "cql_varint"}:
                return _unscaled(column)
            case DecimalType(), {"logicalType": "cql_decimal"}:
                return _number(column)
            case ArrayType(elementType=inner), {"items": items}:
                return F.transform(column, lambda each: self._formed(each, inner, items))
            case MapType(valueType=inner), {"values": values}:
                return F.transform_values(column, lambda _, each: self._formed(each, inner, values))
            case StructType(), {"type": "record"} as record:
                kinds = {each.name: each.dataType for each in found}
                fields = [
                    self._formed(column.getField(name), kinds[name], each).alias(name)
                    for name, each in field_types(record)
                    if name in kinds
                ]
                return F.when(column.isNotNull(), F.struct(*fields))
            case _:
                return column

    def _is_other(self, found: DataType, avro_type: AvroType) -> bool:
        """Return True if the column must be converted before `to_avro`."""
        return any(
            bare is None or (isinstance(kind, DecimalType | StringType) and _is_number(bare))
            for kind, bare in self._leaves(found, avro_type)
        )

    def _has_text_number(self, found: DataType, avro_type: AvroType) -> bool:
        return any(isinstance(kind, StringType) and _is_number(bare) for kind, bare in self._leaves(found, avro_type))

    def _leaves(self, found: DataType, avro_type: AvroType) -> Iterator[tuple[DataType, AvroType]]:
        """The innermost types within a type, each with its Avro type; None for a field that Avro does not have."""
        match found, bare_type(avro_type, self._named):
            case ArrayType(elementType=inner), {"items": items}:
                yield from self._leaves(inner, items)
            case MapType(valueType=inner), {"values": values}:
                yield from self._leaves(inner, values)
            case StructType(), {"type": "record"} as record:
                types = dict(field_types(record))
                for each in found:
                    yield from self._leaves(each.dataType, types.get(each.name))
            case _, bare:
                yield found, bare

    def _from_text(self, found: DataType, avro_type: AvroType) -> tuple[Converter, DataType]:
        """A function that converts the argument of a Python UDF to Avro's form of numbers, and its result's type."""
        match found, bare_type(avro_type, self._named):
            case StringType(), {"logicalType": "cql_varint"}:
                return nullable(lambda text: _bytes_of(integer_of(text))), BinaryType()
            case StringType(), {"logicalType": "cql_decimal"}:
                return nullable(_bytes_and_scale), _NUMBER
            case ArrayType(elementType=inner), {"items": items}:
                element, kind = self._from_text(inner, items)
                return nullable(lambda values: [element(each) for each in values]), ArrayType(kind)
            case MapType(keyType=key, valueType=inner), {"values": values}:
                value, kind = self._from_text(inner, values)
                return nullable(lambda pairs: {name: value(each) for name, each in pairs.items()}), MapType(key, kind)
            case StructType(), {"type": "record"} as record:
                types = dict(field_types(record))
                parts = [
                    self._from_text(each.dataType, types[each.name]) if each.name in types else (same, each.dataType)
                    for each in found
                ]
                made = StructType([StructField(each.name, part[1]) for each, part in zip(found, parts, strict=True)])
                converters = [part[0] for part in parts]
                return nullable(
                    lambda row: tuple(convert(each) for convert, each in zip(converters, row, strict=True))
                ), made
            case _:
                return same, found


def _is_number(bare: AvroType) -> bool:
    return isinstance(bare, dict) and bare.get("logicalType") in ("cql_varint", "cql_decimal")


def _unscaled(column: Column) -> Column:
    """The shortest big-endian two's complement of a decimal with scale 0."""
    # Avro writes the length first, which takes one byte here
    encoded = to_avro(column, _integer_schema(0))
    return F.when(column.isNotNull(), encoded.substr(F.lit(2), F.length(encoded) - 1))


def _number(column: Column) -> Column:
    """A DECIMAL(38, 18) as bytes and scale, without trailing zeros after the decimal point."""
    digits = from_avro(to_avro(column, _integer_schema(_SCALE)), _integer_schema(0)).cast("string")
    ending = F.length(F.regexp_extract(digits, "(0*)$", 1))
    zeros = F.when(digits == "0", F.lit(_SCALE)).otherwise(F.least(ending, F.lit(_SCALE)))
    kept = F.when(digits == "0", digits).otherwise(digits.substr(F.lit(1), F.length(digits) - zeros))
    unscaled = _unscaled(kept.cast(DecimalType(38, 0)))
    number = F.struct(unscaled.alias("bigint"), (F.lit(_SCALE) - zeros).cast("int").alias("scale"))
    return F.when(column.isNotNull(), number)


def _bytes_of(number: int) -> bytes:
    size = (number + (number < 0)).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _bytes_and_scale(text: str) -> tuple[bytes, int]:
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)  # It is a letter in infinity and NaN, which no decimal column holds.
    return _bytes_of(int(Decimal((sign, digits, 0)))), -exponent
