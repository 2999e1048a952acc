"""The change agent: commit log segments in, events out.

The first thing that happens is the choice of the decoder, compiled or not: see `change_agent.decoder`.
"""

import os

from change_agent.decoder import choose

choose(os.environ.get("CDC_DECODER", "auto"))
