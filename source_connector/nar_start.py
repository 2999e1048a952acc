"""The first module that the archive's interpreter runs: checks that it is of the kind for which the archive was built.

No other module of ours is imported before the check, and the syntax is valid in old versions of Python, too.
"""

import os
import struct
import sys
import sysconfig
from pathlib import Path

_ERROR = 10  # host_protocol.FrameType.ERROR


def refusal(wanted: str, found: object) -> bytes:
    """The ERROR frame that names both kinds of Python."""
    text = (
        f"option python: '{sys.executable}' is {found}, but the archive was built for {wanted}: "
        "set the option 'python' to an interpreter of that kind, or build the archive with this one"
    ).encode()
    return struct.pack(">IBI", 5 + len(text), _ERROR, len(text)) + text


if __name__ == "__main__":
    _wanted = Path(__file__).with_name("ABI").read_text().strip()
    _found = sysconfig.get_config_var("SOABI")
    if _found != _wanted:
        os.write(1, refusal(_wanted, _found))
        sys.exit(1)
    from source_connector.__main__ import main

    main()
