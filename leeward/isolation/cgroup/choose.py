"""
Which driver holds the limits: the best one that this user may use on this host.

Runs in:   the daemon, once.
"""

from __future__ import annotations

from leeward.errors import Unsupported
from leeward.isolation.cgroup import hierarchy
from leeward.isolation.cgroup.entry import Driver
from leeward.isolation.cgroup.none import NoneDriver
from leeward.isolation.cgroup.v1 import V1Driver
from leeward.isolation.cgroup.v2 import V2Driver
from leeward.points import point

#: Best first.
NAMES = ("v2", "v1", "none")


@point("cgroup.driver")
def choose(wanted: str | None = None, *, pinned: bool = False) -> Driver:
    """
    Set up the best driver, or the one that is *wanted*.

    Version 2 may need this process in a group of its own; it is moved there then. Groups that dead daemons left stay:
    call `sweep`.

    Args:
        pinned: each worker has one processor, also where a controller holds the limit.

    Raises:
        Unsupported: no driver can serve, or the wanted one can't. The error says why, for each.
    """
    hierarchies = hierarchy.here()
    passed_over: tuple[tuple[str, str], ...] = ()
    for name in NAMES if wanted is None else (wanted,):
        try:
            match name:
                case "v2":
                    return V2Driver(hierarchies, passed_over, pinned=pinned)
                case "v1":
                    return V1Driver(hierarchies, passed_over, pinned=pinned)
                case "none":
                    return NoneDriver(passed_over)
        except Unsupported as missing:
            passed_over += ((name, f"{missing.have}; needs {missing.need}"),)
    raise Unsupported("cgroup", have="; ".join(f"{name}: {why}" for name, why in passed_over) or "none",
                      need=wanted or "one driver that works")
