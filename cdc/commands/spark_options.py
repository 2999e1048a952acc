"""What the Spark commands share: their options, the session, how an error of Spark is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from schemas.errors import CdcError, ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "BROKER_OPTIONS",
    "SESSION_OPTIONS",
    "TOPIC_OPTION",
    "SparkJobError",
    "cassandra_options",
    "check_topics",
    "may_be_iceberg",
    "named",
    "open_session",
    "reason",
    "together",
]

_OPTIONS_HELP = "An option of the data source cassandra_cdc, NAME=VALUE (docs/spark.md); may be given many times."


_Command: TypeAlias = Callable[..., Any]


class SparkJobError(CdcError):
    """A Spark job ended with an error; the text is Spark's reason in one line."""


def together(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Options that several commands share, as one decorator."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


TOPIC_OPTION = click.option("--topic", required=True, help="The table's data topic.")
BROKER_OPTIONS = together(
    click.option("--service-url", required=True, help="The broker: pulsar://host:6650."),
    click.option("--admin-url", required=True, help="The admin service: http://host:8080."),
)
_CASSANDRA_OPTIONS = together(
    click.option("--table", required=True, metavar="KEYSPACE.TABLE", help="The table in Cassandra."),
    click.option("--contact-point", "contact_points", required=True, multiple=True, help="A node of Cassandra."),
    click.option("--port", default=9042, show_default=True, help="Cassandra's CQL port."),
    click.option("--local-dc", help="The data center to read from."),
    click.option("--username", help="Cassandra's user; the password is read from CDC_CASSANDRA_PASSWORD."),
    click.option("--consistency", default="LOCAL_QUORUM", show_default=True, help="Consistency level of the reads."),
    click.option("--tls", is_flag=True, help="Connect to Cassandra with TLS; implied by the options --tls-*."),
    click.option("--tls-trusted", metavar="FILE", help="Trusted certificates in PEM; by default the system's."),
    click.option("--tls-certificate", metavar="FILE", help="The client's certificate in PEM, if nodes require one."),
    click.option("--tls-key", metavar="FILE", help="Its key."),
    click.option("--tls-any-hostname", is_flag=True, help="The node's certificate need not name its address."),
)
SESSION_OPTIONS = together(
    click.option("--option", "-o", "more", multiple=True, metavar="NAME=VALUE", help=_OPTIONS_HELP),
    click.option(
        "--jars", multiple=True, type=click.Path(path_type=Path, exists=True), help="Jars to use instead of packages."
    ),
    click.option("--master", help="Spark's master; by default local[*], or that of spark-submit."),
)


def cassandra_options(command: _Command) -> _Command:
    """The options that say where Cassandra is; the command gets them as `access`."""

    @wraps(command)
    def with_access(
        *,
        contact_points: tuple[str, ...],
        port: int,
        local_dc: str | None,
        username: str | None,
        consistency: str,
        tls: bool,
        tls_trusted: str | None,
        tls_certificate: str | None,
        tls_key: str | None,
        tls_any_hostname: bool,
        **others: object,
    ) -> object:
        from spark_bridge.jobs.cassandra_rows import CassandraAccess
        from spark_bridge.jobs.cassandra_tls import CassandraTls

        wanted = tls or tls_any_hostname or any((tls_trusted, tls_certificate, tls_key))
        encryption = CassandraTls(
            trusted=tls_trusted, certificate=tls_certificate, key=tls_key, verify_hostname=not tls_any_hostname
        )
        access = CassandraAccess(
            contact_points=contact_points,
            port=port,
            local_dc=local_dc,
            username=username,
            password=os.environ.get("CDC_CASSANDRA_PASSWORD"),
            tls=encryption if wanted else None,
            consistency=consistency,
        )
        return command(access=access, **others)

    return _CASSANDRA_OPTIONS(with_access)


def named(texts: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` texts by name. Raises ConfigError."""
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise ConfigError.of("--option", f"{wrong[0]!r} is not NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def may_be_iceberg(target: str) -> bool:
    """Whether the tables below a mirror's folder are Iceberg's, or may be, as it cannot be told before Spark has started."""
    from spark_bridge.jobs.mirror_state import known_format
    from spark_bridge.spark_line import HAS_ICEBERG

    try:
        return known_format(target) == "iceberg"
    except (OSError, ValueError):
        return HAS_ICEBERG


def check_topics(options: Mapping[str, str]) -> None:
    """Ask the admin service for the data topics before Spark starts, which takes a minute on a small machine.

    Raises ConfigError, TopicError and PulsarUnreachableError.
    """
    from spark_bridge.topics.admin import PulsarAdmin
    from spark_bridge.topics.options import BridgeOptions

    with PulsarAdmin(BridgeOptions.from_mapping(options)) as admin:
        for partition in admin.topic_partitions():
            admin.ledgers(partition)


def open_session(jars: tuple[Path, ...], master: str | None, *, iceberg: bool = False) -> SparkSession:
    """A session with Delta Lake, and Iceberg if asked; under spark-submit the master is what that says. Raises SparkJobError."""
    from pyspark.errors import PySparkRuntimeError

    from spark_bridge import session_builder

    builder = session_builder(jars, delta=True, iceberg=iceberg).config("spark.ui.showConsoleProgress", "false")
    if master or "SPARK_ENV_LOADED" not in os.environ:  # spark-submit has set the master
        builder = builder.master(master or "local[*]")
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        java = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {java}" if java else "JAVA_HOME is not set"
        text = f"Spark's Java did not start ({where}); install a JDK 17, or set JAVA_HOME to one: {reason(str(error))}"
        raise SparkJobError(text) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def reason(text: str) -> str:
    """Our own line of a Python traceback that Spark passes on, else Spark's first line."""
    ours = [line for line in text.splitlines() if line.startswith(("spark_bridge.errors.", "schemas.errors."))]
    return ours[-1].split(": ", 1)[1] if ours else text.splitlines()[0]
