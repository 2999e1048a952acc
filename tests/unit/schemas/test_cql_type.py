"""CQL types as `system_schema` spells them."""

from __future__ import annotations

import pytest

from schemas.cql_type import (
    CqlType,
    CqlTypeError,
    CustomType,
    ListType,
    MapType,
    NativeType,
    SetType,
    TupleType,
    UserType,
    VectorType,
    is_multi_cell,
    parse_cql_type,
)

INT, TEXT = NativeType("int"), NativeType("text")
ADDRESS = UserType("shop", "address", ("street", "phones"), (TEXT, ListType(TEXT, frozen=True)))
QUOTED = UserType("shop", 'My "Type"', ("a",), (INT,))
USER_TYPES = {each.name: each for each in (ADDRESS, QUOTED)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", INT),
        ("varchar", TEXT),
        ("list<int>", ListType(INT)),
        ("frozen<list<int>>", ListType(INT, frozen=True)),
        ("map<text, frozen<set<int>>>", MapType(TEXT, SetType(INT, frozen=True))),
        ("frozen<map<text, list<int>>>", MapType(TEXT, ListType(INT, frozen=True), frozen=True)),
        ("tuple<int, list<int>>", TupleType((INT, ListType(INT, frozen=True)))),
        ("frozen<tuple<int, text>>", TupleType((INT, TEXT))),
        ("vector<float, 3>", VectorType(NativeType("float"), 3)),
        ("address", ADDRESS),
        ("frozen<address>", UserType("shop", "address", ADDRESS.field_names, ADDRESS.field_types, frozen=True)),
        ('"My ""Type"""', QUOTED),
        ("'org.apache.cassandra.db.marshal.BytesType'", CustomType("org.apache.cassandra.db.marshal.BytesType")),
    ],
)
def test_a_type_is_read_from_its_text(text: str, expected: CqlType) -> None:
    """Each spelling gives its tree, with frozen reaching everything inside."""
    assert parse_cql_type(text, USER_TYPES) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ends too early"),
        ("list<int", "ends too early"),
        ("list<int>>", "unexpected '>'"),
        ("list<int, int>", "list with 2 parameters"),
        ("vector<int, x>", "vector dimension 'x'"),
        ("adress", "unknown user type 'adress'"),
        ('"open', "quote is not closed"),
        ("list<" * 100 + "int" + ">" * 100, "nested too deep"),
    ],
)
def test_a_text_that_is_no_type_says_why(text: str, reason: str) -> None:
    """The error names the text and the reason, and nothing else escapes."""
    with pytest.raises(CqlTypeError) as caught:
        parse_cql_type(text, USER_TYPES)
    assert caught.value.reason == reason
    assert caught.value.text == text


@pytest.mark.parametrize(
    ("text", "multi_cell"),
    [
        ("int", False),
        ("list<int>", True),
        ("frozen<list<int>>", False),
        ("address", True),
        ("frozen<address>", False),
        ("tuple<int, int>", False),
        ("vector<int, 2>", False),
    ],
)
def test_only_unfrozen_collections_and_user_types_are_multi_cell(text: str, multi_cell: bool) -> None:
    """A multi-cell column has one cell for each element."""
    assert is_multi_cell(parse_cql_type(text, USER_TYPES)) is multi_cell
