"""
How long the daemon waits for its own processes before it takes them for dead.

Runs in:   the daemon, and `leeward run`.
"""

from __future__ import annotations

from leeward.dataclass import dataclass


@dataclass(slots=True)
class Patience:
    """
    One for an engine and all of its workers. Whoever has the engine may change it while it runs; tests do, where the
    machine is software, and to see a deadline pass. The configuration has no key for it.

    Attributes:
        start: seconds for a zygote's imports, and for the first worker after the engine's start.
        zygote: seconds for one that has a keeper on order to say something. It takes milliseconds; after that it is
            replaced.
        keeper: seconds for one to arm a runner, and to tell the end of one that was killed. Both take milliseconds; a
            keeper that hasn't by then is stopped or stuck, and is replaced.
    """

    start: float = 30.0
    zygote: float = 10.0
    keeper: float = 10.0
