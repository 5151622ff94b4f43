"""
`leeward approvals serve` that ends itself by SIGKILL between two steps.

Runs in:   a process of its own, for the tests: python -m kit.dying_service STEP FILE [OPTIONS of serve]. It ends itself
           only once FILE exists, so that it can first carry out what the service before it has left.
"""

from __future__ import annotations

import os
import signal
import sys

from kit import points

#: The steps of an approved file, in their order: in the transaction that decides, after it and before a client gets the
#: decision, and before each step of the writing.
FILE_STEPS = ("deciding", "decided", "begin", "begun", "write", "place", "clean", "sync", "finished")

#: The steps of a push, a key and a command. At "finish" it is done, and the queue doesn't know that yet.
OTHER_STEPS = ("decided", "begun", "finish", "finished")


def _die_at(wanted: str, armed: str) -> None:
    def reached(step: str) -> None:
        if step == wanted and os.path.exists(armed):
            os.kill(os.getpid(), signal.SIGKILL)

    from leeward.apps.approvals.queue import approval_request  # noqa: F401  # which makes the point

    points.fill("approvals.step", reached)


def main() -> None:
    points.build()
    _die_at(*sys.argv[1:3])

    from leeward_cli.main import main as run

    sys.argv = ["leeward", "approvals", "serve", *sys.argv[3:]]
    run()


if __name__ == "__main__":
    main()
