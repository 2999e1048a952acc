"""The registration of schemas: when one counts, is refused, is marked, and is asked for again."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import cast

import pulsar
import pytest

from runtime.notices import Notices
from source_connector.data_format import DataFormat
from source_connector.events.pulsar_access import PulsarConnection
from source_connector.host.host_protocol import SchemaRefused, SchemaTaken, encode_schema
from source_connector.host.record import DataSchema
from source_connector.tables import newest_schema
from source_connector.tables.newest_schema import NewestSchemaAnswer, NewestSchemas
from source_connector.tables.schema_registration import SchemaRegistration
from source_connector.timers import Timers


class Registry:
    """A registration, and the frames that it sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.timers = Timers()
        self.checked: list[DataSchema] = []
        self.registration = SchemaRegistration(
            self.sent.append, self.checked.append, self.timers, Notices(logging.getLogger("registry"))
        )

    def take(self, schema_id: int, *, is_newest: bool = True) -> None:
        """The registry answers that it has the schema, as its newest version or as an older one."""
        self.registration.answered(SchemaTaken(schema_id), "ks.t")
        self.registration.on_answer(NewestSchemaAnswer(schema_id=schema_id, is_newest=is_newest))

    def run_timers(self, within_s: float = 60) -> None:
        """Run the timers that are due within this many seconds."""
        for due, _, action in list(self.timers._heap):
            if due <= time.monotonic() + within_s:
                action()


def _schema(number: int) -> DataSchema:
    return DataSchema(
        schema_id=number, data_format=DataFormat.JSON, name="t", key_schema="", value_schema=f'{{"doc":"{number}"}}'
    )


def test_a_schema_counts_when_the_registry_has_it() -> None:
    """It does not count before. An answer about an earlier schema does not count for a later one."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    assert not registry.registration.is_taken
    registry.registration.announce(_schema(2))
    registry.take(1)
    assert not registry.registration.is_taken
    registry.take(2)
    assert registry.registration.is_taken
    assert registry.sent == [encode_schema(_schema(1)), encode_schema(_schema(2))]


def test_a_schema_that_is_refused_parks_the_table_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A log line says what is wrong and what to do, until the registry takes the schema."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.registration.answered(SchemaRefused(1, "Incompatible\nschema: x"), "ks.t")
    assert registry.registration.is_refused and not registry.registration.is_taken
    (line,) = caplog.messages
    assert line.startswith(
        "ks.t is parked, its events wait: the data topic does not take the table's schema (Incompatible schema: x); "
        "set the topic's or namespace's schema compatibility strategy"
    )
    registry.run_timers()
    assert registry.sent == [encode_schema(_schema(1))] * 2
    with caplog.at_level(logging.INFO):
        registry.take(1)
    assert registry.registration.is_taken and not registry.registration.is_refused
    # `cdc status` reads this line: without it, the table would be a failure for two more minutes.
    assert caplog.messages[-1] == "ks.t goes on: the data topic takes the table's schema"


@pytest.mark.parametrize("answers", ["none", "of the host alone", "a refusal, then none"])
def test_a_schema_without_an_answer_is_asked_for_again(answers: str, caplog: pytest.LogCaptureFixture) -> None:
    """This holds for each missing answer. An earlier answer, also about an earlier schema, does not count later."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    if answers == "of the host alone":
        registry.registration.answered(SchemaTaken(1), "ks.t")
    if answers == "a refusal, then none":
        registry.registration.answered(SchemaRefused(1, "x"), "ks.t")
        registry.run_timers()
        registry.timers._heap[:] = registry.timers._heap[-1:]
    if answers == "none":
        registry.registration.announce(_schema(2))
    known = len(registry.sent)
    registry.run_timers(within_s=100)
    assert registry.sent[known:] == [registry.sent[known - 1]]
    assert "no answer about the data topic's schema after 90 s; it is asked again" in caplog.text
    registry.take(2 if answers == "none" else 1)
    registry.run_timers(within_s=200)
    assert registry.registration.is_taken
    assert len(registry.sent) == known + 1


def test_a_question_that_was_asked_twice_is_answered_once() -> None:
    """There is one check, one mark and one retry, however many answers come from a host that was delayed."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.run_timers(within_s=100)
    for _ in range(2):
        registry.registration.answered(SchemaTaken(1), "ks.t")
    assert len(registry.checked) == 1
    for _ in range(2):
        registry.registration.on_answer(NewestSchemaAnswer(schema_id=1, is_newest=False))
    marked = replace(_schema(1), value_schema='{"doc":"1","cql_registration":1}')
    assert registry.sent[2:] == [encode_schema(marked)]
    registry.registration.announce(_schema(2))
    for _ in range(3):
        registry.registration.answered(SchemaRefused(2, "x"), "ks.t")
    known = len(registry.sent)
    registry.run_timers()
    assert registry.sent[known:] == [encode_schema(_schema(2))]


def test_a_schema_of_which_the_registry_has_an_older_version_is_announced_with_a_mark() -> None:
    """The mark stays until the schema is the newest one; Avro ignores it. A check of an accepted schema asks for
    nothing more."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.take(1, is_newest=False)
    registry.take(1, is_newest=False)
    assert not registry.registration.is_taken
    registry.take(1)
    assert registry.registration.is_taken
    texts = ['{"doc":"1"}', '{"doc":"1","cql_registration":1}', '{"doc":"1","cql_registration":2}']
    assert [each.value_schema for each in registry.checked] == texts
    assert registry.sent == [encode_schema(replace(_schema(1), value_schema=text)) for text in texts]
    registry.registration.ask_again()
    registry.take(1)
    assert registry.sent[3:] == registry.sent[2:3] and len(registry.checked) == 3


def test_where_no_mark_is_taken_the_older_version_serves(caplog: pytest.LogCaptureFixture) -> None:
    """The newest version may be another producer's: records continue with the older version, and the log says so."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.take(1, is_newest=False)
    registry.registration.answered(SchemaRefused(1, "Incompatible schema"), "ks.t")
    assert not registry.registration.is_refused
    registry.take(1, is_newest=False)
    assert registry.registration.is_taken
    assert registry.sent[2:] == [encode_schema(_schema(1))]
    assert caplog.messages == [
        "ks.t: records are written by an older version of the data topic's schema (Incompatible schema)"
    ]
    registry.registration.announce(_schema(2))
    for _ in range(101):
        registry.take(2, is_newest=False)
    assert not registry.registration.is_taken
    registry.take(2, is_newest=False)
    assert registry.registration.is_taken and registry.sent[-1] == encode_schema(_schema(2))


def test_a_marked_schema_is_asked_for_again_after_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that is down for a moment has refused nothing, and records of the older version would hide a column."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.take(1, is_newest=False)
    marked = encode_schema(replace(_schema(1), value_schema='{"doc":"1","cql_registration":1}'))
    for known in (2, 3):  # At the first question, and after a refused record.
        registry.registration.answered(
            SchemaRefused(1, "org.apache.pulsar.client.api.PulsarClientException$TimeoutException: 30 s"), "ks.t"
        )
        assert registry.registration.is_refused and not registry.registration.is_taken
        registry.run_timers()
        assert registry.sent[known:] == [marked]
        registry.take(1)
        assert registry.registration.is_taken and not registry.registration.is_refused
        registry.timers._heap.clear()
    assert "$TimeoutException: 30 s); check that the broker runs" in caplog.text
    registry.registration.answered(
        SchemaRefused(1, "org.apache.pulsar.client.api.PulsarClientException$IncompatibleSchemaException: no"), "ks.t"
    )
    assert registry.sent[4:] == [encode_schema(_schema(1))]


class Newest:
    """A connection whose registry does not answer the first requests."""

    hint = None

    def __init__(self, failures: int, error: Exception) -> None:
        self._failures = failures
        self._error = error
        self._client = self

    def client(self) -> Newest:
        return self

    def get_schema_info(self, topic: str, version: int) -> Newest:
        self._failures -= 1
        if self._failures >= 0:
            raise self._error
        return self

    def schema(self) -> str:
        return "another"


@pytest.mark.parametrize(
    ("failures", "error", "is_newest"),
    [
        (3, pulsar.ConnectError(""), False),
        (3, pulsar.Timeout(""), False),
        (99, pulsar.Timeout(""), True),
        (1, pulsar.AuthorizationError(""), True),
    ],
)
def test_a_registry_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, failures: int, error: Exception, is_newest: bool
) -> None:
    """This takes less than a minute. A schema with unknown versions then counts as the newest one."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(newest_schema, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    answers: SimpleQueue[NewestSchemaAnswer] = SimpleQueue()
    connection = cast("PulsarConnection", Newest(failures, error))
    NewestSchemas(connection, "data", answers.put).check(_schema(1))
    assert answers.get(timeout=10) == NewestSchemaAnswer(schema_id=1, is_newest=is_newest)
    assert now[0] < 60


def test_a_refused_schema_is_given_up_for_a_newer_one() -> None:
    """For example, the table was changed back."""
    registry = Registry()
    registry.registration.announce(_schema(1))
    registry.registration.answered(SchemaRefused(1, "no"), "ks.t")
    registry.registration.announce(_schema(2))
    registry.run_timers()
    assert registry.sent == [encode_schema(_schema(1)), encode_schema(_schema(2))]
    assert not registry.registration.is_refused
