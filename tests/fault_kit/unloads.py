"""Lets Pulsar unload a namespace bundle or a topic partition. All its clients reconnect, in any order."""

from __future__ import annotations

import random
from typing import Final

import httpx

from cdc.rest import rest
from tests.fault_kit.line import FaultLine
from tests.fault_kit.tables import KEYSPACE, TRACKED

__all__ = ["unload_something"]

_TIMEOUT_S: Final = 60


def unload_something(line: FaultLine, drawn: random.Random) -> bool:
    """Unload a random bundle, as a load balancer does, or a random partition of an events topic.

    Return False if Pulsar did not do it, for example because another fault has stopped it.
    """
    admin = f"{line.sandbox.pulsar.admin_url}/admin/v2"
    try:
        if drawn.random() < 0.5:
            path = f"{admin}/namespaces/public/default"
            bounds = rest().get(f"{path}/bundles", timeout=_TIMEOUT_S).raise_for_status().json()["boundaries"]
            at = drawn.randrange(len(bounds) - 1)
            url = f"{path}/{bounds[at]}_{bounds[at + 1]}/unload"
        else:
            topic = f"{admin}/persistent/public/default/cdc-events-{KEYSPACE}.{drawn.choice(TRACKED)}"
            count = rest().get(f"{topic}/partitions", timeout=_TIMEOUT_S).raise_for_status().json()["partitions"]
            url = f"{topic}-partition-{drawn.randrange(max(1, count))}/unload"
        return rest().put(url, timeout=_TIMEOUT_S).is_success
    except httpx.HTTPError:
        return False
