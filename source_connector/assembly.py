"""Puts the stages together for a configuration."""

from __future__ import annotations

import itertools
import ssl
from typing import Final

from source_connector.configuration.config import SourceConfig
from source_connector.events.dead_letter_writer import DeadLetterWriter
from source_connector.events.events_consumer import EventsConsumer
from source_connector.events.expiry_topics import ExpiryTopics
from source_connector.events.mutation_cache import mutation_cache, native_changes
from source_connector.events.pulsar_access import PulsarConnection, PulsarOptions
from source_connector.events.pulsar_admin import PulsarAdmin
from source_connector.events.topic_reader import Subscription
from source_connector.host.host_connection import HostConnection
from source_connector.host.record import DataSchema
from source_connector.metrics import Metrics
from source_connector.rows.cassandra_client import CassandraClient, CassandraOptions
from source_connector.rows.last_rows import LastRows
from source_connector.rows.outbox import Outbox
from source_connector.rows.row_fetcher import RowFetcher
from source_connector.rows.task import Reading
from source_connector.source import CassandraSource, Inbox
from source_connector.stages import Limits, Stages
from source_connector.tables.data_partitions import DataPartitions
from source_connector.tables.data_topic_policies import DataTopicPolicies
from source_connector.tables.followed_table import SchemaStages
from source_connector.tables.newest_schema import NewestSchemas
from source_connector.tables.schema_changes import SchemaChangeTopic
from source_connector.tables.schema_queries import SchemaQueries
from source_connector.timers import Timers

__all__ = ["assemble", "cassandra_options"]

# Factor for the waiting events: about half of them are published already and only wait 0.2 s for their expiry to be
# stored.
_WITH_EXPIRIES: Final = 2


def assemble(
    config: SourceConfig,
    ssl_context: ssl.SSLContext | None,
    inbox: Inbox,
    host: HostConnection,
    output_topic: str,
    *,
    has_other_instances: bool = False,
) -> CassandraSource:
    """A source whose stages all post to the inbox; nothing is connected yet."""
    client = CassandraClient(cassandra_options(config, ssl_context))
    pulsar = _pulsar_options(config)
    connection = PulsarConnection(pulsar)
    timers = Timers()
    metrics = Metrics()
    admin = PulsarAdmin(config.pulsar_admin_url, pulsar) if config.pulsar_admin_url else None
    policies = DataTopicPolicies(admin, config.retention_minutes)
    newest = NewestSchemas(connection, output_topic, inbox.put)

    def check_schema(schema: DataSchema) -> None:
        """Check a schema. The registry has taken it, so its topic exists."""
        policies.follow(schema.topic or output_topic)
        newest.check(schema)

    stages = Stages(
        client=client,
        fetcher=RowFetcher(
            client,
            consistency=config.consistency,
            higher_consistency=config.higher_consistency,
            fallback_consistency=config.fallback_level,
            max_in_flight=config.max_reads_in_flight,
            metrics=metrics,
            post=inbox.put,
        ),
        cache=mutation_cache(
            max_capacity=config.cache_max_capacity,
            max_digests=config.cache_max_digests,
            expire_after_s=config.cache_expire_after_ms / 1000,
            native=native_changes(),
        ),
        outbox=Outbox(host),
        timers=timers,
        dead_letters=DeadLetterWriter(pulsar, config.dead_letters_topic, inbox.put),
        metrics=metrics,
        expiries=ExpiryTopics(connection, config.cache_max_capacity, client.clock.time_s, inbox.put)
        if config.publishes_expiry
        else None,
        last_rows=LastRows(config.cache_max_capacity) if config.suppress_unchanged else None,
        limits=Limits(
            range_deletions=config.range_deletions,
            backoff_s=config.backoff_ms / 1000,
            max_backoff_s=config.max_backoff_s,
            max_failures=config.max_failures,
            reading=Reading(proves=config.proves_reads, only_by_event_node=config.only_if_coordinator_match),
        ),
        output_topic=output_topic,
        is_shared=has_other_instances,
        schemas=SchemaStages(
            queries=SchemaQueries(inbox.put),
            changes=SchemaChangeTopic(connection, config.changes_topic, inbox.put),
            data_partitions=DataPartitions(connection, output_topic, inbox.put),
            send=host.send,
            check_schema=check_schema,
            new_schema_id=itertools.count(1).__next__,
            columns=config.columns,
            data_format=config.output_format,
            hidden=config.hidden,
            shortest_pause_s=config.backoff_ms / 1000,
        ),
    )
    return CassandraSource(
        inbox=inbox,
        host=host,
        consumer=EventsConsumer(
            connection,
            Subscription(
                name=config.subscription, datastax_type=config.subscription_type, is_shared=has_other_instances
            ),
            max_waiting_events=config.max_waiting_events * (_WITH_EXPIRIES if config.publishes_expiry else 1),
            post=inbox.put,
        ),
        stages=stages,
        selection=config.selection,
        policies=policies,
    )


def cassandra_options(config: SourceConfig, ssl_context: ssl.SSLContext | None) -> CassandraOptions:
    """How the driver reaches the cluster and logs in."""
    enters = config.auth_provider == "PLAIN"
    return CassandraOptions(
        contact_points=config.contact_points,
        port=config.port,
        local_dc=config.local_dc,
        read_timeout_s=config.read_timeout_s,
        username=config.auth_username if enters else None,
        password=config.auth_password.get_secret_value() if enters else None,
        ssl_context=ssl_context,
        secure_connect_bundle=config.secure_connect_bundle,
    )


def _pulsar_options(config: SourceConfig) -> PulsarOptions:
    return PulsarOptions(
        service_url=config.pulsar_service_url,
        auth_plugin=config.pulsar_auth_plugin,
        auth_params=config.pulsar_auth_params.get_secret_value(),
        trusted_certificates=config.pulsar_trusted_certificates,
        allow_insecure=config.pulsar_allow_insecure,
        hostname_validation=config.pulsar_hostname_validation,
    )
