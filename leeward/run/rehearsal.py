"""
Executes the code of an answer once, while a job runs and the daemon would sleep.

Runs in:   the daemon.

After some idle milliseconds neither that code nor the kernel's part of it is in the processor's caches any more, and
the client would wait until it is loaded again.
"""

from __future__ import annotations

from leeward.outcome import Outcome, Result
from leeward.run.runner import Runner
from leeward.wire import job as wire
from leeward.wire.answers import encode_result

_ANY = Result(b"\n", b"", 0, Outcome.FINISHED, duration=0.001, cpu_time=0.001, memory_peak=1 << 20)


def rehearse(runner: Runner) -> None:
    """Take the steps of the answer to *runner*'s job, without any effect."""
    runner.leaf.usage()
    runner.denied()
    wire.read_reply(wire.NOTHING_TO_TELL, 0)
    encode_result(0, _ANY)
