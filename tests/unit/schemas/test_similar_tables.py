"""A table that does not exist: the text names those with similar names."""

from __future__ import annotations

import pytest

from schemas.similar_tables import missing_table_text

_TABLES = (
    "shop.orders",
    "shop.items",
    "shop.Parts",
    "archive.orders",
    "archive.nodes",
    "systems.widgets",
    "system.local",
)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("shop.order", "; did you mean shop.orders?"),
        ("shop.parts", "; did you mean shop.Parts?"),
        ("shop.nodes", "; did you mean shop.orders or archive.nodes?"),
        ("shpo.orders", "; did you mean archive.orders or shop.orders?"),
        ("shpo.items", "; did you mean shop.items?"),
        ("shop.xyz", "; the tables there are shop.Parts, shop.items, shop.orders"),
        ("x.y", ", and no table has a similar name"),
        ("system.locla", ", and no table has a similar name"),
        ("systems.widgetz", "; did you mean systems.widgets?"),
    ],
)
def test_similar_names_are_named(name: str, hint: str) -> None:
    """Another case, another keyspace, a mistyped name; but no table of the cluster itself."""
    assert missing_table_text(name, "at h:1", _TABLES) == f"{name} does not exist at h:1{hint}"


def test_of_many_tables_some_are_named() -> None:
    """A keyspace may have thousands."""
    found = missing_table_text("shop.xyz", "at h:1", [f"shop.a{number}" for number in range(9)])
    assert found == "shop.xyz does not exist at h:1; the tables there are shop.a0, shop.a1, shop.a2, ..."
