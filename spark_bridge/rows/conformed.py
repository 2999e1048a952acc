"""Structs, and a value of an earlier schema in the type of a later one: fields that were added since are null."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

__all__ = ["conformed", "struct_type"]


def struct_type(rows: DataFrame, name: str) -> StructType:
    """The type of a column that is a struct."""
    found = rows.schema[name].dataType
    assert isinstance(found, StructType)
    return found


def conformed(value: Column, found: DataType, wanted: DataType) -> Column:
    """Return `value`, which has the type `found`, in the type `wanted`. Fields of structs are matched by name.

    A field that `wanted` does not have is left out. Spark's own casts and unions match fields by name only in structs
    that are not inside an array or a map.
    """
    if found.simpleString() == wanted.simpleString():
        return value
    match found, wanted:
        case StructType(), StructType():
            there = {each.name: each.dataType for each in found}
            fields = [
                conformed(value.getField(each.name), there[each.name], each.dataType)
                if each.name in there
                else F.lit(None).cast(each.dataType)
                for each in wanted
            ]
            struct = F.struct(*[each.alias(field.name) for each, field in zip(fields, wanted, strict=True)])
            return F.when(value.isNotNull(), struct)
        case ArrayType(), ArrayType():
            return F.transform(value, lambda each: conformed(each, found.elementType, wanted.elementType))
        case MapType(), MapType():
            return F.transform_values(value, lambda _, each: conformed(each, found.valueType, wanted.valueType))
        case _:
            return value
