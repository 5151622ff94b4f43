"""
Can every address be made local to a sandbox on this host? A process tries it once.

Runs in:   the daemon, and `leeward run`: once it is known that a policy of egress may be asked for. The process is
           exec'd, because a daemon has threads, and one of them can't enter namespaces alone.
Stands if: the process fails in another way: then the daemon assumes that it works, and the first keeper reports errors.
"""

from __future__ import annotations

import functools
import socket
import sys

from leeward.isolation.egress import route
from leeward.worker.hatch import import_path

#: Seconds for the try, which takes a tenth of one; an emulated machine takes a hundred times as long.
_LONG_S = 30.0

#: The exit status where the route is refused.
_REFUSED = 3

_TRY = f"""
import sys
sys.path[:0] = {{path!r}}
from leeward.isolation.egress import is_refused
sys.exit({_REFUSED} if is_refused({{request!r}}) else 0)
"""


@functools.cache
def is_routed() -> bool:
    """
    Raises:
        Unsupported: pyroute2 isn't installed.
    """
    import subprocess  # a daemon without policies never asks

    source = _TRY.format(path=import_path(), request=route(socket.AF_INET))
    try:
        tried = subprocess.run([sys.executable, "-I", "-S", "-c", source], cwd="/", env={}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_LONG_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return _REFUSED != tried.returncode
