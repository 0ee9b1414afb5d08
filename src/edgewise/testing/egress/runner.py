"""Call a function in a process of the harness: ``python runner.py``, with its name on stdin.

The function and its arguments come by a pipe, not by the command line, which others can read.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from typing import Any


def main() -> int:
    """Call the function; return 0, or the integer that it returns."""
    path, module, name, pickled = pickle.load(sys.stdin.buffer)  # noqa: S301 - our parent's
    sys.path[:] = path
    from edgewise.device.process import refuse_core_dumps  # noqa: PLC0415 - the path stands now

    refuse_core_dumps()
    function: Any = importlib.import_module(module)
    function = functools.reduce(getattr, name.split("."), function)
    returned: Any = function(*pickle.loads(pickled))  # noqa: S301 - its types are on the path
    return returned if isinstance(returned, int) else 0


if __name__ == "__main__":
    sys.exit(main())
