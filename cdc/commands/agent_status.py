"""`cdc agent status`: one screen about the agent of this machine, from the file that it writes each second."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, cast

import click

from cdc.commands.agent_options import config_option
from change_agent.configuration.config import AgentConfig
from schemas.errors import CdcError

__all__ = ["render", "status"]

# An agent writes the file each second: one that is older was written by an agent that does not run (well).
_STALE_S: Final = 10.0
_WIDTH: Final = 80
_TOPICS_SHOWN: Final = 8

Status = Mapping[str, object]


class NoStatusError(CdcError):
    """No agent has written a status there."""


@click.command(name="status")
@config_option
@click.option("--working-dir", type=click.Path(path_type=Path), help="The agent's cdcWorkingDir, instead of --config.")
@click.option("--json", "as_json", is_flag=True, help="The file itself: one JSON object.")
def status(path: Path | None, working_dir: Path | None, as_json: bool) -> None:
    """Say how the agent is doing: position, lag, rates, topics, what is parked. Exit code 1 when it does not run."""
    directory = AgentConfig.load(path).cdc_working_dir if working_dir is None else working_dir
    content = _read(directory / "status.json")
    if as_json:
        click.echo(json.dumps(content, indent=1))
    else:
        click.echo("\n".join(render(content, time.time())))
    if _age_s(content, time.time()) > _STALE_S:
        raise click.exceptions.Exit(1)


def _read(path: Path) -> Status:
    try:
        return cast("Status", json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise NoStatusError(f"{path} is not there: no agent ever ran with this working directory") from error
    except (OSError, ValueError) as error:
        raise NoStatusError(f"{path} cannot be read ({error})") from error


def _age_s(content: Status, now_s: float) -> float:
    return now_s - datetime.fromisoformat(str(content["time"])).timestamp()


def render(content: Status, now_s: float) -> list[str]:
    """The screen, in lines of at most 80 characters."""
    return [line[:_WIDTH] for line in _lines(content, now_s)]


def _lines(content: Status, now_s: float) -> Iterator[str]:
    progress, metrics = _part(content, "progress"), _part(content, "metrics")
    age_s = _age_s(content, now_s)
    state = "runs" if age_s <= _STALE_S else f"DOES NOT RUN, seen {_duration(age_s)} ago"
    yield f"agent      {state}, pid {content['pid']}, since {str(content['started'])[:16].replace('T', ' ')} UTC"
    yield f"node       {content['node_id'] or 'not known yet'}"
    if content["cassandra_problem"]:
        yield f"           ! {content['cassandra_problem']}"
    segments = _part(content, "segments")
    position = ", ".join(f"{each}:{place}" for each, place in sorted(segments.items())[-2:])
    yield f"position   {position or 'no open segment'}" + (f"  ({len(segments)} open)" if len(segments) > 2 else "")
    yield f"lag        {_bytes(_number(progress['lag_bytes']))}, {_duration(_number(progress['lag_s']))}" + (
        f"  ! no movement for {_duration(_number(progress['stuck_s']))}" if _number(progress["stuck_s"]) > 5 else ""
    )
    yield (
        f"rates      {_number(progress['events_per_s']):,.0f} events/s, {_bytes(_number(progress['bytes_per_s']))}/s read;"
        f" {_number(metrics['events_acknowledged']):,.0f} events since the start"
    )
    yield from _trouble(metrics)
    yield _disk(metrics)
    yield from _topics(_part(content, "topics"))
    if content["http"]:
        yield f"http       http://{content['http']}/metrics  /healthz  /readyz"


def _trouble(metrics: Mapping[str, object]) -> Iterator[str]:
    names = {
        "parked": "parked (cdc parked)",
        "events_too_large": "events too large",
        "corrupt_entries": "wrong checksums",
        "segments_unreadable": "unreadable segments",
        "segments_gone_unread": "SEGMENTS LOST",
        "ignored_files": "foreign files",
        "send_errors": "sends repeated",
    }
    found = [f"{_number(metrics.get(name, 0)):,.0f} {text}" for name, text in names.items() if metrics.get(name)]
    yield f"trouble    {', '.join(found) or 'none'}"


def _disk(metrics: Mapping[str, object]) -> str:
    used, limit = _number(metrics["cdc_raw_bytes"]), _number(metrics["cdc_raw_limit_bytes"])
    seconds, spilled = _number(metrics["cdc_raw_seconds_to_full"]), _number(metrics["spilled_bytes"])
    of_limit = f" of {_bytes(limit)}" if limit else ""
    forecast = f"! full in {_duration(seconds)}" if seconds >= 0 else "not filling up"
    return f"cdc_raw    {_bytes(used)}{of_limit}, {forecast}" + (f"; {_bytes(spilled)} spilled" if spilled else "")


def _topics(topics: Mapping[str, object]) -> Iterator[str]:
    states = {table: cast("Mapping[str, object]", each) for table, each in topics.items()}
    failing = {table: each for table, each in states.items() if not each["is_usable"] or each["problem"]}
    yield f"topics     {len(states) - len(failing)} of {len(states)} usable"
    for table, each in list(failing.items())[:_TOPICS_SHOWN]:
        yield f"  ! {table}: {_number(each['waiting_events']):,.0f} wait, {_bytes(_number(each['held_bytes']))} held"
        yield f"      {each['problem'] or 'is being opened'}"
    if len(failing) > _TOPICS_SHOWN:
        yield f"  ! and {len(failing) - _TOPICS_SHOWN} more (--json lists all)"


def _part(content: Status, name: str) -> Mapping[str, object]:
    return cast("Mapping[str, object]", content[name])


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6_000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
