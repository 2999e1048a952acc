"""The options that Spark commands share, and the checks of them before Spark starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from cdc.commands.given_options import refuse_without
from cdc.commands.spark_folders import local_folder
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from spark_bridge.jobs.cassandra_rows import CassandraAccess

__all__ = [
    "BROKER_OPTIONS",
    "MORE_OPTIONS",
    "TOPIC_OPTION",
    "WRITTEN",
    "Command",
    "as_given",
    "cassandra_options",
    "check_broker",
    "check_mirror",
    "check_table",
    "check_topics",
    "cluster_options",
    "counted",
    "has_no_mirror",
    "may_be_iceberg",
    "named",
    "optional_cluster_options",
    "read_options",
    "resolved_ms",
    "together",
]

_UNREAD: Final = "unread"
_OPTIONS_HELP = "An option of the data source cassandra_cdc, NAME=VALUE (docs/spark.md); may be given many times."
_OF_TABLE: Final = "Table "

Command: TypeAlias = Callable[..., Any]
"""A function that click calls with the values of the options."""


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Options that several commands share, as one decorator."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


TOPIC_OPTION = click.option("--topic", required=True, help="The table's data topic.")
BROKER_OPTIONS = together(
    click.option("--service-url", required=True, help="The broker: pulsar://host:6650."),
    click.option("--admin-url", required=True, help="The admin service: http://host:8080."),
)
WRITTEN: Final = {"serviceUrl": "--service-url", "adminUrl": "--admin-url", "topic": "--topic"}
"""By name of an option of the data source: the option of a command that gives it."""
_GIVEN_AS: Final = {
    **WRITTEN,
    **{
        name: f"--{name}"
        for name in ("consistency", "format", "mirror", "sample", "table", "target", "tokens", "where")
    },
    **{f"tls.{name}": f"--tls-{name}" for name in ("trusted", "certificate", "key")},
}
"""By name of an argument of a job: the option of a command that gives it."""
_TABLE_OPTION = click.option("--table", required=True, metavar="KEYSPACE.TABLE", help="The table in Cassandra.")
_CONTACT_POINT = ("--contact-point", "contact_points")
# Parameters of the options below that only the connection uses.
_ACCESS: Final = (
    "port",
    "local_dc",
    "username",
    "consistency",
    "tls",
    "tls_trusted",
    "tls_certificate",
    "tls_key",
    "tls_any_hostname",
)
_CASSANDRA_OPTIONS = together(
    click.option(
        "--port", default=9042, show_default=True, type=click.IntRange(1, 65535), help="Cassandra's CQL port."
    ),
    click.option("--local-dc", help="The data center to read from."),
    click.option("--username", help="Cassandra's user; the password is read from CDC_CASSANDRA_PASSWORD."),
    click.option("--consistency", default="LOCAL_QUORUM", show_default=True, help="Consistency level of the reads."),
    click.option("--tls", is_flag=True, help="Connect to Cassandra with TLS; implied by the options --tls-*."),
    click.option("--tls-trusted", metavar="FILE", help="Trusted certificates in PEM; by default the system's."),
    click.option("--tls-certificate", metavar="FILE", help="The client's certificate in PEM, if nodes require one."),
    click.option("--tls-key", metavar="FILE", help="The private key of --tls-certificate, in PEM."),
    click.option("--tls-any-hostname", is_flag=True, help="The node's certificate need not name its address."),
)
MORE_OPTIONS = click.option("--option", "-o", "more", multiple=True, metavar="NAME=VALUE", help=_OPTIONS_HELP)


def cassandra_options(command: Command) -> Command:
    """Add the options for the connection to Cassandra and the table. The command gets the connection as `access`."""
    return _TABLE_OPTION(cluster_options(command))


def cluster_options(command: Command) -> Command:
    """Add the options for the connection to Cassandra. The command gets them as `access`."""
    point = click.option(
        *_CONTACT_POINT, required=True, multiple=True, help="A node of Cassandra; may be given many times."
    )
    return point(_CASSANDRA_OPTIONS(_with_access(command)))


def optional_cluster_options(command: Command) -> Command:
    """Add the same options to a command that may run without Cassandra: `access` is None without a contact point."""
    point = click.option(
        *_CONTACT_POINT, multiple=True, help="With --resync: a node of Cassandra; may be given many times."
    )
    return point(_CASSANDRA_OPTIONS(_with_access(command)))


def _with_access(command: Command) -> Command:
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

        if not contact_points:
            refuse_without(_CONTACT_POINT[0], *_ACCESS)
            return command(access=None, **others)
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

    return with_access


def counted(count: int, noun: str) -> str:
    """A number of things as text: `1 record`, `2,000 records`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def named(texts: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` texts by name. Raises ConfigError."""
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise ConfigError.of("--option", f"{wrong[0]!r} is not NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def read_options(service_url: str, admin_url: str, more: tuple[str, ...], **others: str | None) -> dict[str, str]:
    """The data source's options for a batch read. Options in `others` that are None are left out. Raises ConfigError.

    `more` may be the options of the table's mirror: limits of micro-batches and a checkpoint are left out.
    """
    from spark_bridge.topics.options import batch_options

    given = {name: each for name, each in others.items() if each is not None}
    return batch_options({"serviceUrl": service_url, "adminUrl": admin_url, **given, **named(more)})


def may_be_iceberg(target: str) -> bool:
    """Return True if the tables below a mirror's folder are Iceberg's.

    Also True if their format is not known before Spark has started, and this Spark can have Iceberg.
    """
    from spark_bridge.spark_line import HAS_ICEBERG

    found = _format_before_spark(target)
    return HAS_ICEBERG if found == _UNREAD else found == "iceberg"


def has_no_mirror(target: str) -> bool:
    """Return True if no mirror has run with this target. False if only Spark may be able to read the folder."""
    return _format_before_spark(target) is None


def check_mirror(target: str | None, option: str = "--mirror") -> None:
    """Raise ConfigError if no mirror has run with this target, as far as this Python can read its folder."""
    from spark_bridge.jobs.mirror_state import no_mirror_reason

    if target is not None and has_no_mirror(target):
        raise ConfigError.of(option, no_mirror_reason(target))


def _format_before_spark(target: str) -> str | None:
    """The format of a mirror's tables; None without a mirror, `_UNREAD` if only Spark may be able to read the folder."""
    from spark_bridge.jobs.mirror_state import known_format

    try:
        found = known_format(target)
    except (OSError, ValueError, AttributeError):
        return _UNREAD
    # Elsewhere, Spark may have another default file system, or the credentials that this Python lacks.
    return _UNREAD if found is None and local_folder(target) is None else found


def check_topics(options: Mapping[str, str]) -> None:
    """Ask the admin service for the data topics before Spark starts, which takes a minute on a small machine.

    Raises ConfigError, TopicError (also for a topic without records of key and value) and PulsarUnreachableError.
    """
    from spark_bridge.reading.planning import refuse_other_records
    from spark_bridge.topics.admin import PulsarAdmin
    from spark_bridge.topics.options import BridgeOptions

    with PulsarAdmin(BridgeOptions.from_mapping(options, WRITTEN)) as admin:
        for partition in admin.topic_partitions():
            admin.ledgers(partition)
        refuse_other_records(admin, admin.topics())


def check_broker(options: Mapping[str, str], *, needs_topic: bool = True) -> None:
    """Connect to the broker before Spark starts. Pulsar's client would try for half a minute, and log each attempt.

    `needs_topic`: the options must name a topic. Raises ConfigError and PulsarUnreachableError.
    """
    from spark_bridge.topics.broker_connection import check_answer
    from spark_bridge.topics.options import BridgeOptions

    parse = BridgeOptions.from_mapping if needs_topic else BridgeOptions.without_topic
    check_answer(parse(options, WRITTEN))


def check_table(access: CassandraAccess, keyspace: str, name: str, options: Mapping[str, str] | None = None) -> None:
    """Ask Cassandra for the table before Spark starts. With options, also check that their topic has its records.

    Raises ConfigError, CassandraReadError, TopicError and PulsarUnreachableError.
    """
    from spark_bridge.jobs.cassandra_rows import table_metadata
    from spark_bridge.topics.options import BridgeOptions
    from spark_bridge.topics.topic_schemas import TopicSchemas

    try:
        table = table_metadata(access, keyspace, name)
    except ConfigError as error:
        raise as_given(error) from error
    if options is None:
        return
    topic = TopicSchemas.fetch(BridgeOptions.from_mapping(options, WRITTEN))
    said = str(topic.newest.key.get("doc", ""))  # as the connector writes it: `Table shop.orders`
    if said.startswith(_OF_TABLE) and said != f"{_OF_TABLE}{table.full_name}":
        reason = f"{topic.topic} has the records of {said.removeprefix(_OF_TABLE)}, not of {table.full_name}"
        raise ConfigError.of("--topic", reason)


def resolved_ms(options: Mapping[str, str]) -> int | None:
    """The time until which the topic of the options is complete, in milliseconds since the epoch; None if not known.

    Raises ConfigError.
    """
    from spark_bridge.errors import SparkBridgeError
    from spark_bridge.topics.options import BridgeOptions
    from spark_bridge.topics.resolved import ResolvedTimestamps, table_of

    parsed = BridgeOptions.from_mapping(options, WRITTEN)
    try:
        with ResolvedTimestamps(parsed) as timestamps:
            return timestamps.read(table_of(parsed)).resolved_ms
    except SparkBridgeError:
        return None


def as_given(error: ConfigError) -> ConfigError:
    """The same error, with the names by which a command gives the arguments of jobs."""
    return ConfigError([replace(each, option=_GIVEN_AS.get(each.option, each.option)) for each in error.problems])
