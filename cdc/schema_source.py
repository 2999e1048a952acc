"""The schema for `cdc decode`: from a file, or from a node. A node's schema can be saved as such a file.

The file is a JSON object with lists of rows, as `SELECT` from `system_schema` returns them: sets and lists as arrays,
maps as objects, uuids as text, blobs as hex, times as ISO 8601 in UTC ending in Z.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from change_agent.schema.schema_history import read_newest_tables
from change_agent.sqlite_file import DamagedFileError
from clients.node_errors import one_line
from schemas.archived_schema import ArchivedSchema, ArchivedSchemaError
from schemas.errors import CdcError, ConfigError
from schemas.system_schema import SELECTS, SystemSchema, SystemSchemaError, plain_row, tables_of
from schemas.table_metadata import TableMetadata

if TYPE_CHECKING:
    from cassandra.cluster import Session

__all__ = ["ContactPoint", "SchemaFetchError", "fetch_schema", "load_schema", "parse_contact_point", "save_schema"]

_DEFAULT_PORT: Final = 9042
_CONNECT_TIMEOUT_S: Final = 10.0
# The first bytes of a SQLite file.
_SQLITE: Final = b"SQLite format 3\0"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

ContactPoint = tuple[str, int]


class SchemaFetchError(CdcError):
    """A node does not return its schema. The text says which node, and why."""


def load_schema(path: Path) -> dict[UUID, TableMetadata]:
    """The tables of a schema file, of an agent's `schema.sqlite` or of an archive's `schema-history.json`, by id.

    Raises ConfigError, also when the rows make no schema.
    """
    try:
        content = path.read_bytes()
        if content.startswith(_SQLITE):
            return read_newest_tables(path)
        decoded: object = json.loads(content)
    except (DamagedFileError, SystemSchemaError) as error:
        raise ConfigError.of("--schema", f"{path} is no whole schema history ({error})") from error
    except OSError as error:
        raise ConfigError.of("--schema", f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError.of("--schema", f"{path} is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise ConfigError.of("--schema", f"{path} must hold an object with the lists {', '.join(SELECTS)}")
    try:
        if "definitions" in decoded:
            return _newest_tables(ArchivedSchema.of_text(content))
        return tables_of(decoded)
    except (ArchivedSchemaError, SystemSchemaError) as error:
        raise ConfigError.of("--schema", f"{path}: {error}") from error


def _newest_tables(schema: ArchivedSchema) -> dict[UUID, TableMetadata]:
    # Sorted by time, so that the newest definition of each table remains.
    definitions = sorted(schema.definitions, key=lambda each: each.key)
    return {each.table_id: tables_of(each.rows)[each.table_id] for each in definitions}


def save_schema(schema: SystemSchema, path: Path) -> None:
    """Write a schema file. Raises ConfigError when the file cannot be written."""
    try:
        path.write_text(json.dumps(schema, indent=1) + "\n")
    except OSError as error:
        raise ConfigError.of("--write-schema", f"cannot write {path}: {error.strerror}") from error


def parse_contact_point(text: str) -> ContactPoint:
    """`HOST`, `HOST:PORT`, `[v6 address]:PORT` or a bare v6 address. Raises ConfigError."""
    host, separator, port = text.rpartition(":")
    if not separator or (":" in host and not host.endswith("]")):
        host, port = text, str(_DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 0x10000:
        raise ConfigError.of("--contact-point", f"{text!r} is not HOST or HOST:PORT")
    return host, int(port)


def fetch_schema(contact_point: ContactPoint, credentials: tuple[str, str] | None = None) -> SystemSchema:
    """The rows of a node's `system_schema`, in the form of a schema file. Raises SchemaFetchError."""
    from clients.driver_errors import NO_ANSWER

    host, port = contact_point
    try:
        with _session(contact_point, credentials) as session:
            return {name: [_json_row(row) for row in session.execute(select)] for name, select in SELECTS.items()}
    except UnicodeError as error:  # a name such as `a..b`, which is not even looked up
        raise SchemaFetchError(f"{host!r} is no host name ({one_line(error)}); check --contact-point") from error
    except NO_ANSWER as error:
        raise SchemaFetchError(
            f"cannot read the schema from {host}:{port} (is the node up, is this its CQL port?): {one_line(error)}"
        ) from error


@contextmanager
def _session(contact_point: ContactPoint, credentials: tuple[str, str] | None) -> Iterator[Session]:
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import WhiteListRoundRobinPolicy
    from cassandra.query import dict_factory

    host, port = contact_point
    profile = ExecutionProfile(load_balancing_policy=WhiteListRoundRobinPolicy([host]), row_factory=dict_factory)
    with Cluster(
        [host],
        port=port,
        auth_provider=PlainTextAuthProvider(*credentials) if credentials else None,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connect_timeout=_CONNECT_TIMEOUT_S,
        control_connection_timeout=_CONNECT_TIMEOUT_S,
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
    ) as cluster:
        yield cluster.connect()


def _json_row(row: Mapping[str, object]) -> dict[str, object]:
    plain, time = plain_row(row), row.get("dropped_time")
    return {**plain, "dropped_time": _iso_time(time)} if isinstance(time, bytes) else plain


def _iso_time(blob: bytes) -> str:
    """The time as ISO 8601. The blob as hex if its number of milliseconds is beyond the calendar."""
    milliseconds = int.from_bytes(blob, "big", signed=True)
    try:
        return (_EPOCH + timedelta(milliseconds=milliseconds)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return blob.hex()
