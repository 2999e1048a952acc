"""`cdc parked`: mutations that an agent could not decode, with the reasons, and events too large for the broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import click
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from cdc.commands.agent_options import config_option, working_dir_option
from change_agent.configuration.config import AgentConfig
from change_agent.parking.parked import ParkedMutation, read_parked
from change_agent.publishing.held_events import TooLargeEvent, read_too_large
from change_agent.schema.schema_history import read_newest_tables
from change_agent.sqlite_file import DamagedFileError
from schemas.errors import ConfigError
from schemas.system_schema import SystemSchemaError

__all__ = ["parked"]

# On a narrower terminal, a table of seven columns is not readable.
_WIDE: Final = 110


@click.command(name="parked")
@config_option
@working_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, with the bytes in hex.")
def parked(path: Path | None, working_dir: Path | None, as_json: bool) -> None:
    """List the mutations and events that wait on an agent's disk.

    These are mutations that it could not decode, and retries when the schema changes; and events that are larger than the
    broker's maxMessageSize, which it retries at its next start. The agent may be running; nothing is changed. docs/agent.md
    describes the remedies.

    \b
    cdc parked --config agent.yaml
    """
    if working_dir is None:
        working_dir = AgentConfig.working_dir_of(path)
    if not working_dir.is_dir():
        raise ConfigError.of("--working-dir", f"{working_dir} is no folder; give the agent's cdcWorkingDir")
    names = _table_names(working_dir)
    if as_json:
        for each in read_parked(working_dir):
            click.echo(json.dumps(_as_object(each, names)))
        for large in read_too_large(working_dir):
            click.echo(json.dumps(_large_as_object(large)))
        return
    _print(list(read_parked(working_dir)), list(read_too_large(working_dir)), names, Console())


def _table_names(working_dir: Path) -> Mapping[UUID, str]:
    """Names of all tables that the agent has known, by id; empty if its schema history cannot be read."""
    path = working_dir / "schema.sqlite"
    try:
        tables = read_newest_tables(path) if path.exists() else {}
    except (DamagedFileError, SystemSchemaError) as error:
        click.echo(f"cdc: {path}: {error}; tables are shown by their ids", err=True)
        return {}
    return {table_id: table.full_name for table_id, table in tables.items()}


def _as_object(parked: ParkedMutation, names: Mapping[UUID, str]) -> dict[str, object]:
    return {
        "kind": "parked",
        "segment": parked.segment,
        "position": parked.position,
        "version": parked.version,
        "table_id": str(parked.table_id),
        "table": names.get(parked.table_id),
        "reason": parked.reason,
        "tries": parked.tries,
        "parked_at": _time(parked),
        "payload": parked.payload.hex(),
    }


def _large_as_object(large: TooLargeEvent) -> dict[str, object]:
    return {
        "kind": "too_large",
        "table": large.table,
        "segment_id": large.segment_id,
        "position": large.position,
        "size": large.size,
        "digest": large.digest.hex(),
    }


def _print(
    found: Sequence[ParkedMutation], large: Sequence[TooLargeEvent], names: Mapping[UUID, str], console: Console
) -> None:
    if not found and not large:
        console.print("nothing is parked")
    if found:
        console.print(_table_of_parked(found, names, console.width))
        segments = len({each.segment_id for each in found})
        console.print(
            f"{len(found)} parked, of {segments} segment{'' if segments == 1 else 's'}, which stay in cdc_raw"
        )
    if large:
        console.print(_table_of_large(large))
        console.print(
            f"{len(large)} larger than the broker's maxMessageSize, kept in held/too-large/; the agent tries them again at its"
            " next start",
            soft_wrap=True,
        )


def _table_of_parked(found: Sequence[ParkedMutation], names: Mapping[UUID, str], width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    if width < _WIDE:
        table.add_column("where", overflow="fold", max_width=max(20, width // 2))
        table.add_column("why", overflow="fold")
        for each in found:
            name = names.get(each.table_id, str(each.table_id))
            where = f"{each.segment}, position {each.position}, {name}"
            table.add_row(Text(where), Text(f"{each.reason} (tries: {each.tries})"))
        return table
    for column in ("segment", "position", "table", "bytes", "tries", "parked at", "reason"):
        justify: JustifyMethod = "right" if column in {"position", "bytes", "tries"} else "left"
        table.add_column(column, overflow="fold", justify=justify)
    for each in found:
        name = names.get(each.table_id, str(each.table_id))
        size, tries = str(len(each.payload)), str(each.tries)
        table.add_row(each.segment, str(each.position), Text(name), size, tries, _time(each), Text(each.reason))
    return table


def _table_of_large(large: Sequence[TooLargeEvent]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("table", "segment id", "position", "bytes"):
        table.add_column(column, overflow="fold", justify="left" if column == "table" else "right")
    for each in large:
        table.add_row(Text(each.table), str(each.segment_id), str(each.position), str(each.size))
    return table


def _time(parked: ParkedMutation) -> str:
    return datetime.fromtimestamp(parked.parked_at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
