"""MutationPublisher: order in each topic partition, packing and failures. The broker is in memory."""

from __future__ import annotations

import threading
from pathlib import Path

from change_agent.schema.node_connection import token_of
from schemas.mutation_event import decode_events
from schemas.topics import partition_of_token
from tests.topics.events_topic import wait_until
from tests.unit.change_agent.memory_broker import TOPIC_A, TOPIC_B, MemoryBroker, PublisherLine


def test_a_single_event_goes_at_once(line: PublisherLine) -> None:
    """Without load, an event does not wait for others."""
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the event is acknowledged")
    assert line.broker.positions(TOPIC_A) == [1]
    assert line.positions.events == 0


def test_events_that_wait_together_travel_in_one_message(broker: MemoryBroker, tmp_path: Path) -> None:
    """A message is limited by events and by bytes, and keeps the order."""
    line = PublisherLine(broker, tmp_path, max_events=100, max_bytes=5_000)
    line.publish("a", *range(120))
    line.publisher.start()
    wait_until(lambda: line.acknowledged() == 120, "all are acknowledged")
    line.publisher.stop()
    assert [len(decode_events(payload).events) for payload in broker.stored[TOPIC_A][0]] == [50, 50, 20]
    assert broker.positions(TOPIC_A) == list(range(1, 121))


def test_one_event_a_message_has_the_rows_key(broker: MemoryBroker, tmp_path: Path) -> None:
    """The key is the Avro key in base64. Messages with several events have no key."""
    line = PublisherLine(broker, tmp_path, max_events=1)
    line.publisher.start()
    line.publish("a", 7, 8)
    wait_until(lambda: line.acknowledged() == 2, "both are acknowledged")
    line.publisher.stop()
    assert broker.keys == ["AAAABw==", "AAAACA=="]


def test_a_row_goes_to_the_partition_of_its_token(tmp_path: Path) -> None:
    """The partition follows schemas.topics, for the topic's number of partitions."""
    broker = MemoryBroker(partitions=3)
    line = PublisherLine(broker, tmp_path)
    line.publisher.start()
    line.publish("a", *range(30))
    wait_until(lambda: line.acknowledged() == 30, "all are acknowledged")
    line.publisher.stop()
    expected: list[list[int]] = [[], [], []]
    for key in range(30):
        expected[partition_of_token(token_of(key.to_bytes(4, "big")), 3)].append(key + 1)
    assert [broker.positions(TOPIC_A, partition) for partition in range(3)] == expected


def test_a_table_whose_topic_is_refused_waits_and_the_others_go_on(broker: MemoryBroker, tmp_path: Path) -> None:
    """When the topic can be used, its events follow in order."""
    broker.refused_topics.add(TOPIC_A)
    line = PublisherLine(broker, tmp_path)
    line.publisher.start()
    line.publish("a", 1)
    line.publish("b", 2)
    line.publish("a", 3)
    wait_until(lambda: broker.stored.get(TOPIC_B) is not None and broker.positions(TOPIC_B) == [2], "b goes on")
    assert line.acknowledged() == 0
    broker.refused_topics.clear()
    wait_until(lambda: line.acknowledged() == 3, "a is published")
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [1, 3]


def test_after_a_refused_message_everything_behind_it_goes_again_in_order(line: PublisherLine) -> None:
    """The broker may have stored later messages already. They are repeated, and never reordered or lost."""
    line.broker.holds_back = True
    line.publish("a", 1)
    wait_until(lambda: len(line.broker.held) == 1, "the first is on its way")
    line.publish("a", 2)
    wait_until(lambda: len(line.broker.held) == 2, "the second is on its way")
    line.publish("a", 3)
    line.broker.holds_back = False
    first, second = line.broker.held
    first("Timeout")
    second(None)
    wait_until(lambda: line.acknowledged() == 3, "all are acknowledged")
    assert line.broker.positions(TOPIC_A) == [1, 2, 1, 2, 3]
    assert line.metrics.send_errors == 1


def test_a_producer_that_fails_again_and_again_is_replaced_until_one_works(line: PublisherLine) -> None:
    """Each failure causes a new producer. The message is kept."""
    line.broker.fail_next = ["Timeout", "ConnectError", "UnknownError"]
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the event is acknowledged", 20)
    assert line.broker.opened == 4
    assert line.broker.positions(TOPIC_A) == [1]


def test_a_producer_without_connection_is_replaced(line: PublisherLine) -> None:
    """The client reconnects by itself, but slowly. A new producer connects at once."""
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "the topic is open")
    line.broker.holds_back, line.broker.connected = True, False
    line.publish("a", 2)
    wait_until(lambda: len(line.broker.held) == 1, "the message is on its way")
    line.broker.holds_back = False
    wait_until(lambda: line.acknowledged() == 2, "the new producer delivers")
    assert line.broker.positions(TOPIC_A) == [1, 2, 2]


def test_while_messages_are_on_their_way_events_gather(line: PublisherLine) -> None:
    """Under load, a message contains the events that came meanwhile. At most two small messages are in flight."""
    line.broker.holds_back = True
    line.publish("a", 0)
    wait_until(lambda: len(line.broker.held) == 1, "the topic is open")
    for key in range(1, 50):
        line.publish("a", key)
    wait_until(lambda: line.publisher.statuses["ks.a"].waiting_events == 50, "all have gathered", 60)
    assert len(line.broker.held) == 2
    line.broker.holds_back = False
    for on_result in list(line.broker.held):
        threading.Thread(target=on_result, args=(None,)).start()
    wait_until(lambda: line.acknowledged() == 50, "all are acknowledged")
    assert line.broker.positions(TOPIC_A) == list(range(1, 51))
    assert len(line.broker.stored[TOPIC_A][0]) <= 5


def test_a_topic_whose_partitions_changed_is_not_used_any_more(tmp_path: Path, broker: MemoryBroker) -> None:
    """Its events are held, other topics continue, and the status says what to do."""
    line = PublisherLine(broker, tmp_path, check_s=0.1)
    line.publisher.start()
    line.publish("a", 1)
    wait_until(lambda: line.acknowledged() == 1, "it is in use")
    broker.changed = "has 8 partitions and had 4"
    broker.refused_topics.add(TOPIC_A)
    wait_until(lambda: not line.publisher.statuses["ks.a"].is_usable, "it is seen")
    broker.changed = None
    line.publish("a", 2)
    line.publish("b", 1)
    wait_until(lambda: line.acknowledged() == 3, "the log goes on")
    assert broker.positions(TOPIC_A) == [1]
    line.publisher.stop()


def test_the_status_says_what_a_topic_was_refused_for(line: PublisherLine, broker: MemoryBroker) -> None:
    """The status has reason, attempts and waiting events of each table. The reason goes when the topic works again."""
    broker.refused_topics.add(TOPIC_A)
    line.publish("a", 1)
    line.publish("b", 1)
    wait_until(lambda: getattr(line.publisher.statuses.get("ks.a"), "attempts", 0) >= 2, "it is tried again and again")
    status = line.publisher.statuses["ks.a"]
    assert (status.topic, status.is_usable, status.waiting_events, status.problem) == (TOPIC_A, False, 1, "is refused")
    assert line.publisher.statuses["ks.b"].problem is None
    assert line.metrics.tables["ks.a"].retries >= 2
    broker.refused_topics.clear()
    wait_until(lambda: line.publisher.statuses["ks.a"].problem is None, "it recovers")
