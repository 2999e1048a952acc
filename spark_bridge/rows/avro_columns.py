"""From the data topic's Avro types to Spark columns: which `from_avro` can read, and which need a conversion after it.

`from_avro` ignores logical types that it does not know: a varint is bytes, a decimal a struct of bytes and scale. With
`numbers=decimal` the bytes are read once more as Avro's own `decimal`, the same encoding (big-endian two's complement);
with `numbers=string` a Python function writes them out, whatever their size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Literal

from pyspark.sql import Column, Row
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from schemas.long_numbers import decimal_of, integer_text
from spark_bridge.rows.avro_types import AvroType, Converter, bare_type, field_types, named_records, nullable, same
from spark_bridge.spark_line import try_cast
from spark_bridge.topics.topic_schemas import AvroRecord

__all__ = ["AvroColumns", "Numbers"]

Numbers = Literal["decimal", "string"]

_LONGEST: Final = 64  # bytes; 17 hold every DECIMAL(38, 0), sign bits included
DECIMAL_SCALE: Final = 18  # Cassandra's decimal becomes DECIMAL(38, 18), as in the Spark Cassandra connector
_AVRO_INTEGER: Final = json.dumps({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0})
_PRIMITIVES: Final[Mapping[str, DataType]] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_LOGICAL: Final[Mapping[str, DataType]] = {"date": DateType(), "timestamp-millis": TimestampType()}


class AvroColumns:
    """Columns of one record schema."""

    def __init__(self, schema: AvroRecord, numbers: Numbers) -> None:
        self._numbers: Numbers = numbers
        self._fields = field_types(schema)
        self._named = named_records(schema)

    @property
    def names(self) -> list[str]:
        """Field names, in order."""
        return [name for name, _ in self._fields]

    @property
    def has_numbers(self) -> bool:
        """True if a column is a varint or a decimal, at any depth."""
        return any(self._has_number(each) for _, each in self._fields)

    def converted(self, record: Column) -> Column:
        """Return `record`, a struct that `from_avro` made by the schema, with every number in its final type."""
        if not self.has_numbers:
            return record
        fields = [self._column(record.getField(name), each, name).alias(name) for name, each in self._fields]
        return F.when(record.isNotNull(), F.struct(*fields))

    def _column(self, column: Column, avro_type: AvroType, name: str) -> Column:
        if not self._has_number(avro_type):
            return column
        if self._numbers == "string":
            return F.udf(self._text_converter(avro_type), self._spark_type(avro_type), useArrow=True)(column)
        return self._decimals(column, bare_type(avro_type, self._named), name)

    def _decimals(self, column: Column, avro_type: AvroType, name: str) -> Column:
        match avro_type:
            case {"logicalType": "cql_varint"}:
                return _integer(column, name, F.hex(column))
            case {"logicalType": "cql_decimal"}:
                return _decimal(column, name)
            case {"type": "array", "items": items} if self._has_number(items):
                return F.transform(column, lambda each: self._decimals(each, bare_type(items, self._named), name))
            case {"type": "map", "values": values} if self._has_number(values):
                return F.transform_values(
                    column, lambda _, each: self._decimals(each, bare_type(values, self._named), name)
                )
            case {"type": "record"} as record if self._has_number(record):
                fields = [
                    self._decimals(column.getField(field), bare_type(each, self._named), f"{name}.{field}").alias(field)
                    for field, each in field_types(record)
                ]
                return F.when(column.isNotNull(), F.struct(*fields))
            case _:
                return column

    def _text_converter(self, avro_type: AvroType) -> Converter:
        """A function that converts every number in the argument of a Python UDF to text.

        Closures, because it is pickled.
        """
        avro_type = bare_type(avro_type, self._named)
        match avro_type:
            case {"logicalType": "cql_varint"}:
                return nullable(_varint_text)
            case {"logicalType": "cql_decimal"}:
                return nullable(_decimal_text)
            case {"type": "array", "items": items}:
                element = self._text_converter(items)
                return nullable(lambda values: [element(each) for each in values])
            case {"type": "map", "values": values}:
                value = self._text_converter(values)
                return nullable(lambda pairs: {key: value(each) for key, each in pairs.items()})
            case {"type": "record"} as record:
                converters = [self._text_converter(each) for _, each in field_types(record)]
                return nullable(lambda row: tuple(convert(each) for convert, each in zip(converters, row, strict=True)))
            case _:
                return same

    def _spark_type(self, avro_type: AvroType) -> DataType:
        avro_type = bare_type(avro_type, self._named)
        match avro_type:
            case {"logicalType": "cql_varint" | "cql_decimal"}:
                return StringType()
            case {"logicalType": str() as logical} if logical in _LOGICAL:
                return _LOGICAL[logical]
            case {"type": "array", "items": items}:
                return ArrayType(self._spark_type(items))
            case {"type": "map", "values": values}:
                return MapType(StringType(), self._spark_type(values))
            case {"type": "record"} as record:
                return StructType([StructField(name, self._spark_type(each)) for name, each in field_types(record)])
            case {"type": str() as name}:
                return _PRIMITIVES[name]
            case _:
                return _PRIMITIVES[avro_type]

    def _has_number(self, avro_type: AvroType) -> bool:
        match bare_type(avro_type, self._named):
            case {"logicalType": "cql_decimal" | "cql_varint"}:
                return True
            case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
                return self._has_number(inner)
            case {"type": "record"} as record:
                return any(self._has_number(each) for _, each in field_types(record))
            case _:
                return False


def _integer(data: Column, name: str, shown: Column) -> Column:
    """Big-endian two's complement as DECIMAL(38, 0). A value that does not fit is an error that names the column."""
    length = F.length(data)
    # Avro's encoding of bytes: the length as zigzag varint, which takes one byte here, then the data
    encoded = F.concat(F.unhex(F.hex(length * 2)), data)
    number = F.when(length < _LONGEST, from_avro(encoded, _AVRO_INTEGER, {"mode": "PERMISSIVE"}))
    return F.when(data.isNotNull(), F.coalesce(number, _does_not_fit(name, shown, "DECIMAL(38, 0)")))


def _decimal(column: Column, name: str) -> Column:
    """STRUCT<bigint: BINARY, scale: INT> as DECIMAL(38, 18); a value that would be rounded is an error."""
    data, scale = column.getField("bigint"), column.getField("scale")
    shown = F.concat(F.hex(data), F.lit(" with scale "), scale.cast("string"))
    digits = _integer(data, name, shown).cast("string")
    zeros = F.length(F.regexp_extract(digits, "(0*)$", 1))
    is_exact = (scale <= DECIMAL_SCALE) | (zeros >= scale - DECIMAL_SCALE) | (digits == "0")
    text = F.concat(digits, F.lit("E"), (-scale).cast("string"))
    number = F.when(is_exact, try_cast(text, DecimalType(38, DECIMAL_SCALE)))
    return F.when(column.isNotNull(), F.coalesce(number, _does_not_fit(name, text, "DECIMAL(38, 18)")))


def _does_not_fit(name: str, shown: Column, spark_type: str) -> Column:
    advice = F.lit(f" does not fit {spark_type}; read the table with the option numbers=string")
    return F.raise_error(F.concat(F.lit(f"column {name}: "), shown, advice))


def _varint_text(value: bytes) -> str:
    return integer_text(int.from_bytes(value, "big", signed=True))


def _decimal_text(row: Row) -> str:
    # "to-scientific-string": what Cassandra's JSON and BigDecimal.toString give
    return str(decimal_of(int.from_bytes(row["bigint"], "big", signed=True), row["scale"]))
