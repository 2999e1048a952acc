"""`cdc sandbox up | status | down`: real servers on this machine, for as long as the user wants them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click
import platformdirs

from cdc.progress import progress_display
from cdc.sandbox.addresses import MAX_NODES
from cdc.sandbox.options import SandboxOptions
from cdc.sandbox.running import ServerStatus, server_statuses, take_down
from cdc.sandbox.sandbox import Sandbox
from cdc.sandbox.versions import CASSANDRA_VERSIONS
from schemas.errors import ConfigError

__all__ = ["sandbox"]

_dir_option = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=platformdirs.user_data_path("cassandra-cdc", appauthor=False) / "sandbox",
    show_default=True,
    help="Folder of the sandbox: data, logs, configuration.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")


@click.group()
def sandbox() -> None:
    """Start real Cassandra and Pulsar servers without Docker.

    They come from Maven Central, run on this machine's Java 17 and listen on loopback addresses of their own, so that
    several sandboxes can run side by side, each in its own folder.
    """


@sandbox.command()
@click.option("--cassandra", type=click.Choice(list(CASSANDRA_VERSIONS)), default="5.0", show_default=True)
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

    On a folder that was used before they start on its data.
    """
    folder = folder.absolute()
    _check_folder(folder)
    options = SandboxOptions(cassandra=cassandra, nodes=nodes, commitlog_sync_ms=commitlog_sync_ms)
    started = time.monotonic()
    with progress_display(quiet=as_json) as on_progress:
        servers = Sandbox(options, base_dir=folder, on_progress=on_progress)
        servers.start()
        servers.detach()
    start_s = round(time.monotonic() - started, 1)
    statuses = server_statuses(folder)
    if as_json:
        click.echo(json.dumps({"dir": str(folder), "start_s": start_s, "servers": _as_objects(statuses)}))
        return
    _print(statuses)
    click.echo(f"ready in {start_s} s; end it with: cdc sandbox down --dir {folder}")


@sandbox.command()
@_dir_option
@_json_option
def status(folder: Path, as_json: bool) -> None:
    """List the servers. Exit code 0 if all are ready, else 1."""
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
    """End the servers; no process and no port is left. The data stays, unless --remove."""
    folder = folder.absolute()
    ended = take_down(folder, remove=remove)
    if as_json:
        click.echo(json.dumps({"dir": str(folder), "ended": ended}))
    else:
        click.echo(f"{ended} server{'' if ended == 1 else 's'} ended" if ended else f"nothing runs in {folder}")


def _check_folder(folder: Path) -> None:
    """A folder that holds something else is no place for a sandbox: `down --remove` would remove that as well."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in {"logs", "lock"})
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
    """One block a server, a line a fact: it stays readable on the narrowest terminal."""
    for status in statuses:
        server = status.server
        pid = "" if status.condition == "stopped" else f", pid {_pid(status)}"
        ports = ", ".join(f"{name} {port}" for name, port in server.ports.items())
        click.echo(f"{server.name} {server.version}: {status.condition}{pid}")
        for name, value in {"ports": f"{ports} on {server.address}", **server.details, "log": server.log}.items():
            click.echo(f"  {name}: {value}")
