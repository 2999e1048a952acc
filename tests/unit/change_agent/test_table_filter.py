"""TableFilter: which tables are published, by patterns."""

from __future__ import annotations

import pytest

from change_agent.configuration.table_filter import TableFilter


@pytest.mark.parametrize(
    ("include", "exclude", "table", "admitted"),
    [
        ((), (), "shop.orders", True),
        (("shop.*",), (), "shop.orders", True),
        (("shop.*",), (), "shop2.orders", False),
        (("shop.order?",), (), "shop.orders", True),
        (("*.orders", "crm.person"), (), "crm.person", True),
        ((), ("shop.log_*",), "shop.log_2026", False),
        ((), ("shop.log_*",), "shop.orders", True),
        (("shop.*",), ("shop.log",), "shop.log", False),
        (("Shop.*",), (), "shop.orders", False),
    ],
)
def test_patterns(include: tuple[str, ...], exclude: tuple[str, ...], table: str, admitted: bool) -> None:
    """An excluded table is never published. Patterns are case-sensitive."""
    assert TableFilter(include, exclude).admits(*table.split(".")) is admitted
