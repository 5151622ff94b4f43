"""
The state with which the interpreters of an environment begin, and how each of them gets it.

A message waits in the birth channel of each interpreter before its keeper is told to make it: with the state's memory
file, or without one, for a process that is to begin as everywhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.daemon.run.dumping import KernelState, close_file
from leeward.wire.job_frames import BRANCH_WORD

if TYPE_CHECKING:
    from leeward.daemon.worker.zygote_memory import ZygoteMemory
    from leeward.isolation.channel import Channel


class Warmth:
    """Owns the *state* of one pool; None as long as there is none. *waits*: no runner is armed until there is one."""

    def __init__(self) -> None:
        self.state: KernelState | None = None
        self.waits = False

    def take(self, state: KernelState | None) -> None:
        """Begin interpreters with *state* from now on."""
        before, self.state = self.state, state
        self.waits = False
        if before is not None:
            close_file(before.fd, before.size)

    def tell(self, birth: Channel, *, cold: bool = False) -> ZygoteMemory | None:
        """Send an interpreter what it begins with, nothing if it is *cold*. Returns the zygote's memory that it will map."""
        state = None if cold else self.state
        memory = None if state is None else state.memory
        birth.send_raw(BRANCH_WORD, [*([] if state is None else [state.fd]), *([] if memory is None else [memory.fd])])
        return memory
