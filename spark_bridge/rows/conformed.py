"""Structs, and a value of an earlier schema in the type of a later one: fields that were added since are null."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_bridge.rows.sql_columns import null_of, quoted, struct

__all__ = ["conformed", "struct_type"]


def struct_type(rows: DataFrame, name: str) -> StructType:
    """The type of a column that is a struct."""
    found = rows.schema[name].dataType
    assert isinstance(found, StructType)
    return found


def conformed(value: str, found: DataType, wanted: DataType, depth: int = 0) -> str:
    """Return `value`, an expression of SQL with the type `found`, in the type `wanted`. Fields of structs are matched
    by name.

    A field that `wanted` does not have is left out. Spark's own casts and unions match fields by name only in structs
    that are not inside an array or a map. `depth`: of arrays and maps around the value.
    """
    if found.simpleString() == wanted.simpleString():
        return value
    inner = f"cdc_each_{depth}"
    match found, wanted:
        case StructType(), StructType():
            there = {each.name: each.dataType for each in found}
            fields = {
                each.name: conformed(f"{value}.{quoted(each.name)}", there[each.name], each.dataType, depth)
                if each.name in there
                else null_of(each.dataType)
                for each in wanted
            }
            return f"CASE WHEN {value} IS NOT NULL THEN {struct(fields)} END"
        case ArrayType(), ArrayType():
            element = conformed(inner, found.elementType, wanted.elementType, depth + 1)
            return f"transform({value}, {inner} -> {element})"
        case MapType(), MapType():
            element = conformed(inner, found.valueType, wanted.valueType, depth + 1)
            return f"transform_values({value}, (cdc_key_{depth}, {inner}) -> {element})"
        case _:
            return value
