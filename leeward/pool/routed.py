"""
Whether every address can be made local to a sandbox on this host. A process tries it once.

Runs in:   the daemon, and `leeward run`: once it is known that a policy of egress may be asked for. The process is
           exec'd, because a daemon has threads, and one of them can't enter namespaces alone.
Stands if: the process fails in another way: then the daemon assumes that it works, and the first keeper reports errors.
"""

from __future__ import annotations

import functools
import socket

from leeward.isolation.egress import route
from leeward.worker import bare


@functools.cache
def is_routed() -> bool:
    """
    Raises:
        Unsupported: pyroute2 isn't installed.
    """
    return not bare.is_refused("leeward.isolation.egress", f"is_refused({route(socket.AF_INET)!r})")
