"""LostExpiries: notices that an expiry topic was deleted or emptied, and reports that its rows' expiries are lost."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from runtime.notices import Notices
from source_connector.events.pulsar_access import PulsarConnection
from source_connector.events.stored_ledgers import Ledgers, StoredLedgers

if TYPE_CHECKING:
    import pulsar

__all__ = ["LostExpiries"]

_log = logging.getLogger(__name__)

_SEARCH_S: Final = 10.0
_FIRST_MESSAGE_MS: Final = 10_000


class LostExpiries:
    """Used by the thread of `ExpiryTopics`. `post` hands a step over to this thread.

    `ledgers` has the ledgers in which expiries wait. `forget_known` is called when some of them are lost: then the rows
    that wait are not known any more, and are stored again.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        ledgers: StoredLedgers,
        time_s: Callable[[], float],
        post: Callable[[Callable[[], None]], None],
        forget_known: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._ledgers: Final = ledgers
        self._time_s = time_s
        self._post = post
        self._forget_known = forget_known
        self.next_search = 0.0
        """When to search again, by `time.monotonic`."""
        self.is_searching = False
        self._unchecked = Notices(_log, again_after_s=None)

    def search_if_due(self, consumers: Mapping[str, pulsar.Consumer]) -> None:
        """Look for topics that were deleted. Such a topic comes back without the keys that waited there.

        `consumers`: the consumer of each expiry topic.
        """
        now = time.monotonic()
        if now < self.next_search or self.is_searching:
            return
        self.next_search, self.is_searching = now + _SEARCH_S, True
        stored = [
            (topic, consumer, ledgers)
            for topic, consumer in consumers.items()
            if (ledgers := self._ledgers.waiting(topic, self._time_s())) is not None
        ]
        threading.Thread(target=self._search, args=(stored,), name="seeker of expiry topics", daemon=True).start()

    def _search(self, topics: Sequence[tuple[str, pulsar.Consumer, Ledgers]]) -> None:
        """Runs in a thread of its own, because a topic that no broker serves takes half a minute."""
        import pulsar

        try:
            for topic, consumer, ledgers in topics:
                try:
                    last = consumer.get_last_message_id().ledger_id()
                    first = self._first_ledger(topic, last, ledgers)
                    if first is not None:
                        self._post(functools.partial(self._found, topic, first, last))
                except (pulsar.AuthorizationError, pulsar.NotAllowedError) as error:
                    self._post(functools.partial(self._cannot_check, topic, error))
                except pulsar.PulsarException as error:
                    # The broker may be down, which is reported when something is stored, or the topic has partitions.
                    _log.debug("%s cannot be checked: %s", topic, error)
        finally:
            self._post(self._search_is_over)

    def _first_ledger(self, topic: str, last: int, ledgers: Ledgers) -> int | None:
        """The topic's first ledger. Of an empty topic, it would be behind all that were written. None: nothing is new."""
        import pulsar

        if last < ledgers.oldest:
            return ledgers.newest + 1
        if last in (ledgers.oldest, ledgers.checked):
            return None
        # A reader gets delayed messages at once.
        reader = self._connection.client().create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
        with contextlib.closing(reader):
            if not reader.has_message_available():
                return None
            first: int = reader.read_next(timeout_millis=_FIRST_MESSAGE_MS).message_id().ledger_id()
            return first

    def _search_is_over(self) -> None:
        self.is_searching = False

    def _cannot_check(self, topic: str, error: Exception) -> None:
        self._unchecked.say(
            topic,
            f"{topic}: the connector may subscribe to it, but not look at its messages ({error}): if it is deleted or"
            " emptied, nothing will say that its rows are not published when they expire; allow the connector's role to"
            " consume from it with any subscription (pulsar-admin namespaces grant-permission --actions consume,produce)",
        )

    def _found(self, topic: str, first: int, last: int) -> None:
        """Report a topic that has lost a ledger in which keys wait. The topic may have new keys already."""
        self._unchecked.clear(topic, f"{topic}: the connector may look at its messages now")
        if not self._ledgers.found(topic, first, last, self._time_s()):
            return
        self._forget_known()
        table = topic.rpartition("expiry-")[2]
        _log.error(
            "%s was deleted or emptied: rows whose expiry waited there are not published when they go; "
            "`cdc spark backfill --table %s` lets all of them wait again",
            topic,
            table,
        )
