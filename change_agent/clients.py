"""The agent's connections to Cassandra and to Pulsar, as its configuration says."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from change_agent.configuration.cassandra_yaml import settings_of
from change_agent.configuration.config import AgentConfig
from change_agent.configuration.pulsar_auth import PulsarAuth
from change_agent.metrics import AgentMetrics
from change_agent.publishing.event_producers import EventProducers
from change_agent.publishing.events_topics import EventsTopics
from change_agent.publishing.partition_counts import PartitionCounts
from change_agent.publishing.topic_looks import LostTopic, TopicLooks
from change_agent.schema.node_connection import NodeConnection
from change_agent.segments.cdc_raw_guard import CdcRawGuard, GuardLimits
from change_agent.segments.segment_rotation import SegmentRotation
from schemas.errors import ConfigError

__all__ = ["cdc_raw_guard", "event_producers", "node_connection", "segment_rotation"]


def node_connection(config: AgentConfig) -> NodeConnection:
    """A connection to the agent's own node; it connects when it is asked something. Raises ConfigError."""
    return NodeConnection(
        contact_points=config.contact_points,
        port=config.port,
        username=config.username,
        password=None if config.password is None else config.password.get_secret_value(),
        tls=_node_tls(config) if config.cassandra_tls else None,
    )


def segment_rotation(config: AgentConfig) -> SegmentRotation | None:
    """What bounds the delay beside Cassandra 3.11, where it is wanted, with a session of its own. Raises ConfigError."""
    interval_ms = config.segment_rotation_interval_ms
    return SegmentRotation(node_connection(config), interval_ms / 1000) if interval_ms else None


def cdc_raw_guard(
    config: AgentConfig, spill_directory: Path, metrics: AgentMetrics, on_moved: Callable[[], None]
) -> CdcRawGuard:
    """The guard of the node's cdc_raw, with a session of its own. Raises ConfigError."""
    return CdcRawGuard(
        config.cdc_raw_directory,
        spill_directory,
        node_connection(config),
        {} if config.cassandra_yaml is None else settings_of(config.cassandra_yaml),
        GuardLimits(
            total_bytes=config.cdc_total_space_bytes,
            soon_s=config.spill_when_full_within_ms / 1000,
            min_free_bytes=config.spill_min_free_bytes,
        ),
        metrics,
        on_moved,
    )


def _node_tls(config: AgentConfig) -> ssl.SSLContext:
    context = _tls("cassandraTrustCertsFilePath", config.cassandra_trust_certs_file_path)
    context.check_hostname = config.cassandra_hostname_verification
    certificate = config.cassandra_certificate_file_path
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, config.cassandra_key_file_path)
        except (OSError, ssl.SSLError) as error:
            reason = f"{certificate} cannot be used with cassandraKeyFilePath ({error})"
            raise ConfigError.of("cassandraCertificateFilePath", reason) from error
    return context


def _tls(option: str, trusted: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if trusted is None else str(trusted))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError.of(option, f"{trusted} holds no certificates in PEM ({error})") from error


def event_producers(config: AgentConfig, on_lost: Callable[[LostTopic], None]) -> EventProducers:
    """Producers of the events topics; they connect when a topic is opened. `on_lost` may raise PublishError, to be asked again.

    Raises ConfigError.
    """
    auth = None
    if config.pulsar_auth_plugin_class_name is not None:
        params = config.pulsar_auth_params
        auth = PulsarAuth(config.pulsar_auth_plugin_class_name, "" if params is None else params.get_secret_value())
    context = _tls("tlsTrustCertsFilePath", config.tls_trust_certs_file_path)
    if config.ssl_allow_insecure_connection:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif not config.ssl_hostname_verification_enable:
        context.check_hostname = False
    topics = EventsTopics(
        admin_url=config.pulsar_admin_url,
        auth=auth,
        tls=context,
        subscription=config.events_subscription_name,
        partitions=config.events_topic_partitions,
        create=config.create_topics,
    )
    return EventProducers(
        topics,
        PartitionCounts(config.cdc_working_dir),
        TopicLooks(config.cdc_working_dir),
        on_lost=on_lost,
        service_url=config.pulsar_service_url,
        auth=auth,
        trust_certificates=config.tls_trust_certs_file_path,
        allow_insecure=config.ssl_allow_insecure_connection,
        verify_hostname=config.ssl_hostname_verification_enable,
    )
