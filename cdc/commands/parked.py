"""`cdc parked`: which mutations an agent could not understand, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from change_agent.config import AgentConfig
from change_agent.parked import ParkedMutation, read_parked
from schemas.errors import ConfigError

__all__ = ["parked"]

# Below it a table of seven columns cannot be read any more.
_WIDE: Final = 110


@click.command(name="parked")
@click.option("--config", "config", type=click.Path(path_type=Path), help="The agent's YAML file.")
@click.option("--working-dir", type=click.Path(path_type=Path), help="The agent's cdcWorkingDir, instead of --config.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, with the bytes in hex.")
def parked(config: Path | None, working_dir: Path | None, as_json: bool) -> None:
    """List the mutations that an agent has parked: it could not decode them, and tries again when the schema changes.

    The agent may be running; nothing is changed. docs/agent.md says what to do with them.
    """
    if (config is None) == (working_dir is None):
        raise ConfigError.of("--config", "give either --config agent.yaml or --working-dir DIR")
    if config is not None:
        working_dir = AgentConfig.load(config).cdc_working_dir
    assert working_dir is not None
    if not working_dir.is_dir():
        raise ConfigError.of("--working-dir", f"{working_dir} is no folder; give the agent's cdcWorkingDir")
    if as_json:
        for each in read_parked(working_dir):
            click.echo(json.dumps(_as_object(each)))
        return
    _print(list(read_parked(working_dir)), Console())


def _as_object(parked: ParkedMutation) -> dict[str, object]:
    return {
        "segment": parked.segment,
        "position": parked.position,
        "version": parked.version,
        "table_id": str(parked.table_id),
        "reason": parked.reason,
        "tries": parked.tries,
        "parked_at": _time(parked),
        "payload": parked.payload.hex(),
    }


def _print(found: Sequence[ParkedMutation], console: Console) -> None:
    if not found:
        console.print("nothing is parked")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    is_wide = console.width >= _WIDE
    if is_wide:
        for name in ("segment", "position", "table id", "bytes", "tries", "parked at", "reason"):
            table.add_column(
                name, overflow="fold", justify="right" if name in {"position", "bytes", "tries"} else "left"
            )
        for each in found:
            size, tries = str(len(each.payload)), str(each.tries)
            table.add_row(
                each.segment, str(each.position), str(each.table_id), size, tries, _time(each), Text(each.reason)
            )
    else:
        table.add_column("where", overflow="fold", max_width=max(20, console.width // 2))
        table.add_column("why", overflow="fold")
        for each in found:
            table.add_row(f"{each.segment}, position {each.position}", Text(f"{each.reason} (tries: {each.tries})"))
    console.print(table)
    segments = len({each.segment_id for each in found})
    console.print(f"{len(found)} parked, of {segments} segment{'' if segments == 1 else 's'}, which stay in cdc_raw")


def _time(parked: ParkedMutation) -> str:
    return datetime.fromtimestamp(parked.parked_at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
