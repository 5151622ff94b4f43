"""
The signal handlers that every job begins with, as steps: those of faulthandler, and the one for SIGURG.

Runs in: installed and read in the zygote, once; the steps are taken by each job. Source: rt_sigaction(2),
sigaltstack(2). The kernel's structures are read in the zygote and passed back to it in the job; no code here depends on
their layout.

Installed by Python in each job, they cost 73 copied pages, a fifth of a short job's. The zygote can't keep them
installed: an init shares the keeper's memory and inherits its handlers, and a job may send signals to its init. So in
the zygote the interpreter has the handlers, and the kernel has the defaults.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from leeward._native.steps import Block, Call, Step, Table, returns
from leeward.inside import main as inside

#: The signals that faulthandler handles, and SIGURG, which follows an interrupt.
HANDLED = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGURG)
#: The size of the kernel's sigset_t; and room for its struct sigaction and its stack_t, which are smaller.
_SET, _ACTION, _STACK = 8, 64, 64
#: The steps that `take` has made.
_steps: Sequence[Step] = ()


def take() -> None:
    """Install the handlers, read the kernel's structures for them, and reset its signals; KernelRefusal."""
    global _steps
    inside.install_handlers()
    stack, actions = Block(bytes(_STACK)), [Block(bytes(_ACTION)) for _ in HANDLED]
    table = Table([returns(Call.SIGALTSTACK, 0, stack),
                   *(returns(Call.RT_SIGACTION, number, 0, action, _SET)
                     for number, action in zip(HANDLED, actions, strict=True))])
    table.run()
    default = Block(bytes(_ACTION))
    Table(returns(Call.RT_SIGACTION, number, default, 0, _SET) for number in HANDLED).run()
    _steps = [returns(Call.SIGALTSTACK, Block(table.content(stack)), 0),
              *(returns(Call.RT_SIGACTION, number, Block(table.content(action)), 0, _SET)
                for number, action in zip(HANDLED, actions, strict=True))]


def steps() -> list[Step]:
    """The steps that install these handlers in a job; none before `take`."""
    return list(_steps)
