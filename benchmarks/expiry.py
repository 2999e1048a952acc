"""Measures the broker's memory and the bytes on the bookies for keys that wait for their expiry.

    python -m benchmarks.expiry [--keys 10000000] [--in-a-message 100]

The connector's own code for expiries stores the keys in a Pulsar standalone. No Cassandra and no source run. Keys share
a message if they expire in the same second, belong to one partition of the events topic and were published within 0.2
s. So a message has more keys if more rows are written. `--in-a-message` sets the number of keys. Each message has its
own second, the first is a day ahead. The memory is the growth of the broker's heap after a full collection, and the
size of its index of delayed messages by its own metric. Both are read again after the topic was unloaded, as after a
restart of the broker.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from typing import Final

import click
import pulsar

from benchmarks.rival import AS_IN_SERVICE
from cdc.progress import progress_display
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.prerequisites import java_home
from schemas.mutation_event import MutationEvents
from source_connector.events.due_rows import DueRow
from source_connector.events.events_message import EventsMessage
from source_connector.events.expiry_messages import EXPIRY_SUBSCRIPTION
from source_connector.events.expiry_topics import ExpiriesStored, ExpiryTopics
from source_connector.events.pulsar_access import PulsarConnection, PulsarOptions

_TOPIC: Final = "persistent://public/default/cdc-events-expiry-bench.t"
_TARGET: Final = "persistent://public/default/cdc-events-bench.t-partition-0"
_DAY_S: Final = 86_400
_UNSTORED: Final = 50_000
"""The largest number of keys in flight to the broker."""
_WAIT_S: Final = 900.0
_CONTENT: Final = MutationEvents(
    node_id=uuid.UUID(int=1),
    segment_id=1,
    keyspace="bench",
    table="t",
    table_id=uuid.UUID(int=2),
    key_schema='{"type":"record","name":"k","fields":[]}',
    events=(),
)
_MESSAGE: Final = EventsMessage(identity=b"", message_id=pulsar.MessageId.earliest, content=_CONTENT, topic=_TARGET)


class _Keeper:
    """The connector's store of expiries, and how many of its keys the broker has."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._connection = PulsarConnection(PulsarOptions(service_url=sandbox.pulsar.service_url))
        self._stored = 0
        self._moved = threading.Condition()
        self._failure: Exception | None = None
        self._topics = ExpiryTopics(self._connection, 1, time.time, self._post)
        self._topics.follow(_TOPIC)

    def _post(self, found: ExpiriesStored | Exception) -> None:
        with self._moved:
            if isinstance(found, Exception):
                self._failure = found
            else:
                self._stored += len(found.then)
            self._moved.notify_all()

    def store(self, keys: int, in_a_message: int) -> None:
        """Store `keys` keys, and wait until the broker has them. Raises the error that ended the store."""
        first_s, end = int(time.time()) + _DAY_S, self._stored + keys
        for number in range(keys):
            key = b"\x16key-%08d\x02" % number
            second = first_s + number // in_a_message
            row = DueRow(
                is_static=False,
                key=key,
                partition_key=b"key-%08d" % number,
                digest=bytes(16),
                clustering=(b"\0\0\0\1",),
                second=second,
                columns=("a", "b"),
            )
            self._topics.due_rows.add(_nothing, _TOPIC, _MESSAGE, row)
            if number % 1_000 == 0:
                self._wait_until(lambda: end - keys + number - self._stored < _UNSTORED)  # noqa: B023
        self._wait_until(lambda: self._stored == end)

    def _wait_until(self, holds: Callable[[], bool]) -> None:
        with self._moved:
            if not self._moved.wait_for(lambda: holds() or self._failure is not None, _WAIT_S):
                raise click.ClickException(f"the broker has {self._stored:,} keys, and no more for {_WAIT_S:.0f} s")
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        self._topics.stop()
        self._connection.close()


def _nothing() -> None:
    """Do nothing. In the connector, the event is acknowledged when its key is stored."""


def _heap_bytes(sandbox: Sandbox) -> int:
    """The broker's heap in use after a full collection."""
    jcmd, pid = str(java_home() / "bin" / "jcmd"), str(sandbox.pulsar.pid)
    subprocess.run([jcmd, pid, "GC.run"], capture_output=True, check=True)
    found = subprocess.run([jcmd, pid, "GC.heap_info"], capture_output=True, text=True, check=True).stdout
    return sum(int(each) * 1024 for each in re.findall(r"(?:heap|generation)\s.* used (\d+)K", found))


def _delayed(sandbox: Sandbox) -> int:
    """The number of messages that the broker delays."""
    url = f"{sandbox.pulsar.admin_url}/admin/v2/{_TOPIC.replace('://', '/')}/stats"
    found = rest().get(url).json()["subscriptions"].get(EXPIRY_SUBSCRIPTION, {})
    return int(found.get("msgDelayed", 0))


def _wait_until_held(sandbox: Sandbox, messages: int) -> float:
    """Wait until the broker has all messages in its index. Return the seconds that it took."""
    began = time.monotonic()
    while _delayed(sandbox) < messages:
        if time.monotonic() - began > _WAIT_S:
            raise click.ClickException(f"the broker holds {_delayed(sandbox):,} of {messages:,} messages back")
        time.sleep(0.5)
    return time.monotonic() - began


def _index_bytes(sandbox: Sandbox) -> int:
    page = rest().get(f"{sandbox.pulsar.admin_url}/metrics/", follow_redirects=True).text
    lines = [each for each in page.splitlines() if each.startswith("pulsar_delayed_message_index_size_bytes{")]
    return int(
        sum(
            float(each.rpartition("}")[2].split()[0])
            for each in lines
            if _TOPIC in each and "subscription=" not in each
        )
    )


def _unload(sandbox: Sandbox) -> None:
    """Unload the topic, and wait until the broker has dropped its index, as in a restart."""
    path = _TOPIC.replace("://", "/")
    rest().put(f"{sandbox.pulsar.admin_url}/admin/v2/{path}/unload", timeout=60).raise_for_status()
    while _delayed(sandbox):
        time.sleep(0.1)


def _stored_bytes(sandbox: Sandbox) -> int:
    url = f"{sandbox.pulsar.admin_url}/admin/v2/{_TOPIC.replace('://', '/')}/stats"
    return int(rest().get(url).json()["storageSize"])


@click.command()
@click.option("--keys", default=10_000_000, show_default=True, type=click.IntRange(1))
@click.option("--in-a-message", default=100, show_default=True, type=click.IntRange(1, 1_000))
def main(keys: int, in_a_message: int) -> None:
    """Let keys wait, and measure the broker."""
    options = SandboxOptions(nodes=0, pulsar_heap_mb=1_500, pulsar_jvm_options=AS_IN_SERVICE)
    with progress_display(quiet=True) as on_progress, Sandbox(options, on_progress=on_progress) as sandbox:
        messages = -(-keys // in_a_message)
        keeper = _Keeper(sandbox)
        keeper.store(1, 1)
        before = _heap_bytes(sandbox)
        began = time.monotonic()
        keeper.store(keys, in_a_message)
        seconds = time.monotonic() - began
        _wait_until_held(sandbox, messages)
        click.echo(f"{keys:,} keys in {messages:,} messages, stored at {keys / seconds:,.0f} keys/s")
        click.echo(
            f"bytes stored: {_stored_bytes(sandbox) / 2**20:,.0f} MiB, {_stored_bytes(sandbox) / keys:.0f} a key"
        )
        _report(sandbox, before)
        keeper.close()
        _unload(sandbox)
        keeper = _Keeper(sandbox)
        seconds = _wait_until_held(sandbox, messages)
        click.echo(f"after the topic was unloaded, all are held back again within {seconds:.0f} s")
        _report(sandbox, before)
        keeper.close()


def _report(sandbox: Sandbox, before: int) -> None:
    more = _heap_bytes(sandbox) - before
    click.echo(f"broker's heap: {more / 2**20:,.0f} MiB more; its index: {_index_bytes(sandbox) / 2**20:,.1f} MiB")


if __name__ == "__main__":
    main()
