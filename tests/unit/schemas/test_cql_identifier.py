"""Names in CQL statements that users are told to run."""

from __future__ import annotations

import pytest

from schemas.cql_identifier import cql_identifier


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("orders", "orders"),
        ("orders_2", "orders_2"),
        ("Orders", '"Orders"'),
        ("2orders", '"2orders"'),
        ("_orders", '"_orders"'),
        ('a "b"', '"a ""b"""'),
        ("größe", '"größe"'),
    ],
)
def test_a_name_has_quotes_where_cql_would_read_another_one(name: str, text: str) -> None:
    """The quotes are those of cqlsh's DESCRIBE."""
    assert cql_identifier(name) == text
