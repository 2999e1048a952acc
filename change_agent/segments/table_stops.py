"""The tables whose progress stands still although their events are read and acknowledged, with the reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final
from uuid import UUID

from change_agent.positions.stops import EVERY_TABLE, Stops
from schemas.cql_identifier import cql_identifier
from schemas.table_metadata import TableMetadata

__all__ = ["note_disabled", "note_left_out", "note_unlogged", "table_stops"]

_REPAIR: Final = "then run cdc spark verify --repair on the table, and cdc agent resume-progress"
_DISABLED: Final = (
    "the node ran with cdc_enabled: false, so its changes of that time are not in cdc_raw: set cdc_enabled: true, restart"
    f" the node; {_REPAIR}"
)


def table_stops(
    published: Iterable[TableMetadata],
    tables: Mapping[UUID, TableMetadata],
    parked: Collection[UUID],
    stops: Mapping[str, str],
) -> dict[tuple[str, str], str | None]:
    """Return why the progress of each `published` table stands still, by keyspace and table; None if it does not.

    `parked` are the known tables of parked mutations. The rest of a parked mutation could not be read, so it may have
    changes of any table of the same keyspace. The keyspace of an unknown table is not known, so its mutations may have
    changes of any table.
    """
    waiting = {each: tables.get(each) for each in parked}
    keyspaces = {each.keyspace for each in waiting.values() if each is not None}
    unknown = next((each for each, table in waiting.items() if table is None), None)
    found: dict[tuple[str, str], str | None] = {}
    for each in published:
        reason = stops.get(EVERY_TABLE) or stops.get(each.full_name)
        if reason is None and unknown is not None:
            reason = f"mutations of table {unknown} are parked (cdc parked), and they may have changes of this one"
        if reason is None and each.keyspace in keyspaces:
            reason = f"mutations of keyspace {each.keyspace} are parked (cdc parked)"
        found[each.keyspace, each.name] = reason
    return found


def note_unlogged(published: Iterable[TableMetadata], keyspaces: Collection[str], stops: Stops) -> None:
    """Note a stop for each table of these keyspaces, which have `durable_writes = false`.

    Cassandra does not write their changes to the commit log, so nobody can read them. The stop stays when the setting is
    corrected: what was written before is still missing.
    """
    for each in published:
        if each.keyspace in keyspaces:
            reason = (
                f"keyspace {each.keyspace} has durable_writes = false, so its changes are not in the commit log: "
                f"ALTER KEYSPACE {cql_identifier(each.keyspace)} WITH durable_writes = true; {_REPAIR}"
            )
            stops.add(each.full_name, reason)


def note_disabled(published: Iterable[TableMetadata], stops: Stops) -> None:
    """Note a stop for each table, because the node runs with `cdc_enabled: false`.

    The stop stays when the setting is corrected. A table that is created later does not have it.
    """
    for each in published:
        stops.add(each.full_name, _DISABLED)


def note_left_out(left_out: Iterable[TableMetadata], reported: Collection[tuple[str, str]], stops: Stops) -> None:
    """Note a stop for each table that had progress (`reported`), but whose changes are not published now.

    The stop stays when they are published again, because the changes that were written meanwhile are missing.
    """
    known = stops.reasons()
    for each in left_out:
        if (each.keyspace, each.name) in reported:
            why = "includeTables or excludeTables left it out" if each.cdc else "it had cdc = false"
            reason = (
                f"{why}, so its changes of that time are not on the events topic: when that is corrected, {_REPAIR}"
            )
            if reason not in known.get(each.full_name, ""):
                stops.add(each.full_name, reason)
