"""The source connector: events in, current rows out.

The first step is the choice of the row path, compiled or not: see `source_connector.compiled`.
"""

import os

from source_connector.compiled import choose

choose(os.environ.get("CDC_CONNECTOR", "auto"))
