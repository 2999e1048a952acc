"""Hypothesis strategies of CQL: types nested as deep as asked for, and literals of them."""

from __future__ import annotations

import itertools
from typing import Final

from hypothesis import strategies as st

from schemas.cql_type import CqlType, ListType, MapType, NativeType, SetType, TupleType, UserType, VectorType
from tests.cql.native_types import NATIVE_TYPES

__all__ = ["cql_text", "cql_types", "declared", "literals", "user_types_of"]

_names = itertools.count(1)
_INTEGER_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


# Types without an order, which stand in no set and no map's key.
_UNORDERED: Final = frozenset({"duration"})


def cql_types(
    depth: int, *, without: frozenset[str] = frozenset(), with_sets: bool = True
) -> st.SearchStrategy[CqlType]:
    """Types with up to so many levels, and without some native ones.

    No set stands in a map's key: the driver that the tests compare with sorts it anew, and finds its own key no more.
    """
    natives = st.sampled_from([NativeType(name) for name in NATIVE_TYPES if name not in without])
    if depth <= 1:
        return natives
    inner = cql_types(depth - 1, without=without, with_sets=with_sets)
    element = cql_types(depth - 1, without=without | _UNORDERED, with_sets=with_sets)
    key = cql_types(depth - 1, without=without | _UNORDERED, with_sets=False)
    return st.one_of(
        natives,
        inner.map(ListType),
        *([element.map(SetType)] if with_sets else []),
        st.tuples(key, inner).map(lambda pair: MapType(*pair)),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: TupleType(tuple(each))),
        st.lists(inner, min_size=1, max_size=3).map(_user_type),
        st.tuples(inner, st.integers(1, 3)).map(lambda pair: VectorType(*pair)),
    )


def _user_type(fields: list[CqlType]) -> CqlType:
    names = ("a", "B b", "c")[: len(fields)]
    return UserType("", f"u{next(_names)}", names, tuple(fields))


def cql_text(cql_type: CqlType, *, nested: bool = False) -> str:
    """The type as a column's, or (frozen) inside another."""
    match cql_type:
        case NativeType(name):
            return name
        case ListType(element):
            text = f"list<{cql_text(element, nested=True)}>"
        case SetType(element):
            text = f"set<{cql_text(element, nested=True)}>"
        case MapType(key, value):
            text = f"map<{cql_text(key, nested=True)}, {cql_text(value, nested=True)}>"
        case TupleType(elements):
            text = f"tuple<{', '.join(cql_text(each, nested=True) for each in elements)}>"
        case UserType(_, name):
            text = name
        case VectorType(element, size):
            return f"vector<{cql_text(element, nested=True)}, {size}>"
        case _:
            raise AssertionError(cql_type)
    return f"frozen<{text}>" if nested else text


def user_types_of(cql_type: CqlType) -> list[UserType]:
    """The user types in a type, each before those that it stands in."""
    match cql_type:
        case ListType(inner) | SetType(inner) | VectorType(inner, _):
            return user_types_of(inner)
        case MapType(key, value):
            return user_types_of(key) + user_types_of(value)
        case TupleType(elements):
            return [found for each in elements for found in user_types_of(each)]
        case UserType():
            return [found for each in cql_type.field_types for found in user_types_of(each)] + [cql_type]
        case _:
            return []


def declared(user_type: UserType) -> str:
    """What stands behind CREATE TYPE."""
    fields = zip(user_type.field_names, user_type.field_types, strict=True)
    return f"{user_type.name} (" + ", ".join(f'"{name}" {cql_text(each, nested=True)}' for name, each in fields) + ")"


def literals(cql_type: CqlType, *, in_set: bool = False) -> st.SearchStrategy[str]:
    """Values as CQL writes them. Elements are never null, parts of tuples and user types may be.

    Sets hold neither NaN nor -0.0: the driver that the tests compare with sorts sets by what Python takes for equal.
    """
    match cql_type:
        case NativeType("double" | "float" as name) if not in_set:
            return st.one_of(_scalars(name), st.sampled_from(["NaN", "Infinity", "-Infinity", "-0.0"]))
        case NativeType(name):
            return _scalars(name)
        case ListType(element):
            return st.lists(literals(element, in_set=in_set), max_size=3).map(lambda each: f"[{', '.join(each)}]")
        case SetType(element):
            return st.lists(literals(element, in_set=True), max_size=3, unique=True).map(
                lambda each: "{" + ", ".join(each) + "}"
            )
        case MapType(key, value):
            pairs = st.dictionaries(literals(key, in_set=in_set), literals(value, in_set=in_set), max_size=3)
            return pairs.map(lambda each: "{" + ", ".join(f"{name}: {held}" for name, held in each.items()) + "}")
        case TupleType(elements):
            parts = st.tuples(*(_or_null(each, in_set=in_set) for each in elements))
            return parts.map(lambda each: f"({', '.join(each)})")
        case UserType():
            names = cql_type.field_names
            return st.tuples(*(_or_null(each, in_set=in_set) for each in cql_type.field_types)).map(
                lambda each: "{" + ", ".join(f'"{n}": {v}' for n, v in zip(names, each, strict=True)) + "}"
            )
        case VectorType(element, size):
            values = st.lists(literals(element, in_set=in_set), min_size=size, max_size=size)
            return values.map(lambda each: f"[{', '.join(each)}]")
        case _:
            raise AssertionError(cql_type)


def _or_null(cql_type: CqlType, *, in_set: bool) -> st.SearchStrategy[str]:
    return st.one_of(literals(cql_type, in_set=in_set), st.just("null"))


def _without_sign_of_zero(value: float) -> str:
    return repr(value or 0.0)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _scalars(name: str) -> st.SearchStrategy[str]:
    if name in _INTEGER_BITS:
        limit = 1 << (_INTEGER_BITS[name] - 1)
        return st.integers(-limit, limit - 1).map(str)
    match name:
        case "ascii":
            return st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=12).map(_quoted)
        case "text":
            return st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1), max_size=12).map(_quoted)
        case "blob":
            return st.binary(max_size=12).map(lambda each: "0x" + each.hex())
        case "boolean":
            return st.sampled_from(["true", "false"])
        case "date":
            return st.dates().map(lambda each: f"'{each.isoformat()}'")
        case "timestamp":
            return st.integers(-(10**13), 10**14).map(str)
        case "time":
            return st.integers(0, 86_399_999_999_999).map(str).map(_quoted)
        case "decimal":
            return st.tuples(st.integers(-(10**40), 10**40), st.integers(-5, 30)).map(
                lambda each: f"{each[0]}E{-each[1]}"
            )
        case "varint":
            return st.integers(-(10**50), 10**50).map(str)
        case "double":
            return st.floats(allow_nan=False, allow_infinity=False).map(_without_sign_of_zero)
        case "float":
            return st.floats(allow_nan=False, allow_infinity=False, width=32).map(_without_sign_of_zero)
        case "inet":
            return st.ip_addresses().map(str).map(_quoted)
        case "duration":
            parts = st.tuples(*(st.integers(0, limit) for limit in (2**31 - 1, 2**31 - 1, 2**62)), st.booleans())
            return parts.map(lambda each: f"{'-' if each[3] else ''}{each[0]}mo{each[1]}d{each[2]}ns")
        case "uuid":
            return st.uuids().map(str)
        case "timeuuid":
            return st.uuids(version=1).map(str)
        case _:
            raise AssertionError(name)
