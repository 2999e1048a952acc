"""The keeper of expiries when one topic takes nothing: others continue. Pulsar's client is real; there is no broker."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import _pulsar
import pulsar
import pytest

from source_connector.errors import DeploymentError
from source_connector.events.expiry_topics import ExpiriesStored, ExpiryTopics
from source_connector.events.pulsar_access import PulsarConnection, PulsarOptions
from tests.unit.source_connector.events import due_row, event, pending

NOW_S = 1_000


class Consumer:
    """An expiry topic with the ledgers of its messages, and its consumer and reader. Ledger -1 stands for no message."""

    is_paused = False

    def __init__(self) -> None:
        self.acknowledged = 0
        self.ledgers: list[int] = []
        self.readers = 0
        self.refusals: dict[str, Exception] = {}

    def get_last_message_id(self) -> pulsar.MessageId:
        if "last message" in self.refusals:
            raise self.refusals["last message"]
        return pulsar.MessageId(-1, self.ledgers[-1] if self.ledgers else -1, 0, -1)

    def has_message_available(self) -> bool:
        return bool(self.ledgers)

    def read_next(self, timeout_millis: int) -> pulsar.Message:
        message = pulsar.Message._wrap(_pulsar.MessageBuilder().content(b"").build())
        message.message_id = lambda: pulsar.MessageId(-1, self.ledgers[0], 0, -1)
        return message

    def close(self) -> None:
        pass

    def pause_message_listener(self) -> None:
        self.is_paused = True

    def resume_message_listener(self) -> None:
        self.is_paused = False

    def acknowledge(self, message: pulsar.Message) -> None:
        self.acknowledged += 1


class Producer:
    """A producer of a topic that takes everything, takes nothing (`is_stuck`), or refuses everything (at once if it `is_closed`)."""

    def __init__(
        self, result: pulsar.Result = pulsar.Result.Ok, *, is_stuck: bool = False, is_closed: bool = False
    ) -> None:
        self._result, self._is_stuck, self._is_closed = result, is_stuck, is_closed
        self.sent = 0
        self.ledger = 7

    def send_async(self, data: bytes, callback: Callable[..., None], **settings: object) -> None:
        self.sent += 1
        if self._is_closed:
            raise pulsar.AlreadyClosed
        if not self._is_stuck:
            callback(self._result, pulsar.MessageId(0, self.ledger, 0, 0))


class Keeper:
    """A keeper that a test runs step by step; its broker accepts connections and never answers."""

    def __init__(self) -> None:
        self._silent = socket.create_server(("127.0.0.1", 0))
        options = PulsarOptions(service_url=f"pulsar://127.0.0.1:{self._silent.getsockname()[1]}")
        self._connection = PulsarConnection(options)
        self.posted: list[ExpiriesStored | Exception] = []
        self.now_s = float(NOW_S)
        self.topics = ExpiryTopics(self._connection, 100, lambda: self.now_s, self.posted.append)
        self.consumers = {"a": Consumer(), "b": Consumer()}
        self.topics._consumers.opened.update(cast("dict[str, Any]", self.consumers))

    def produces(self, topic: str, producer: Producer) -> None:
        """Open a producer of the topic."""
        producers = self.topics._producers
        openings = producers.targets if topic.startswith("events") else producers.stores
        openings.opened[topic] = cast("Any", producer)

    def hold(self, table: str, count: int, second: int = NOW_S - 1, *, target: str = "") -> None:
        """Receive `count` messages of the table's expiry topic that are due at this second."""
        properties = {"second": second, "deliver_at": second - 1, "target": target or f"events-{table}", "keys": 1}
        for _ in range(count):
            builder = _pulsar.MessageBuilder().content(b"")
            for name, value in properties.items():
                builder.property(name, str(value))
            self.topics._due.hold(table, cast("Any", self.consumers[table]), pulsar.Message._wrap(builder.build()))

    def receive(self, properties: Mapping[str, object], published_s_ago: float) -> None:
        """Receive a message of the first table's expiry topic."""
        builder = _pulsar.MessageBuilder().content(b"")
        for name, value in properties.items():
            builder.property(name, str(value))
        message = pulsar.Message._wrap(builder.build())
        message.publish_timestamp = lambda: int((time.time() - published_s_ago) * 1000)
        self.topics._due.hold("a", cast("Any", self.consumers["a"]), message)

    def store(self, table: str, second: int, then: Callable[[], None] = lambda: None) -> None:
        (waiting,) = pending(event())
        waiting.message.topic = f"events-{table}"
        self.topics.due_rows.add(then, table, waiting.message, due_row(second=second))

    def turn(self) -> None:
        """Run one turn of the keeper's thread; it takes no time, whatever the broker does."""
        began = time.monotonic()
        while not self.topics._steps.empty():
            self.topics._steps.get()()
        self.topics._pack_at = 0.0
        self.topics._pack()
        self.topics._send_packed()
        self.topics._due.forward()
        while not self.topics._steps.empty():
            self.topics._steps.get()()
        assert time.monotonic() - began < 1

    def create_reader(self, topic: str, start: pulsar.MessageId, receiver_queue_size: int) -> Consumer:
        """The reader of the one client."""
        assert start.entry_id() == pulsar.MessageId.earliest.entry_id()
        if "reader" in self.consumers[topic].refusals:
            raise self.consumers[topic].refusals["reader"]
        self.consumers[topic].readers += 1
        return self.consumers[topic]

    def search(self) -> None:
        """Look for deleted topics once."""
        lost = self.topics._lost
        lost._connection = cast("Any", SimpleNamespace(client=lambda: self))
        lost.next_search = 0.0
        lost.search_if_due(self.topics._consumers.opened)
        while lost.is_searching:
            self.topics._steps.get(timeout=10)()

    def close(self) -> None:
        self._silent.close()
        self._connection.close()


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    opened = Keeper()
    yield opened
    opened.close()


def test_an_events_topic_that_takes_no_producer_keeps_only_its_own_table_waiting(keeper: Keeper) -> None:
    """The table's messages wait and its expiry topic pauses; messages of another table are delivered, and its expiries
    are stored."""
    events, store = Producer(), Producer()
    keeper.produces("events-b", events)
    keeper.produces("b", store)
    keeper.hold("a", 201)
    keeper.turn()
    assert (keeper.consumers["a"].is_paused, keeper.consumers["b"].is_paused) == (True, False)
    keeper.hold("b", 3)
    keeper.store("b", NOW_S + 50)
    for _ in range(3):
        keeper.now_s += 31
        keeper.turn()
    assert (events.sent, keeper.consumers["b"].acknowledged, store.sent) == (3, 3, 1)
    assert [type(each) for each in keeper.posted] == [ExpiriesStored]
    assert (keeper.consumers["a"].is_paused, keeper.consumers["a"].acknowledged) == (True, 0)
    keeper.produces("events-a", Producer())
    keeper.now_s += 31
    keeper.turn()
    assert (keeper.consumers["a"].is_paused, keeper.consumers["a"].acknowledged) == (False, 201)


def test_an_expiry_topic_that_takes_no_producer_keeps_only_its_own_keys_waiting(keeper: Keeper) -> None:
    """The keys are stored once the topic takes a producer."""
    keeper.produces("b", Producer())
    for second in range(50):
        keeper.store("a", NOW_S + second)
    keeper.store("b", NOW_S)
    keeper.turn()
    assert len(keeper.posted) == 1
    keeper.produces("a", Producer())
    keeper.turn()
    assert len(keeper.posted) == 51


def test_every_key_is_stored_after_refusals_however_keys_were_packed(keeper: Keeper) -> None:
    """A refused message waits with keys that came since; the parts behind a refused one wait, too. Otherwise their
    events would never be settled, and their keys would stop."""
    stored: list[int] = []
    for refusal in (Producer(pulsar.Result.Timeout), Producer(is_closed=True)):
        keeper.topics._producers.stores.opened.pop("a", None)
        for number in range(2_500):
            keeper.store("a", NOW_S + 50, then=lambda number=number: stored.append(number))
        keeper.turn()
        keeper.produces("a", refusal)
        keeper.topics._pack_at = 0.0
        keeper.topics._pack()
        keeper.topics._send_packed()
        keeper.store("a", NOW_S + 50, then=lambda: stored.append(2_500))
        keeper.topics._pack_at = 0.0
        keeper.topics._pack()
        keeper.turn()
        for packed in keeper.topics._waiting.values():
            packed.due_at = 0.0
        keeper.produces("a", Producer())
        keeper.turn()
        for each in keeper.posted:
            assert isinstance(each, ExpiriesStored)
            for then in each.then:
                then()
        assert sorted(stored) == list(range(2_501))
        keeper.posted.clear()
        stored.clear()


def test_a_producer_is_given_no_more_than_it_takes_without_waiting(keeper: Keeper) -> None:
    """Otherwise the client would block the keeper, and with it all tables, until the broker answers."""
    stuck = Producer(is_stuck=True)
    keeper.produces("events-a", stuck)
    keeper.hold("a", 1_500)
    keeper.turn()
    assert stuck.sent == 900
    assert keeper.consumers["a"].is_paused


def test_what_no_broker_has_answered_for_counts_as_held(keeper: Keeper) -> None:
    """Otherwise each partition that does not answer would hold 900 more messages in memory."""
    consumer, came = keeper.consumers["a"], 0
    for number in range(16):
        keeper.produces(f"events-{number}", Producer(is_stuck=True))
    while not consumer.is_paused and came < 500:
        keeper.hold("a", 1, target=f"events-{came % 16}")
        keeper.turn()
        came += 1
    assert came == 201


def test_an_expiry_topic_goes_on_when_what_was_refused_is_taken(keeper: Keeper) -> None:
    """Each message counts once, however often it was tried."""
    keeper.produces("events-a", Producer(pulsar.Result.Timeout))
    keeper.hold("a", 201)
    for _ in range(3):
        keeper.turn()
        keeper.produces("events-a", Producer(pulsar.Result.Timeout))
        keeper.now_s += 31
    assert keeper.consumers["a"].is_paused
    keeper.produces("events-a", Producer())
    for _ in range(2):
        keeper.turn()
    assert (keeper.consumers["a"].is_paused, keeper.consumers["a"].acknowledged) == (False, 201)


def test_events_that_are_refused_are_tried_again_with_a_new_producer(keeper: Keeper) -> None:
    """This happens after a pause, and no event is acknowledged before."""
    refusing = Producer(pulsar.Result.Timeout)
    keeper.produces("events-a", refusing)
    keeper.hold("a", 5)
    for _ in range(3):
        keeper.turn()
    assert (refusing.sent, keeper.consumers["a"].acknowledged) == (5, 0)
    keeper.produces("events-a", Producer())
    keeper.now_s += 31
    keeper.turn()
    assert keeper.consumers["a"].acknowledged == 5


@pytest.mark.parametrize("ahead_s", [61, 90, 1000])
def test_what_comes_before_its_time_waits_for_cassandras_clock(
    keeper: Keeper, ahead_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker's clock is ahead, or one node's clock is behind. The broker delivered the message with a delay, so
    delays work."""
    events = Producer()
    keeper.produces("events-a", events)
    second = NOW_S + 2000
    keeper.now_s = float(second - 1 - ahead_s)
    keeper.receive({"second": second, "deliver_at": second - 1, "target": "events-a", "keys": 1}, 2000 - ahead_s)
    keeper.turn()
    assert (keeper.posted, keeper.topics.stopping.is_set(), events.sent) == ([], False, 0)
    assert f"a: a message came {ahead_s} s before its time, and waits here: the broker's clock is ahead" in caplog.text
    keeper.now_s = second - 1.0
    keeper.turn()
    assert events.sent == 0
    keeper.now_s = second + 0.1
    keeper.turn()
    assert (events.sent, keeper.consumers["a"].acknowledged) == (1, 1)


def test_what_is_to_wait_for_longer_is_stored_again_at_its_time(keeper: Keeper) -> None:
    """It is not stored earlier: a broker that delivers too early would deliver it again and again."""
    store = Producer()
    keeper.produces("a", store)
    keeper.receive({"second": NOW_S + 9000, "deliver_at": NOW_S + 100, "target": "events-a", "keys": 1}, 500)
    for keeper.now_s, sent in ((NOW_S + 99.0, 0), (NOW_S + 101.0, 1)):
        keeper.turn()
        assert store.sent == sent


@pytest.mark.parametrize(("waited_s", "is_error"), [(1, True), (80, False)])
def test_a_probe_that_comes_at_once_ends_the_source(keeper: Keeper, waited_s: int, *, is_error: bool) -> None:
    """A probe at once shows that the broker does not delay. After a wait, the probe was delayed, by any clock."""
    keeper.receive({"second": NOW_S + 180, "deliver_at": NOW_S + 180, "probe": "true", "keys": 0}, waited_s)
    assert [type(each) for each in keeper.posted] == [DeploymentError] * is_error
    assert (keeper.topics.stopping.is_set(), keeper.consumers["a"].acknowledged) == (is_error, 1 - is_error)


@pytest.mark.parametrize(("early_s", "is_error"), [(9 * 86_400, True), (3700, True), (3500, False), (90, False)])
def test_delays_that_are_switched_off_while_messages_wait_end_the_source(
    keeper: Keeper, early_s: int, *, is_error: bool
) -> None:
    """All messages come at once, at any age; if they were held here, the probe would come after them. A wrong clock is
    no reason to end."""
    due = NOW_S + early_s
    keeper.receive({"second": due + 1, "deliver_at": due, "target": "events-a", "keys": 1}, 3600)
    assert [type(each) for each in keeper.posted] == [DeploymentError] * is_error
    assert (keeper.topics.stopping.is_set(), keeper.consumers["a"].acknowledged) == (is_error, 0)


@pytest.mark.parametrize("second_key_s", [5000, 5], ids=["the new key waits", "the new key has expired"])
@pytest.mark.parametrize("ledgers", [[], [9], [9, 11]], ids=["nothing since", "a new key since", "two ledgers since"])
def test_a_deleted_expiry_topic_is_reported_and_its_keys_are_stored_again(
    keeper: Keeper, caplog: pytest.LogCaptureFixture, ledgers: list[int], second_key_s: int
) -> None:
    """The name of the topic may have got a new key before the check: then the topic is not empty."""
    store = Producer()
    keeper.produces("a", store)
    known = due_row(second=NOW_S + 5000)
    assert [keeper.topics.due_rows.is_known(bytes(16), known) for _ in range(2)] == [False, True]
    keeper.store("a", NOW_S + 5000)
    keeper.turn()
    keeper.consumers["a"].ledgers = [5, 7]
    keeper.search()
    assert keeper.topics.due_rows.is_known(bytes(16), known)
    keeper.consumers["a"].ledgers = ledgers
    for store.ledger in ledgers:
        keeper.store("a", NOW_S + second_key_s)
        keeper.turn()
    keeper.now_s += 10
    for _ in range(3):
        keeper.search()
    assert [each.message for each in caplog.records] == [
        "a was deleted or emptied: rows whose expiry waited there are not published when they go; "
        "`cdc spark backfill --table a` lets all of them wait again"
    ]
    assert not keeper.topics.due_rows.is_known(bytes(16), known)


def test_an_expiry_topic_with_new_ledgers_is_checked_once_for_each(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers begin new ledgers all the time, and delete those in which nothing waits any more."""
    store, consumer = Producer(), keeper.consumers["a"]
    keeper.produces("a", store)
    for store.ledger, second in ((7, 5000), (9, 9000)):
        keeper.store("a", NOW_S + second)
        keeper.turn()
        consumer.ledgers.append(store.ledger)
        for _ in range(3):
            keeper.search()
    assert consumer.readers == 1
    consumer.ledgers.append(12)
    keeper.search()
    assert consumer.readers == 2
    keeper.now_s += 6000
    consumer.ledgers.remove(7)
    consumer.ledgers.append(14)
    for _ in range(3):
        keeper.search()
    assert (consumer.readers, caplog.text) == (3, "")


@pytest.mark.parametrize("step", ["last message", "reader"])
@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (pulsar.AuthorizationError("AuthorizationError"), True),
        (pulsar.NotAllowedError("NotAllowedError"), True),
        (pulsar.Timeout("TimeOut"), False),
    ],
)
def test_a_topic_that_the_role_may_not_look_at_is_reported_once(
    keeper: Keeper, caplog: pytest.LogCaptureFixture, step: str, error: Exception, is_told: bool
) -> None:
    """Its deletion would not be seen. An outage is reported when something is stored. With the right, it is checked."""
    store, consumer = Producer(), keeper.consumers["a"]
    keeper.produces("a", store)
    keeper.store("a", NOW_S + 5000)
    keeper.turn()
    consumer.ledgers = [7, 9]
    consumer.refusals[step] = error
    caplog.set_level("INFO")
    for _ in range(3):
        keeper.search()
    told = (
        f"a: the connector may subscribe to it, but not look at its messages ({error}): if it is deleted or emptied,"
        " nothing will say that its rows are not published when they expire; allow the connector's role to consume from it"
        " with any subscription (pulsar-admin namespaces grant-permission --actions consume,produce)"
    )
    assert [each.message for each in caplog.records] == [told] * is_told
    consumer.refusals.clear()
    caplog.clear()
    keeper.search()
    assert [each.message for each in caplog.records] == ["a: the connector may look at its messages now"] * is_told


def test_a_key_that_was_stored_again_for_longer_is_looked_for_in_its_new_ledger(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first ledger may go after ten days. Its topic may still be deleted later."""
    store, consumer, day_s = Producer(), keeper.consumers["a"], 86_400
    keeper.produces("a", store)
    keeper.store("a", NOW_S + 365 * day_s)
    keeper.turn()
    keeper.now_s += 10 * day_s + 1
    store.ledger = 9
    keeper.receive(
        {"second": NOW_S + 365 * day_s, "deliver_at": NOW_S + 10 * day_s, "target": "events-a", "keys": 1}, 600
    )
    keeper.turn()
    consumer.ledgers = [9]
    keeper.search()
    assert (store.sent, consumer.acknowledged, caplog.text) == (2, 1, "")
    consumer.ledgers = []
    keeper.search()
    assert "a was deleted or emptied" in caplog.text
