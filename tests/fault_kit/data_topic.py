"""DataTopicAdmin: adds partitions to a data topic by Pulsar's admin interface, as an operator does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import httpx

from cdc.rest import rest
from tests.fault_kit.line import FaultLine, wait_for
from tests.fault_kit.tables import KEYSPACE

__all__ = ["DataTopicAdmin"]

_TIMEOUT_S: Final = 60
# Pulsar may be killed and started again during this time.
_RECOVERY_S: Final = 300.0
_LOOK_S: Final = 1.0
_JSON: Final = {"content-type": "application/json"}


class DataTopicAdmin:
    """The partitioned data topic of a table. Methods wait while Pulsar does not answer. Raises FaultRunError."""

    def __init__(self, line: FaultLine, table: str) -> None:
        self.table: Final = table
        self._name: Final = f"data-{KEYSPACE}.{table}"
        self._url: Final = f"{line.sandbox.pulsar.admin_url}/admin/v2/persistent/public/default/{self._name}"

    def partitions(self) -> int:
        """The number of partitions."""
        found: list[int] = []

        def look() -> None:
            found[:] = [self._look()]

        _until_answered(look, f"{self._name} tells its partitions")
        return found[0]

    def set_partitions(self, count: int) -> None:
        """Do the same as `pulsar-admin topics update-partitioned-topic`."""

        def update() -> None:
            answer = rest().post(f"{self._url}/partitions", content=str(count), headers=_JSON, timeout=_TIMEOUT_S)
            # Pulsar refuses a number that is not greater. It may have done an earlier attempt without an answer.
            if not answer.is_success and self._look() != count:
                answer.raise_for_status()

        _until_answered(update, f"{self._name} has {count} partitions")

    def _look(self) -> int:
        found: int = rest().get(f"{self._url}/partitions", timeout=_TIMEOUT_S).raise_for_status().json()["partitions"]
        return found

    def wait_for_records(self, partitions: range, timeout_s: float) -> int:
        """Wait until a partition has a record, or until the time is over. Return how many of the partitions have
        one."""
        deadline = time.monotonic() + timeout_s
        while (used := sum(map(self._has_record, partitions))) == 0 and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return used

    def _has_record(self, partition: int) -> bool:
        try:
            answer = rest().get(f"{self._url}-partition-{partition}/internalStats", timeout=_TIMEOUT_S)
            # `get`, because an answer without the count was seen once, just after the topic was created again.
            return bool(answer.raise_for_status().json().get("numberOfEntries"))
        except httpx.HTTPError:
            return False


def _until_answered(ask: Callable[[], None], what: str) -> None:
    def is_answered() -> bool:
        try:
            ask()
        except httpx.HTTPError:
            return False
        return True

    wait_for(is_answered, what, _RECOVERY_S)
