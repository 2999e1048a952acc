"""Waits for the deployed sources after a start of Pulsar, and restarts those that the functions worker gave up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import PulsarService
from cdc.health.source_keeper import SourceKeeper
from cdc.health.sources import sources_of
from cdc.health.turns import Turns

__all__ = ["wait_for_sources"]

_LOOK_S: Final = 0.5
# A start takes 5 to 15 s: first the instance's JVM starts, then the connector's process.
_PATIENCE_S: Final = 20.0


def wait_for_sources(
    config: LineConfig, say: Callable[[str], None], *, timeout_s: float = 120.0, patience_s: float = _PATIENCE_S
) -> Mapping[str, str]:
    """Wait until all instances of this connector's sources run. A source that somebody has stopped is left out.

    Return a text for each source by name: empty if it runs, else why it does not run after `timeout_s`
    (`no reason given` if Pulsar gives none). `say` gets a line for each restart. Raises PulsarServiceError.
    """
    deadline = time.monotonic() + timeout_s
    with PulsarService(config) as service:
        keeper = SourceKeeper(service, Turns(config).turn, patience_s=patience_s)
        while True:
            views = [view for view in sources_of(service) if not view.is_stopped]
            down = {view.name: view.error or "no reason given" for view in views if view.is_down}
            if not down or time.monotonic() >= deadline:
                return {view.name: down.get(view.name, "") for view in views}
            for line in keeper.check():
                say(line)
            time.sleep(_LOOK_S)
