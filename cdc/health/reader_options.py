"""The options of the Spark bridge's readers for the servers and the topics of a line."""

from __future__ import annotations

from typing import Final

from cdc.health.line_config import LineConfig

__all__ = ["WRITTEN", "reader_options"]

# By name of an option of `BridgeOptions`: its name in line.yaml, where it differs.
WRITTEN: Final = {
    "serviceUrl": "pulsarServiceUrl",
    "adminUrl": "pulsarAdminUrl",
    "eventsTopicPrefix": "topicPrefix",
    "authPluginClassName": "pulsarAuthPluginClassName",
    "authParams": "pulsarAuthParams",
    "tlsAllowInsecureConnection": "sslAllowInsecureConnection",
    "tlsHostnameVerificationEnable": "sslHostnameVerificationEnable",
}


def reader_options(config: LineConfig) -> dict[str, str]:
    """The options by name, without a topic."""
    params = config.pulsar_auth_params
    trusted = config.tls_trust_certs_file_path
    given: dict[str, str] = {
        "serviceUrl": config.pulsar_service_url,
        "adminUrl": config.pulsar_admin_url,
        "eventsTopicPrefix": config.topic_prefix,
        "eventsSubscriptionName": config.events_subscription_name,
        "deadLettersTopic": config.dead_letters,
        "operationTimeoutSeconds": "10",
        "tlsAllowInsecureConnection": str(config.ssl_allow_insecure_connection).lower(),
        "tlsHostnameVerificationEnable": str(config.ssl_hostname_verification_enable).lower(),
    }
    if config.pulsar_auth_plugin_class_name is not None:
        given["authPluginClassName"] = config.pulsar_auth_plugin_class_name
        given["authParams"] = "" if params is None else params.get_secret_value()
    if trusted is not None:
        given["tlsTrustCertsFilePath"] = str(trusted)
    return given
