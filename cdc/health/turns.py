"""Turns: only one watch of a pipeline restarts sources at a time, also if watches run on several machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pulsar

from cdc.health.line_config import LineConfig
from source_connector.events.pulsar_access import new_client

__all__ = ["Turns"]


class Turns:
    """Turns by the topic `cdc-watch` in the line's namespace: its exclusive producer has the turn.

    The topic has no messages.
    """

    def __init__(self, config: LineConfig) -> None:
        self._options: Final = config.pulsar_options
        self._topic: Final = f"persistent://{config.namespace}/cdc-watch"

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Yield True if this keeper has the turn until the end of the context, False if another keeper has it.

        If the topic cannot be used (the role may not produce there), nobody is kept out: this yields True, and a source
        may be restarted twice.
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
