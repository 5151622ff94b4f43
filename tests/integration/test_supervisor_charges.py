"""
What the supervisor grants and charges, on real listeners: see docs/decisions/0046. With a daemon around it:
test_charged_memory.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import confined
from kit.confined import NUMBER
from leeward.isolation.seccomp import filters
from leeward.supervisor import Supervisor

pytestmark = pytest.mark.needs("seccomp-notify")

#: A shared mapping without a file, of so many bytes, where the filter asks the supervisor.
UNCOUNTED = filters.program(memory_counted=False, affinity_fixed=True, arch=os.uname().machine).insns
MAPPED = f"call({NUMBER['mmap']}, 0, {{}}, 3, 0x21, -1, 0)"


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    made = Supervisor()
    yield made
    made.close()


@pytest.mark.parametrize("shares", [False, True])
def test_grants_what_it_charges(supervisor: Supervisor, tmp_path: Path, shares: bool) -> None:
    """
    Nothing before it is told to; a length beyond what is left is ENOMEM; what shares a limit takes from it, and gives
    it back by its end. An owner that goes leaves nothing to grant.
    """
    def one(*calls: str) -> str:
        return f"tell([got if -200 < got < 0 else 0 for got in ({', '.join(calls)},)])\nlink.recv(1)"

    large, small, file = MAPPED.format(10 << 20), MAPPED.format(1), f"call({NUMBER['memfd_create']}, 0, 0)"
    folder = os.open(tmp_path, os.O_PATH)
    with contextlib.ExitStack() as stack:
        def child(*calls: str) -> confined.Confined:
            return stack.enter_context(confined.confined("link.recv(1)\n" + one(*calls), supervisor, program=UNCOUNTED))

        refused = child(small, file)
        refused.go()
        assert [-errno.EACCES] * 2 == refused.told()

        first, second = child(large, large, small, file), child(small, file, large)
        supervisor.grant(first.job, 11 << 20, folder)
        if shares:
            supervisor.share(second.job, first.job)
        else:
            supervisor.grant(second.job, 8192, -1)
        first.go()
        assert [0, -errno.ENOMEM, 0, 0] == first.told()
        assert (10 << 20) + 3 * 4096 == supervisor.charged(first.job)

        second.go()
        assert ([0, 0, -errno.ENOMEM] if shares else [0, -errno.EACCES, -errno.ENOMEM]) == second.told()
        assert (10 << 20) + (5 if shares else 3) * 4096 == supervisor.charged(first.job)
        assert {} == supervisor.counts(first.job)
        supervisor.remove(second.job)
        assert (10 << 20) + 3 * 4096 == supervisor.charged(first.job)
    os.close(folder)
    assert [] == list(tmp_path.iterdir())


#: Eight threads, which signals interrupt, each with so many mappings; how many there were.
AT_ONCE = f"""
link.recv(1)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
got = []
def run():
    for _ in range(60):
        got.append({MAPPED.format(1)} not in (-errno.ENOMEM, -errno.EINTR))
threads = [threading.Thread(target=run) for _ in range(8)]
[each.start() for each in threads]
[each.join() for each in threads]
tell([sum(got), len(got)])
link.recv(1)
"""


def test_charges_no_less_than_it_grants_under_signals(supervisor: Supervisor) -> None:
    """
    A call that is interrupted and made again may be charged twice; none goes on without.
    """
    with confined.confined(AT_ONCE, supervisor, program=UNCOUNTED) as child:
        supervisor.grant(child.job, 200 * 8192, -1)
        child.go()
        granted, tried = child.told()

        assert 480 == tried
        assert granted * 8192 <= supervisor.charged(child.job) <= 200 * 8192
        assert 100 <= granted
