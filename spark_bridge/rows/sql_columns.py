"""Columns as texts of Spark SQL. No state.

For a `Column` object, Python calls Java for each part of its expression, and again for each column of a projection. A
text is one call, and so is a projection of texts, whatever its number of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_bridge.java_classes import java_class

__all__ = ["field", "literal", "null_of", "quoted", "selected", "struct", "type_text"]

_NOT_IN_TEXTS: Final = "\0"
"""No expression contains it."""
_IN_BYTES: Final = frozenset("'\\$")


def quoted(name: str) -> str:
    """A column or table name, quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as a literal of Spark SQL.

    Sessions differ in how they read a quote and a backslash in a literal, and Spark replaces `${...}` by a variable, or by
    nothing. A text with one of these characters is written as bytes.
    """
    if not _IN_BYTES.isdisjoint(text):
        return f"decode(X'{text.encode().hex()}', 'UTF-8')"
    return f"'{text}'"


def field(struct: str, name: str) -> str:
    """A field of a column that is a struct, by the names of both."""
    return f"{quoted(struct)}.{quoted(name)}"


def struct(fields: Mapping[str, str]) -> str:
    """A struct of expressions, by the names of its fields."""
    return f"struct({', '.join(f'{text} AS {quoted(name)}' for name, text in fields.items())})"


def null_of(wanted: DataType) -> str:
    """A null of this type."""
    return f"cast(NULL AS {type_text(wanted)})"


def selected(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """A projection of expressions, by the names of its columns."""
    texts = [f"{text} AS {quoted(name)}" for name, text in columns.items()]
    found = getattr(rows, "_jdf", None)
    if found is None:  # a session of Spark Connect: it calls no Java
        return rows.selectExpr(*texts)
    jvm = rows.sparkSession.sparkContext._jvm  # noqa: SLF001  (PySpark has no projection by one call)
    divide = java_class(jvm, "org.apache.commons.lang3.StringUtils").splitByWholeSeparator
    return DataFrame(found.selectExpr(divide(_NOT_IN_TEXTS.join(texts), _NOT_IN_TEXTS)), rows.sparkSession)


def type_text(wanted: DataType) -> str:
    """A type in Spark SQL; fields of structs may have any name."""
    match wanted:
        case StructType():
            return f"struct<{', '.join(f'{quoted(each.name)}: {type_text(each.dataType)}' for each in wanted)}>"
        case ArrayType():
            return f"array<{type_text(wanted.elementType)}>"
        case MapType():
            return f"map<{type_text(wanted.keyType)}, {type_text(wanted.valueType)}>"
        case _:
            return wanted.simpleString()
