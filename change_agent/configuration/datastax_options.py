"""Options that only DataStax's agent has, and the message for each of them.

A configuration of DataStax's agent can be used unchanged. Options with the same meaning have the same names
(`topicPrefix`, `pulsarServiceUrl`, ...). An option that has no effect here is accepted with one warning. A Java key
store is refused if the connection to Pulsar would need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemas.errors import ConfigProblem

__all__ = ["ENVIRONMENT_NAMES", "FOREIGN_NAMES", "take_out"]

# Accepted and reported, so that a file of DataStax's agent can be used.
_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "cdcConcurrentProcessors": "segments are read in order by one thread",
    "errorCommitLogReprocessEnabled": "a segment that cannot be read is kept, and `cdc agent reprocess` takes it again",
    "maxInflightMessagesPerTask": "use maxInflightEvents and maxInflightBytes",
    "pulsarBatchDelayInMs": "events that wait together travel in one message, and nothing waits for company",
    "pulsarKeyBasedBatcher": "set maxEventsPerMessage to 1 for one keyed event a message",
    "pulsarMaxPendingMessages": "use maxInflightEvents and maxInflightBytes",
    "pulsarMaxPendingMessagesAcrossPartitions": "use maxInflightEvents and maxInflightBytes",
    "pulsarMemoryLimitBytes": "use maxInflightBytes",
    "sslProvider": "OpenSSL is used",
    "sslCipherSuites": "OpenSSL's own are used",
    "sslEnabledProtocols": "TLS 1.2 and newer are used",
}
# Key stores cannot be used by the Pulsar client: ignoring one on a TLS connection would weaken it.
_KEY_STORES: Final = (
    "sslKeystorePath",
    "sslKeystorePassword",
    "sslTruststorePath",
    "sslTruststorePassword",
    "sslTruststoreType",
    "useKeyStoreTls",
)
_USE_PEM: Final = (
    "Java key stores cannot be used; give PEM files: tlsTrustCertsFilePath, and AuthenticationTls in"
    " pulsarAuthPluginClassName (docs/agent.md says how to convert one)"
)

FOREIGN_NAMES: Final = (*_WITHOUT_EFFECT, *_KEY_STORES)
"""Options that only DataStax's agent has."""

ENVIRONMENT_NAMES: Final[Mapping[str, str]] = {
    "cdcWorkingDir": "CDC_WORKING_DIR",
    "cdcRawDirectory": "CDC_RAW_DIRECTORY",
    "cdcPollIntervalMs": "CDC_DIR_POLL_INTERVAL_MS",
    "cdcConcurrentProcessors": "CDC_CONCURRENT_PROCESSORS",
    "errorCommitLogReprocessEnabled": "CDC_ERROR_COMMITLOG_REPROCESS_ENABLED",
    "useKeyStoreTls": "CDC_USE_KEYSTORE_TLS",
}
"""Environment variables that are not formed by the rule: `CDC_` and the option's name in capitals with underscores."""


def take_out(given: dict[str, object]) -> tuple[list[str], list[ConfigProblem]]:
    """Remove the options that only DataStax's agent has. Return a note for each without an effect, and the problems."""
    uses_tls = str(given.get("pulsarServiceUrl", "")).startswith("pulsar+ssl:")
    notes: list[str] = []
    problems: list[ConfigProblem] = []
    for name in [each for each in FOREIGN_NAMES if each in given]:
        value = given.pop(name)
        if name in _WITHOUT_EFFECT:
            notes.append(f"{name} has no effect: {_WITHOUT_EFFECT[name]}")
        elif uses_tls and value not in (None, "", False, "false"):
            problems.append(ConfigProblem(option=name, reason=_USE_PEM))
        else:
            notes.append(f"{name} has no effect: pulsarServiceUrl is not pulsar+ssl://")
    return notes, problems
