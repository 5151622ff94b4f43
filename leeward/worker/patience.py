"""
How long the daemon waits for its own processes before it considers them dead.

Runs in:   the daemon, and `leeward run`.
"""

from __future__ import annotations

from leeward.dataclass import dataclass


@dataclass(slots=True)
class Patience:
    """
    The times of an engine and all of its workers. They may be changed while the engine runs; tests do that on emulated
    machines, and to see a deadline pass. The configuration has no key for them.

    Attributes:
        start: seconds for a zygote's imports, and for the first worker after the engine's start.
        zygote: seconds within which a zygote with an order has to send a message. It takes milliseconds; after that
            time the zygote is replaced.
        keeper: seconds for a keeper to arm a runner, and to report the end of one that was killed. Both take
            milliseconds; after that time the keeper is considered stopped or stuck, and is replaced.
    """

    start: float = 30.0
    zygote: float = 10.0
    keeper: float = 10.0
