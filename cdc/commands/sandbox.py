"""`cdc sandbox up | status | start | stop | kill | down`: real servers on this machine, until the user ends them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click
import platformdirs

from cdc.health.pulsar_service import PulsarServiceError
from cdc.health.source_keeper import wait_for_sources
from cdc.health.this_line import line_of
from cdc.helpful_group import HelpfulGroup
from cdc.progress import progress_display
from cdc.sandbox import artifacts
from cdc.sandbox.addresses import MAX_NODES
from cdc.sandbox.detached import PULSAR, DetachedServer, detached_server
from cdc.sandbox.options import SandboxOptions
from cdc.sandbox.running import ServerStatus, foreign_files, server_statuses, take_down
from cdc.sandbox.sandbox import Sandbox
from cdc.sandbox.versions import CASSANDRA_VERSIONS
from schemas.errors import ConfigError

__all__ = ["sandbox"]

# Each server has answered once before `up` lists them all. On a busy machine one may be silent for some seconds.
_PATIENCE_S: Final = 60.0
# What the servers, and the demo's job in Spark, need beside Cassandra itself.
_FOR_EVERY_LINE: Final = ("jolokia", "pulsar", "spark-avro")
_dir_option = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=platformdirs.user_data_path("cassandra-cdc", appauthor=False) / "sandbox",
    show_default="cassandra-cdc/sandbox in the user's data folder",
    help="Folder of the sandbox: data, logs, configuration.",
)
_cassandra_option = click.option(
    "--cassandra",
    type=click.Choice(list(CASSANDRA_VERSIONS)),
    default="5.0",
    show_default=True,
    help="Version of Cassandra.",
)
_name_argument = click.argument("name")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")


@click.group(cls=HelpfulGroup)
def sandbox() -> None:
    """Start real Cassandra and Pulsar servers without Docker.

    The servers come from Maven Central, and run on this machine's Java 17. Each sandbox has its own folder and its own
    loopback addresses, so several sandboxes can run side by side.
    """


@sandbox.command()
@_cassandra_option
@click.option("--nodes", type=click.IntRange(1, MAX_NODES), default=1, show_default=True, help="Cassandra nodes.")
@_dir_option
@click.option(
    "--commitlog-sync-ms",
    type=click.IntRange(1, 600_000),
    default=200,
    show_default=True,
    help="How often Cassandra syncs its commit log; a change waits for the next sync.",
)
@_json_option
def up(cassandra: str, nodes: int, folder: Path, commitlog_sync_ms: int, as_json: bool) -> None:
    """Start the servers, and leave them running until `cdc sandbox down`.

    If the folder was used before, the servers start on its data, and so do the sources that were deployed there. The command
    waits for the sources, and restarts those that Pulsar's functions worker gave up.

    \b
    cdc sandbox up
    cdc sandbox up --cassandra 4.0 --nodes 2 --dir /tmp/other
    """
    folder = folder.absolute()
    _check_folder(folder)
    options = SandboxOptions(cassandra=cassandra, nodes=nodes, commitlog_sync_ms=commitlog_sync_ms)
    started = time.monotonic()
    with progress_display(quiet=as_json) as on_progress:
        servers = Sandbox(options, base_dir=folder, on_progress=on_progress)
        servers.start()
        servers.detach()
        sources = _wait_for_sources(folder)
    start_s = round(time.monotonic() - started, 1)
    statuses = server_statuses(folder, patience_s=_PATIENCE_S)
    if as_json:
        found = {"dir": str(folder), "start_s": start_s, "servers": _as_objects(statuses), "sources": sources}
        click.echo(json.dumps(found))
        return
    _print(statuses)
    _print_sources(sources)
    click.echo(f"ready in {start_s} s; end it with: cdc sandbox down --dir {folder}")


@sandbox.command()
@_cassandra_option
def fetch(cassandra: str) -> None:
    """Download the servers, and Spark's jars for `cdc demo`, before the first start would do it.

    What the cache has is not downloaded again.

    \b
    cdc sandbox fetch
    cdc sandbox fetch --cassandra 4.0
    """
    names = [f"cassandra-{cassandra}", *_FOR_EVERY_LINE]
    missing = [name for name in names if not artifacts.is_fetched(name)]
    if missing:
        click.echo(f"{', '.join(missing)}: downloading (once, some minutes on a slow network)", err=True)
    for name in missing:
        artifacts.ensure(name)
    click.echo(f"{', '.join(names)}: downloaded")


@sandbox.command()
@_name_argument
@_dir_option
@_json_option
def start(name: str, folder: Path, as_json: bool) -> None:
    """Start one server again, on its data and with its configuration as it is now.

    NAME is a name of `cdc sandbox status`. With Pulsar, its sources start as well: the command waits for them, and restarts
    those that the functions worker gave up.

    \b
    cdc sandbox start pulsar
    """
    folder = folder.absolute()
    sources: Mapping[str, str] = {}
    with detached_server(folder, name) as server, server.only_start():
        was_running = server.running
        if not was_running:
            server.start()
        state = "ready" if not was_running or server.ready else "unresponsive"
    if name == PULSAR:
        sources = _wait_for_sources(folder)
    if as_json:
        click.echo(json.dumps({"name": name, "state": state, "pid": server.pid, "sources": sources}))
        return
    already = "runs already" if state == "ready" else "runs already, and does not answer"
    click.echo(f"{name} {already if was_running else f'runs, pid {server.pid}'}")
    _print_sources(sources)


@sandbox.command()
@_name_argument
@_dir_option
@_json_option
def stop(name: str, folder: Path, as_json: bool) -> None:
    """Shut down one server (SIGTERM). Its data stays, and `cdc sandbox start` starts it again.

    \b
    cdc sandbox stop cassandra-1
    """
    _end(name, folder, DetachedServer.stop, "stopped", as_json=as_json)


@sandbox.command()
@_name_argument
@_dir_option
@_json_option
def kill(name: str, folder: Path, as_json: bool) -> None:
    """Kill one server as a crash would (SIGKILL), with the processes that it started. Its data stays.

    \b
    cdc sandbox kill cassandra-1
    """
    _end(name, folder, DetachedServer.kill, "killed", as_json=as_json)


@sandbox.command()
@_dir_option
@_json_option
def status(folder: Path, as_json: bool) -> None:
    """List the servers. Exit code 0 if all are ready, else 1.

    \b
    cdc sandbox status
    """
    folder = folder.absolute()
    statuses = server_statuses(folder)
    if as_json:
        click.echo(json.dumps({"dir": str(folder), "servers": _as_objects(statuses)}))
    elif statuses:
        _print(statuses)
    else:
        click.echo(f"no sandbox in {folder}")
    if not statuses or any(status.condition != "ready" for status in statuses):
        sys.exit(1)


@sandbox.command()
@_dir_option
@click.option("--remove", is_flag=True, help="Also remove the folder with all data.")
@_json_option
def down(folder: Path, remove: bool, as_json: bool) -> None:
    """Stop the servers; no process and no port is left. The data stays, unless --remove is given.

    \b
    cdc sandbox down
    cdc sandbox down --remove --dir /tmp/other
    """
    folder = folder.absolute()
    ended = take_down(folder, remove=remove)
    if as_json:
        click.echo(json.dumps({"dir": str(folder), "ended": ended}))
    else:
        click.echo(f"{ended} server{'' if ended == 1 else 's'} ended" if ended else f"nothing runs in {folder}")


def _wait_for_sources(folder: Path) -> Mapping[str, str]:
    """Wait for the sources of the sandbox's Pulsar. Return a text by source: empty, or why it does not run.

    If Pulsar does not answer, this is printed, and there is no text.
    """
    try:
        return wait_for_sources(line_of(None, folder), lambda line: click.echo(line, err=True))
    except PulsarServiceError as error:
        click.echo(f"the sources are not known: {error}", err=True)
        return {}


def _print_sources(sources: Mapping[str, str]) -> None:
    for name, trouble in sources.items():
        click.echo(f"source {name}: " + (f"does not run ({trouble}); see `cdc status`" if trouble else "runs"))


def _end(name: str, folder: Path, end: Callable[[DetachedServer], None], word: str, *, as_json: bool) -> None:
    with detached_server(folder.absolute(), name) as server:
        was_running = server.running
        end(server)
    text = json.dumps({"name": name, "state": "stopped", "was_running": was_running})
    click.echo(text if as_json else f"{name} {word if was_running else 'did not run'}")


def _check_folder(folder: Path) -> None:
    """Make the folder. Raise ConfigError if it has other files, because `down --remove` would remove them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = foreign_files(folder)
    except OSError as error:
        raise ConfigError.of("--dir", f"{folder} cannot be used: {error.strerror}") from error
    if foreign and not (folder / "sandbox.json").exists():
        raise ConfigError.of("--dir", f"{folder} holds other files ({foreign[0]}, ...); take a new or empty folder")


def _as_objects(statuses: list[ServerStatus]) -> list[dict[str, object]]:
    return [
        {
            "name": status.server.name,
            "version": status.server.version,
            "state": status.condition,
            "pid": _pid(status),
            "address": status.server.address,
            "ports": dict(status.server.ports),
            **status.server.details,
            "log": status.server.log,
        }
        for status in statuses
    ]


def _pid(status: ServerStatus) -> int | None:
    return status.server.process.pid if status.server.process and status.condition != "stopped" else None


def _print(statuses: list[ServerStatus]) -> None:
    """Print one block for each server, with one fact on each line, so that it is readable on a narrow terminal."""
    for status in statuses:
        server = status.server
        pid = "" if status.condition == "stopped" else f", pid {_pid(status)}"
        ports = ", ".join(f"{name} {port}" for name, port in server.ports.items())
        click.echo(f"{server.name} {server.version}: {status.condition}{pid}")
        for name, value in {"ports": f"{ports} on {server.address}", **server.details, "log": server.log}.items():
            click.echo(f"  {name}: {value}")
