"""The agent's connections to Cassandra and to Pulsar, made from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from change_agent.configuration.cassandra_yaml import settings_of
from change_agent.configuration.config import AgentConfig
from change_agent.configuration.connections import pulsar_auth, pulsar_tls
from change_agent.metrics import AgentMetrics
from change_agent.publishing.event_producers import EventProducers
from change_agent.publishing.events_topics import EventsTopics
from change_agent.publishing.partition_counts import PartitionCounts
from change_agent.publishing.topic_checks import LostTopic, TopicChecks
from change_agent.schema.node_connection import NodeConnection
from change_agent.segments.cdc_raw_guard import CdcRawGuard, GuardLimits
from change_agent.segments.segment_rotation import SegmentRotation

__all__ = ["cdc_raw_guard", "event_producers", "segment_rotation"]


def segment_rotation(config: AgentConfig) -> SegmentRotation | None:
    """The stage that limits the delay with Cassandra 3.11, with its own session; None if not configured.

    Raises ConfigError.
    """
    interval_ms = config.segment_rotation_interval_ms
    return SegmentRotation(NodeConnection.of(config), interval_ms / 1000) if interval_ms else None


def cdc_raw_guard(
    config: AgentConfig, spill_directory: Path, metrics: AgentMetrics, on_moved: Callable[[], None]
) -> CdcRawGuard:
    """The guard of the node's cdc_raw, with its own session. Raises ConfigError."""
    return CdcRawGuard(
        config.cdc_raw_directory,
        spill_directory,
        NodeConnection.of(config),
        {} if config.cassandra_yaml is None else settings_of(config.cassandra_yaml),
        GuardLimits(
            total_bytes=config.cdc_total_space_bytes,
            soon_s=config.spill_when_full_within_ms / 1000,
            min_free_bytes=config.spill_min_free_bytes,
        ),
        metrics,
        on_moved,
    )


def event_producers(config: AgentConfig, on_lost: Callable[[LostTopic], None]) -> EventProducers:
    """Producers of the events topics. They connect when a topic is opened. Raises ConfigError.

    If `on_lost` raises PublishError, it is called again later.
    """
    auth = pulsar_auth(config)
    topics = EventsTopics(
        admin_url=config.pulsar_admin_url,
        auth=auth,
        tls=pulsar_tls(config),
        subscription=config.events_subscription_name,
        partitions=config.events_topic_partitions,
        create=config.create_topics,
    )
    return EventProducers(
        topics,
        PartitionCounts(config.cdc_working_dir),
        TopicChecks(config.cdc_working_dir, config.events_subscription_name),
        on_lost=on_lost,
        service_url=config.pulsar_service_url,
        auth=auth,
        trust_certificates=config.tls_trust_certs_file_path,
        allow_insecure=config.ssl_allow_insecure_connection,
        verify_hostname=config.ssl_hostname_verification_enable,
    )
