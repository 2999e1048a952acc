"""Turns: the watches of one pipeline restart its sources one at a time, on whatever machines they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pulsar

from cdc.health.line_config import LineConfig
from source_connector.events.pulsar_access import new_client

__all__ = ["Turns"]


class Turns:
    """The topic `cdc-watch` of the line's namespace holds no message: its exclusive producer has the turn."""

    def __init__(self, config: LineConfig) -> None:
        self._options: Final = config.pulsar_options
        self._topic: Final = f"persistent://{config.namespace}/cdc-watch"

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Whether it is ours until the end of the context; False while another keeper has it.

        Where the topic cannot be used (its role may not produce there) nobody is kept out, and a source may be restarted twice.
        """
        client = new_client(self._options, is_quiet=True)
        try:
            client.create_producer(self._topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
            is_ours = True
        except (pulsar.ProducerFenced, pulsar.ProducerBusy):
            is_ours = False
        except pulsar.PulsarException:
            is_ours = True
        try:
            yield is_ours
        finally:
            client.shutdown()
