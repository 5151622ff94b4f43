"""
`leeward approvals serve` that ends itself by SIGKILL between two steps.

Runs in:   a process of its own, for the tests: python -m kit.dying_service STEP FILE [OPTIONS of serve]. It ends itself
           once FILE is there, so that it can see to what the one before has left.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Iterable

from leeward.approvals import projects, service, serving
from leeward.approvals.apply import Project
from leeward.approvals.carrying import OrderCarrier
from leeward.approvals.queue import ApprovalQueue
from leeward.approvals.requests import ApprovalRequest
from leeward.approvals.store import RequestStore

#: Of an approved file, one after the other: in the transaction that decides, after it and before anybody is told, and
#: before each step of the writing.
FILE_STEPS = ("deciding", "decided", "begin", "begun", "write", "place", "clean", "sync", "finished")

#: Of a push, a key and a command: "finish" is when it was done and the queue doesn't know.
OTHER_STEPS = ("decided", "begun", "finish", "finished")


def _die_at(wanted: str, armed: str) -> None:
    def fault(step: str) -> None:
        if step == wanted and os.path.exists(armed):
            os.kill(os.getpid(), signal.SIGKILL)

    decide, tell = RequestStore.decide, ApprovalQueue._tell

    def deciding(store: RequestStore, number: int, status: str, by: str, now: float, rule: str = "") -> bool:
        done = decide(store, number, status, by, now, rule)
        if "approved" == status:
            fault("deciding")
        return done

    def telling(queue: ApprovalQueue, numbers: Iterable[int]) -> list[ApprovalRequest]:
        found = tell(queue, numbers)
        if any("due" == request.stage for request in found):
            fault("decided")
        return found

    RequestStore.decide, ApprovalQueue._tell = deciding, telling  # type: ignore[method-assign, assignment]  # that is the fault
    faulty = functools.partial(Project, fault=fault)
    vars(projects)["Project"] = vars(serving)["Project"] = faulty
    vars(service)["OrderCarrier"] = functools.partial(OrderCarrier, fault=fault)


def main() -> None:
    from leeward_cli.main import main as run

    _die_at(*sys.argv[1:3])
    sys.argv = ["leeward", "approvals", "serve", *sys.argv[3:]]
    run()


if __name__ == "__main__":
    main()
