"""Chooses the driver that holds the limits: the best one that this user may use on this host."""

from __future__ import annotations

from leeward.base.points import point
from leeward.errors import Unsupported
from leeward.isolation.cgroup import hierarchy
from leeward.isolation.cgroup.entry import Driver
from leeward.isolation.cgroup.none import NoneDriver
from leeward.isolation.cgroup.v1 import V1Driver
from leeward.isolation.cgroup.v2 import V2Driver

#: Best first.
NAMES = ("v2", "v1", "none")


@point("cgroup.driver")
def choose(wanted: str | None = None, *, pinned: bool = False) -> Driver:
    """
    Set up the best driver, or the one that is *wanted*; with *pinned* each worker has one processor, even if a
    controller holds the limit. Unsupported, with each driver's reason, if none works. The driver for version 2 may move
    this process to a group of its own. Groups of dead daemons stay until `sweep`.
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
                    return NoneDriver(passed_over, pinned=pinned)
        except Unsupported as missing:
            passed_over += ((name, f"{missing.have}; needs {missing.need}"),)
    raise Unsupported("cgroup", have="; ".join(f"{name}: {why}" for name, why in passed_over) or "none",
                      need=wanted or "one driver that works")
