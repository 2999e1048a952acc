"""`cdc agent status`: one screen about the agent on this machine, from the file that it writes each second."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from cdc.commands.agent_options import config_option, working_dir_option
from cdc.health.agent_status import AgentStatus, NoStatusError
from cdc.health.findings import Finding, Level, as_bytes, as_duration
from cdc.health.local_agents import local_agents, without_status
from cdc.health.screen import console
from change_agent.configuration.config import AgentConfig

__all__ = ["render", "status"]

_INDENT: Final = 11
_IN_SIGHT_S: Final = 86_400


@click.command(name="status")
@config_option
@working_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print the status file: one JSON object.")
def status(path: Path | None, working_dir: Path | None, as_json: bool) -> None:
    """Show the state of the agent: position, lag, rates, topics, problems and remedies. Exit code 1 for a problem.

    \b
    cdc agent status --config agent.yaml
    cdc agent status --working-dir /var/lib/cassandra-cdc --json
    """
    directory = AgentConfig.working_dir_of(path) if working_dir is None else working_dir
    found, now_s = _status_of(directory), time.time()
    findings = list(found.findings(now_s))
    if as_json:
        click.echo(json.dumps(found.content, indent=1))
    else:
        click.echo("\n".join(render(found, findings, now_s, console().width)))
    if any(each.level is Level.FAILURE for each in findings):
        raise click.exceptions.Exit(1)


def render(status: AgentStatus, findings: Sequence[Finding], now_s: float, width: int = 80) -> list[str]:
    """The lines of the screen, wrapped at this width."""
    lines = []
    for label, text in _lines(status, findings, now_s):
        lines += textwrap.wrap(
            text,
            max(20, width),
            initial_indent=label.ljust(_INDENT),
            subsequent_indent=" " * _INDENT,
            break_on_hyphens=False,
        )
    return lines


def _status_of(directory: Path) -> AgentStatus:
    """Read the status. Raises NoStatusError, also if an agent runs and the status is that of a process before it."""
    try:
        found = AgentStatus.of_folder(directory)
        if found.is_current(time.time()) or found.process_exists:
            return found
    except NoStatusError as error:
        found, problem = None, error
    if text := without_status(directory, local_agents()):
        raise NoStatusError(text, "see its log")
    if found is None:
        raise problem
    return found


def _lines(status: AgentStatus, findings: Sequence[Finding], now_s: float) -> Iterator[tuple[str, str]]:
    content = status.content
    if status.is_current(now_s):
        yield "agent", f"runs, pid {content['pid']}, since {_minute(content['started'])} UTC"
        yield "node", _node(status, "not known yet")
        yield "position", _position(status)
        yield from _now(status)
    else:
        # The last values are old: only those are shown that do not change while the agent does not run.
        yield "agent", f"pid {content['pid']}: NO CURRENT STATUS" if status.process_exists else "DOES NOT RUN"
        yield "node", _node(status, "not known")
        yield "position", f"{_position(status)}, at {_minute(content['time'])} UTC"
    troubles = [each for each in findings if each.level is not Level.OK]
    yield "trouble", "none" if not troubles else f"{len(troubles)}:"
    for each in troubles:
        yield ("  X" if each.level is Level.FAILURE else "  !"), each.text
        yield "", f"-> {each.remedy}"


def _now(status: AgentStatus) -> Iterator[tuple[str, str]]:
    stuck_s = status.progress("stuck_s")
    yield (
        "lag",
        f"{as_bytes(status.progress('lag_bytes'))}, {as_duration(status.progress('lag_s'))}"
        + (f"; no movement for {as_duration(stuck_s)}" if stuck_s > 5 else ""),
    )
    yield (
        "rates",
        (
            f"{status.progress('events_per_s'):,.0f} events/s, {as_bytes(status.progress('bytes_per_s'))}/s read;"
            f" {status.number('events_acknowledged'):,.0f} events since the start"
        ),
    )
    yield "cdc_raw", _disk(status)
    usable = sum(bool(each["is_usable"]) and not each["problem"] for each in status.topics.values())
    count = len(status.topics)
    yield (
        "topics",
        f"{usable} of {count} usable" if count else "none opened, because no event was published since the start",
    )
    if status.content["http"]:
        yield "http", f"http://{status.content['http']}/metrics  /status  /healthz  /readyz"


def _node(status: AgentStatus, unknown: str) -> str:
    if status.node_id is not None:
        return status.node_id
    return f"{unknown}; contact points {status.node}" if status.node else unknown


def _position(status: AgentStatus) -> str:
    segments = status.content["segments"]
    assert isinstance(segments, dict)
    position = ", ".join(f"{each}:{place}" for each, place in sorted(segments.items())[-2:])
    return (position or "no open segment") + (f"  ({len(segments)} open)" if len(segments) > 2 else "")


def _disk(status: AgentStatus) -> str:
    used, limit = status.number("cdc_raw_bytes"), status.number("cdc_raw_limit_bytes")
    seconds, spilled = status.number("cdc_raw_seconds_to_full"), status.number("spilled_bytes")
    of_limit = f" of {as_bytes(limit)}" if limit else ""
    forecast = f"full in {as_duration(seconds)}" if 0 <= seconds < _IN_SIGHT_S else "not filling up"
    return f"{as_bytes(used)}{of_limit}, {forecast}" + (f"; {as_bytes(spilled)} spilled" if spilled else "")


def _minute(time: object) -> str:
    return str(time)[:16].replace("T", " ")
