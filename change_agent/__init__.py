"""The change agent: commit log segments in, events out.

The import chooses the decoder before any other module of the package is imported: see `change_agent.decoder`.
"""

import os

from change_agent.decoder import choose

choose(os.environ.get("CDC_DECODER", "auto"))
