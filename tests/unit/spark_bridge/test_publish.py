"""How the job `publish` meets a Pulsar that is away, and topics that are not as it left them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Final, cast

import httpx
import pytest
from pyspark.sql import SparkSession

from spark_bridge.errors import PublishError, TopicError
from spark_bridge.jobs import publish as job
from spark_bridge.jobs.mirror_state import Applied
from spark_bridge.jobs.publish_state import Published
from spark_bridge.topics import admin
from spark_bridge.topics.admin import PATIENCE_S
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.patience import patiently
from spark_bridge.topics.publish_admin import PublishAdmin
from tests.servers.http_brokers import Broker, Request, broker
from tests.unit.spark_bridge.test_admin import server

__all__ = ["server"]

_PARTS: Final = [json.dumps({"type": "record", "name": each, "fields": []}) for each in ("k", "v")]
_SCHEMA: Final = {
    "version": 0,
    "type": "KEY_VALUE",
    "data": f'{{"key": {_PARTS[0]}, "value": {_PARTS[1]}}}',
    "properties": {"kv.encoding.type": "SEPARATED", "key.schema.type": "AVRO", "value.schema.type": "AVRO"},
}
_ANSWERS: Final = [
    (503, "starting"),
    (200, '{"partitions": 0}'),
    (200, json.dumps({"getSchemaResponses": [_SCHEMA]})),
    (503, "starting"),
    (404, '{"reason": "deleted meanwhile"}'),
]


@pytest.mark.parametrize("server", [_ANSWERS], indirect=True)
@pytest.mark.parametrize(("follow_interval_s", "waits_s"), [(60.0, 17), (None, PATIENCE_S)])
def test_a_publish_that_follows_waits_for_a_broker_that_restarts(
    server: Broker, follow_interval_s: float | None, waits_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a following mirror does. The end of one look would end the job."""
    patience = list[float]()

    def wait(ask: Callable[[], httpx.Response], patience_s: float) -> httpx.Response:
        patience.append(patience_s)
        return patiently(ask, patience_s)

    tables = SimpleNamespace(
        applied=lambda: Applied(epoch=1),
        changes=SimpleNamespace(read=lambda: SimpleNamespace(columns=["source"])),
    )
    monkeypatch.setattr(admin, "patiently", wait)
    monkeypatch.setattr(job, "own_session", nullcontext)
    monkeypatch.setattr(job, "pin_session", lambda _: None)
    monkeypatch.setattr(job, "MirrorTables", lambda *_: tables)
    monkeypatch.setattr(job, "PublishedFile", lambda *_: None)
    given = {
        "serviceUrl": "pulsar://h:6650",
        "adminUrl": server.url,
        "topic": "data-k.t",
        "operationTimeoutSeconds": "17",
    }
    with pytest.raises(TopicError, match="deleted meanwhile"):
        job.publish(cast("SparkSession", None), given, "/lake/t", {"rows": None}, follow_interval_s=follow_interval_s)
    assert patience == [waits_s] * 3


@pytest.mark.parametrize(
    ("created", "is_refused"),
    [((200, "then"), False), ((200, "later"), True), ((404, "missing"), True)],
    ids=["the same topic", "another topic", "not known"],
)
def test_a_topic_whose_records_were_all_read_and_deleted_is_no_other_topic(
    created: tuple[int, str], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulsar deletes what every subscription has read. After a restart, the partition looks like one that never had a record."""

    def answer(request: Request) -> tuple[int, Mapping[str, str], object]:
        status, date = created
        answers: Mapping[str, tuple[int, object]] = {
            "stats": (200, {"deduplicationStatus": "Enabled"}),
            "lastMessageId": (200, {"ledgerId": 9, "entryId": -1}),
            "internal-info": (status, {"creationDate": date}),
        }
        status, body = answers[request.path.rpartition("/")[2]]
        return status, {}, body

    topic = "persistent://public/default/rows-k.t"
    stored = Published(topic=topic, producer="ours", epoch=7, creations={topic: "then"})
    monkeypatch.setattr(job, "PublishedFile", lambda *_: SimpleNamespace(read=lambda: stored))
    with broker(answer) as running:
        given = {"serviceUrl": "pulsar://h:6650", "adminUrl": running.url, "topic": "data-k.t"}
        options = BridgeOptions.from_mapping(given)
        work = job._Topic(cast("SparkSession", None), options, "/lake/t", "rows", None, pytest.fail, PATIENCE_S)
        with PublishAdmin(options) as asked:
            if is_refused:
                with pytest.raises(PublishError, match="it was deleted and made again since the last run"):
                    work._begun(asked, [topic], 8, rebuild=False)
            else:
                assert work._begun(asked, [topic], 8, rebuild=False) == stored
