"""The text about a table that does not exist: it names the tables with similar names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from schemas.hints import MOST_NAMES, names_hint

__all__ = ["hint_of", "is_of_cluster", "missing_table_text"]

# Users may have keyspaces whose names begin with "system", too.
_OF_CLUSTER: Final = frozenset(
    {"system", "system_schema", "system_auth", "system_distributed", "system_traces", "system_views"}
    | {"system_virtual_schema", "system_metrics", "system_cluster_metadata"}
)


def missing_table_text(name: str, where: str, tables: Iterable[str]) -> str:
    """Why `keyspace.table` cannot be used: it is none of `tables`, which are all of `where` (`at 10.0.0.1:9042`).

    It names other tables as `hint_of` does.
    """
    return f"{name} does not exist {where}{hint_of(name, tables)}"


def hint_of(name: str, tables: Iterable[str]) -> str:
    """The end of such a text: tables with similar names, else some tables of the keyspace.

    It does not name tables of the cluster itself (`system`, `system_schema`, ...).
    """
    users = sorted(each for each in tables if not is_of_cluster(each.partition(".")[0]))
    near = _similar(name, users)
    in_keyspace = [each for each in users if each.startswith(f"{name.partition('.')[0]}.")]
    return names_hint(near, in_keyspace, kind="tables", without=", and no table has a similar name")


def is_of_cluster(keyspace: str) -> bool:
    """Return True for a keyspace of the cluster itself, such as `system_schema`."""
    return keyspace in _OF_CLUSTER


def _similar(name: str, tables: Sequence[str]) -> list[str]:
    """The same name in another case, a similar name in the keyspace, the same name in another keyspace, in this order.

    Whole names are compared only if nothing is found so: the keyspace alone makes all names in it similar.
    """
    keyspace, _, table = name.partition(".")
    by_case = [each for each in tables if each.lower() == name.lower()]
    below = [each.partition(".")[2] for each in tables if each.startswith(f"{keyspace}.")]
    in_keyspace = [f"{keyspace}.{each}" for each in get_close_matches(table, below, n=MOST_NAMES)]
    elsewhere = [each for each in tables if each.partition(".")[2] == table]
    found = [*by_case, *in_keyspace, *elsewhere] or ([] if below else get_close_matches(name, tables, n=MOST_NAMES))
    return list(dict.fromkeys(found))[:MOST_NAMES]
