"""TopicClearings: reads the truncations and drops of one table that the connector published. It needs no Spark.

The records are JSON, on the topic of schema changes (docs/records.md, "When a table is truncated"). Other records of that
topic are skipped.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final, Self

import pulsar
import tenacity

from runtime.backoff import Backoff
from spark_bridge.errors import AccessRefusedError, PulsarUnreachableError
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.client import open_client
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.table_clearing import SeenTable, TableClearing, clearing_of, seen_table_of

__all__ = ["TopicClearings", "clearings_now", "schema_changes_now"]

_log: Final = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(0.2, 2)
_READ_MS: Final = 5_000
_REFUSALS: Final = (pulsar.AuthenticationError, pulsar.AuthorizationError)


class TopicClearings:
    """Follows the clearings of the options' one topic. If the topic of schema changes does not exist, there are none.

    It owns its connections, and is for one thread at a time.
    """

    def __init__(self, options: BridgeOptions) -> None:
        self._options: Final = options
        self._topic: Final = options.clearings_topic
        self._client: pulsar.Client | None = None
        self._readers: list[pulsar.Reader] = []
        self._found: list[TableClearing] = []
        self._tables: list[SeenTable] = []
        self._is_refused = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()

    def read(self) -> tuple[TableClearing, ...]:
        """All clearings that are on the topic now, in its order. Raises PulsarUnreachableError."""
        if self._topic is None or self._is_refused:
            return ()
        try:
            self._patiently()
        except AccessRefusedError as error:
            if "schema_changes_topic" in self._options.model_fields_set:
                raise
            self._is_refused = True
            _log.warning(
                "truncations and drops are not followed: %s; set schemaChangesTopic=none if this is intended", error
            )
        return tuple(self._found)

    def tables(self) -> tuple[SeenTable, ...]:
        """All tables, each time that the connector noted a definition, by the last call of `read`."""
        return tuple(self._tables)

    def _patiently(self) -> None:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._options.operation_timeout_seconds),
            wait=lambda state: _BACKOFF.pause_s(state.attempt_number),
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, pulsar.PulsarException) and not isinstance(error, _REFUSALS)
            ),
            reraise=True,
        )
        try:
            retrying(self._read)
        except _REFUSALS as error:
            raise AccessRefusedError(self._options.service_url, f"refuses access to {self._topic} ({error})") from None
        except pulsar.PulsarException as error:
            reason = f"the topic of schema changes {self._topic} cannot be read ({error}); check schemaChangesTopic"
            raise PulsarUnreachableError(self._options.service_url, reason) from None

    def _read(self) -> None:
        try:
            self._open()
            for reader in self._readers:
                while reader.has_message_available():
                    self._take(bytes(reader.read_next(timeout_millis=_READ_MS).data()))
        except pulsar.PulsarException:
            self._close()  # the next attempt reads the topic from its beginning
            raise

    def _open(self) -> None:
        if self._readers:
            return
        for name in self._partitions():
            self._client = self._client or open_client(self._options)
            self._readers.append(
                self._client.create_reader(name, pulsar.MessageId.earliest, reader_name="spark-bridge-clearings")
            )

    def _partitions(self) -> list[str]:
        assert self._topic is not None
        with PulsarAdmin(self._options, patience_s=self._options.operation_timeout_seconds) as admin:
            return admin.existing_partitions(self._topic)

    def _take(self, data: bytes) -> None:
        if (seen := seen_table_of(data)) is not None:
            self._tables.append(seen)
        found = clearing_of(data)
        if found is None or found.data_topic != self._options.only_topic:
            return
        if not any(found.repeats(each) for each in self._found):
            self._found.append(found)

    def _close(self) -> None:
        client, self._client = self._client, None
        self._readers, self._found, self._tables = [], [], []
        if client is not None:
            with suppress(pulsar.PulsarException):
                client.close()


def schema_changes_now(options: BridgeOptions) -> tuple[tuple[TableClearing, ...], tuple[SeenTable, ...]]:
    """As `clearings_now`, and all tables that the connector has seen. Raises PulsarUnreachableError."""
    with TopicClearings(options) as found:
        return found.read(), found.tables()


def clearings_now(options: BridgeOptions) -> tuple[TableClearing, ...]:
    """All clearings of the options' one topic that are known now. Raises PulsarUnreachableError."""
    with TopicClearings(options) as found:
        return found.read()
