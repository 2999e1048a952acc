"""The process that the Java host starts: builds the stages from the OPEN frame, runs the source, ends with the host."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import os
import resource
import signal
import sys

from schemas.errors import CdcError, ConfigError
from source_connector.assembly import assemble
from source_connector.compiled import row_path
from source_connector.configuration.config import SourceConfig
from source_connector.configuration.tls import tls_context
from source_connector.errors import DeploymentError
from source_connector.host.host_connection import HostConnection, LogLines
from source_connector.host.host_protocol import OpenRequest, encode_error, encode_opened
from source_connector.memory_arenas import use_one_arena
from source_connector.source import CassandraSource, Inbox

__all__ = ["main"]

_log = logging.getLogger("source_connector")

_PR_SET_PDEATHSIG = 1
_ONE_INSTANCE = (
    "events.topic: %d topics are read by %s instances, each of which has its own partitions of each topic: two may read changes"
    " of one key at once, and the older row may come last; use --parallelism 1 while more than one topic has events"
)


def main() -> None:
    """Serve one host; never returns."""
    _die_with_parent()
    use_one_arena()
    # This process has credentials and rows in memory: no other user may read its files, and it leaves no core dump.
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    inbox = Inbox()
    host = HostConnection(inbox.put)
    _log_to_standard_error()
    code = 1
    try:
        host.start()
        request = inbox.get()
        assert isinstance(request, OpenRequest), "OPEN is the first frame"
        source = _build(request, inbox, host)
        _log.info("the row path runs %s", row_path())
        host.send(encode_opened())
        host.flush()
        _collect_rarely()
        source.run()
        code = 0
    except CdcError as error:
        host.send(encode_error("; ".join(str(error).splitlines())))
    except Exception as error:  # noqa: BLE001  # the top of the process: the host reports it
        _log.exception("the connector cannot continue")
        host.send(encode_error(f"{type(error).__name__}: {error}"))
    host.flush()
    # Threads of the clients may still run, but they have nothing left to do.
    os._exit(code)


def _build(request: OpenRequest, inbox: Inbox, host: HostConnection) -> CassandraSource:
    """Build the source with all stages for a configuration. Raises ConfigError, DeploymentError."""
    guarantee = request.instance.get("guarantee", "ATLEAST_ONCE")
    if guarantee != "ATLEAST_ONCE":
        raise DeploymentError(
            f"processingGuarantees: {guarantee} is not supported; deploy the source with ATLEAST_ONCE, the default, for "
            "an event is acknowledged only after the data topic has its record"
        )
    config, warnings = SourceConfig.from_mapping(request.config, request.pulsar, os.environ)
    instances = request.instance.get("instances", "1")
    if config.suppress_unchanged and instances != "1":
        raise ConfigError.of(
            "suppress.unchanged",
            "needs a source with one instance (--parallelism 1): another one may publish newer rows of the same keys",
        )
    if len(config.events_topics) > 1 and instances != "1":
        _log.warning(_ONE_INSTANCE, len(config.events_topics), instances)
    ssl_context = tls_context(config)
    for warning in warnings:
        _log.warning("%s", warning)
    output_topic = request.instance.get("outputTopic", "")
    return assemble(config, ssl_context, inbox, host, output_topic, has_other_instances=instances != "1")


def _log_to_standard_error() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # Nodes that are down or refuse the connector are logged in one line, without the driver's messages and tracebacks.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)


def _collect_rarely() -> None:
    """Let the garbage collector run rarely: the objects of a row live until it is acknowledged, and are not in cycles.

    With Python's default threshold of 700 objects, a tenth of the time would be spent on walking through them.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _die_with_parent() -> None:
    """Let Linux end this process with the thread that started it. Elsewhere the end of standard input ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
