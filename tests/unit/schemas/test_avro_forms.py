"""The types that are copied from CQL to Avro. The copies themselves are tested against fastavro where they are made."""

from __future__ import annotations

import pytest

from schemas import avro_forms
from schemas.avro_forms import AS_LIST, AS_OTHER, AS_SIGNED, AS_TEXT, AS_TIME, avro_form
from schemas.cql_type import parse_cql_type


@pytest.mark.parametrize(
    ("cql_type", "form"),
    [
        ("int", (AS_SIGNED, 4)),
        ("counter", (AS_SIGNED, 8)),
        ("time", (AS_TIME, 8)),
        ("text", (AS_TEXT, 0)),
        ("list<int>", (AS_LIST, 0)),
        ("frozen<set<duration>>", (AS_LIST, 0)),
        ("map<int, int>", (AS_OTHER, 0)),
        ("tuple<int>", (AS_OTHER, 0)),
        ("decimal", (AS_OTHER, 0)),
        ("duration", (AS_OTHER, 0)),
        ("inet", (AS_OTHER, 0)),
    ],
)
def test_a_type_is_copied_where_its_two_forms_are_near(cql_type: str, form: tuple[int, int]) -> None:
    """The form includes the length that values must have for a copy; 0 stands for any length."""
    assert avro_form(parse_cql_type(cql_type, {})) == form


def test_no_two_forms_are_one_number() -> None:
    """Only the numbers distinguish the forms."""
    numbers = [getattr(avro_forms, name) for name in avro_forms.__all__ if name.startswith("AS_")]
    assert sorted(numbers) == list(range(11))
