"""CQL types as a tree of values, parsed from the text in `system_schema` (`frozen<map<text, int>>`).

Cassandra source: o.a.c.cql3.CQL3Type and o.a.c.schema.CQLTypeParser.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from schemas.cql_identifier import quoted
from schemas.errors import CdcError
from schemas.native_codec import CODECS

__all__ = [
    "CqlType",
    "CqlTypeError",
    "CustomType",
    "ListType",
    "MapType",
    "NativeType",
    "SetType",
    "TupleType",
    "UserType",
    "VectorType",
    "has_empty_value",
    "parse_cql_type",
]

NATIVE_TYPE_NAMES: Final = frozenset({*CODECS, "varchar"})

_WITH_EMPTY_VALUE: Final = frozenset({"ascii", "blob", "text"})
# No schema is nested so deeply. The limit protects the stack against hostile text.
_MAX_DEPTH: Final = 64


class CqlTypeError(CdcError):
    """The text of a CQL type cannot be understood, or names a user type that is not known."""

    def __init__(self, text: str, reason: str) -> None:
        self.text = text
        self.reason = reason
        super().__init__(f"CQL type {text!r}: {reason}")


@dataclass(frozen=True, slots=True)
class NativeType:
    """A scalar type, by its CQL name; `varchar` is kept as `text`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ListType:
    """`list<element>`."""

    element: CqlType
    frozen: bool = False

    def __str__(self) -> str:
        return _frozen(f"list<{self.element}>", self.frozen)


@dataclass(frozen=True, slots=True)
class SetType:
    """`set<element>`."""

    element: CqlType
    frozen: bool = False

    def __str__(self) -> str:
        return _frozen(f"set<{self.element}>", self.frozen)


@dataclass(frozen=True, slots=True)
class MapType:
    """`map<key, value>`."""

    key: CqlType
    value: CqlType
    frozen: bool = False

    def __str__(self) -> str:
        return _frozen(f"map<{self.key}, {self.value}>", self.frozen)


@dataclass(frozen=True, slots=True)
class TupleType:
    """`tuple<a, b, ...>`; always frozen in Cassandra."""

    elements: tuple[CqlType, ...]

    def __str__(self) -> str:
        return _frozen(f"tuple<{', '.join(map(str, self.elements))}>", True)


@dataclass(frozen=True, slots=True)
class VectorType:
    """`vector<element, dimension>`; never multi-cell."""

    element: CqlType
    dimension: int

    def __str__(self) -> str:
        return f"vector<{self.element}, {self.dimension}>"


@dataclass(frozen=True, slots=True)
class UserType:
    """A user-defined type with its present fields, in order."""

    keyspace: str
    name: str
    field_names: tuple[str, ...]
    field_types: tuple[CqlType, ...]
    frozen: bool = False

    def __str__(self) -> str:
        return _frozen(_type_name(self.name), self.frozen)


@dataclass(frozen=True, slots=True)
class CustomType:
    """A type given by the name of a Java class. Its values are opaque bytes."""

    class_name: str

    def __str__(self) -> str:
        return f"'{self.class_name}'"


CqlType = NativeType | ListType | SetType | MapType | TupleType | VectorType | UserType | CustomType


def has_empty_value(cql_type: CqlType) -> bool:
    """True if no bytes are a value of the type, such as the text "". For other types they stand for no value."""
    return isinstance(cql_type, NativeType) and cql_type.name in _WITH_EMPTY_VALUE


def is_multi_cell(cql_type: CqlType) -> bool:
    """True if a column of this type is stored as one cell for each element.

    Cassandra source: o.a.c.db.marshal.AbstractType.isMultiCell.
    """
    return isinstance(cql_type, ListType | SetType | MapType | UserType) and not cql_type.frozen


def parse_cql_type(text: str, user_types: Mapping[str, UserType]) -> CqlType:
    """Parse a type of a keyspace. `user_types` are the keyspace's user types by name. Raises CqlTypeError."""
    parser = _Parser(text, user_types)
    parsed = parser.type(0)
    parser.end()
    return parsed


def frozen(cql_type: CqlType) -> CqlType:
    """The same type, frozen together with everything inside it."""
    match cql_type:
        case ListType(element):
            return ListType(frozen(element), True)
        case SetType(element):
            return SetType(frozen(element), True)
        case MapType(key, value):
            return MapType(frozen(key), frozen(value), True)
        case TupleType(elements):
            return TupleType(tuple(map(frozen, elements)))
        case UserType():
            return replace(cql_type, field_types=tuple(map(frozen, cql_type.field_types)), frozen=True)
        case _:
            return cql_type


def _frozen(text: str, is_frozen: bool) -> str:
    return f"frozen<{text}>" if is_frozen else text


def _type_name(name: str) -> str:
    plain = name.isascii() and name.replace("_", "a").isalnum() and name == name.lower() and not name[:1].isdigit()
    return name if plain else quoted(name)


class _Parser:
    """Recursive descent over: Type => Name [ '<' Type {',' Type} '>' ] | '"' quoted '"' | "'" class "'"."""

    def __init__(self, text: str, user_types: Mapping[str, UserType]) -> None:
        self._text = text
        self._user_types = user_types
        self._tokens = list(self._tokenize())
        self._next = 0

    def type(self, depth: int) -> CqlType:
        if depth > _MAX_DEPTH:
            raise self._error("nested too deep")
        token = self._take()
        if token[0] == "'":
            return CustomType(token[1:-1])
        if token[0] == '"':
            return self._user_type(token[1:-1].replace('""', '"'))
        if self._peek() == "<":
            return self._parametrized(token.lower(), depth)
        name = token.lower()
        # A user type may have any name that no native type has.
        if name in NATIVE_TYPE_NAMES:
            return NativeType("text" if name == "varchar" else name)
        return self._user_type(name)

    def end(self) -> None:
        if self._next != len(self._tokens):
            raise self._error(f"unexpected {self._tokens[self._next]!r}")

    def _parametrized(self, name: str, depth: int) -> CqlType:
        self._expect("<")
        first = self.type(depth + 1)
        if name == "vector":
            self._expect(",")
            dimension = self._take()
            if not dimension.isdecimal() or int(dimension) < 1:
                raise self._error(f"vector dimension {dimension!r}")
            self._expect(">")
            return VectorType(first, int(dimension))
        arguments = [first]
        while self._peek() == ",":
            self._take()
            arguments.append(self.type(depth + 1))
        self._expect(">")
        return self._build(name, arguments)

    def _build(self, name: str, arguments: list[CqlType]) -> CqlType:
        match name, arguments:
            case "frozen", [inner]:
                return frozen(inner)
            case "list", [element]:
                return ListType(element)
            case "set", [element]:
                return SetType(element)
            case "map", [key, value]:
                return MapType(key, value)
            case "tuple", elements:
                return TupleType(tuple(map(frozen, elements)))
            case _:
                raise self._error(f"{name} with {len(arguments)} parameters")

    def _user_type(self, name: str) -> UserType:
        user_type = self._user_types.get(name)
        if user_type is None:
            raise self._error(f"unknown user type {name!r}")
        return user_type

    def _tokenize(self) -> Iterator[str]:
        text, at = self._text, 0
        while at < len(text):
            char = text[at]
            if char.isspace():
                at += 1
            elif char in "<>,":
                yield char
                at += 1
            else:
                end = self._quoted_end(at) if char in "'\"" else self._word_end(at)
                yield text[at:end]
                at = end

    def _quoted_end(self, start: int) -> int:
        quote, at = self._text[start], start + 1
        while at < len(self._text):
            if self._text[at] == quote:
                if self._text[at + 1 : at + 2] != quote:
                    return at + 1
                at += 1
            at += 1
        raise self._error("quote is not closed")

    def _word_end(self, start: int) -> int:
        at = start
        while at < len(self._text) and not self._text[at].isspace() and self._text[at] not in "<>,'\"":
            at += 1
        return at

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> str:
        token = self._peek()
        if token is None:
            raise self._error("ends too early")
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise self._error(f"expected {token!r}")

    def _error(self, reason: str) -> CqlTypeError:
        return CqlTypeError(self._text, reason)
