"""
What the supervisor grants and charges, on real listeners: see docs/decisions/0046. With a daemon around it:
test_charged_memory.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from kit import confined
from kit.confined import NUMBER
from leeward.daemon.supervisor import Supervisor
from leeward.isolation.seccomp import filters

pytestmark = pytest.mark.needs("seccomp-notify")

#: A shared mapping without a file, of so many bytes, where the filter asks the supervisor.
UNCOUNTED = filters.program(memory_counted=False, affinity_fixed=True, arch=os.uname().machine).insns
MAPPED = f"call({NUMBER['mmap']}, 0, {{}}, 3, 0x21, -1, 0)"


@pytest.mark.parametrize("shares", [False, True])
def test_the_supervisor_grants_only_what_it_charges(supervisor: Supervisor, tmp_path: Path, shares: bool) -> None:
    """
    No mapping before it is allowed; a length beyond the rest is ENOMEM; processes that share a limit take from it,
    and their end gives it back. An owner that goes leaves no grant.
    """
    def one(*calls: str) -> str:
        return f"tell([got if -200 < got < 0 else 0 for got in ({', '.join(calls)},)])\nparent.recv(1)"

    large, small, file = MAPPED.format(10 << 20), MAPPED.format(1), f"call({NUMBER['memfd_create']}, 0, 0)"
    folder = os.open(tmp_path, os.O_PATH)
    with contextlib.ExitStack() as stack:
        def child(*calls: str) -> confined.Confined:
            return stack.enter_context(confined.confined("parent.recv(1)\n" + one(*calls), supervisor, program=UNCOUNTED))

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


#: The same for watches of epoll, where a cgroup counts memory but workers share a user id.
OF_ONE_USER = filters.program(memory_counted=True, affinity_fixed=True, arch=os.uname().machine, shared=True).insns

#: Has one epoll descriptor wait for `count` others, or for as many as it may; how many, and why no more.
WATCH = """
import select
epoll, done = select.epoll(), []
try:
    while len(done) < {count}:
        fd = os.eventfd(0)
        epoll.register(fd, select.EPOLLIN)
        done.append(fd)
    tell([len(done), 0])
except OSError as error:
    tell([len(done), error.errno])
parent.recv(1)
"""


@pytest.mark.parametrize("program", [UNCOUNTED, OF_ONE_USER], ids=["uncounted", "of-one-user"])
def test_a_job_gets_as_many_watches_as_it_leaves(tmp_path: Path, program: bytes) -> None:
    """
    Half of what there is, then half of the rest, and so on; what is over gives back its own. What shares a limit has
    its part of that together.
    """
    supervisor = Supervisor(watches=100)
    with contextlib.ExitStack() as stack:
        def child(count: int = 1000) -> confined.Confined:
            return stack.enter_context(confined.confined("parent.recv(1)\n" + WATCH.format(count=count), supervisor,
                                                         program=program))

        def told(one: confined.Confined) -> object:
            one.go()
            return one.told()

        first, second, third, beside = child(), child(), child(10), child()
        supervisor.share(beside.job, first.job)
        assert [50, errno.ENOSPC] == told(first)
        assert [0, errno.ENOSPC] == told(beside)
        assert [25, errno.ENOSPC] == told(second)
        assert [10, 0] == told(third)
        assert [{}] * 4 == [supervisor.counts(each.job) for each in (first, second, third, beside)]
        supervisor.remove(beside.job)
        supervisor.remove(first.job)
        assert [33, errno.ENOSPC] == told(child())  # of 65 that are left
    supervisor.close()


def test_c493_watches_stay_counted_while_another_process_may_have_the_descriptor() -> None:
    """One that has made some passes its descriptor on, and ends: the kernel still counts them, and so do we."""
    counting = Supervisor(watches=100)
    with contextlib.ExitStack() as stack:
        def child() -> confined.Confined:
            return stack.enter_context(confined.confined("parent.recv(1)\n" + WATCH.format(count=1000), counting,
                                                         program=OF_ONE_USER))

        def made(one: confined.Confined) -> int:
            one.go()
            return int(one.told()[0])

        first, others = child(), [child() for _ in range(3)]
        for one in others:
            counting.share(one.job, first.job)
        assert 50 == made(others[0])
        counting.remove(others[0].job)
        assert 0 == made(others[1])
        counting.remove(others[1].job)
        counting.remove(others[2].job)  # nobody is left that could have it
        assert 50 == made(first)
    counting.close()


def test_watches_are_charged_where_no_controller_counts_them(supervisor: Supervisor) -> None:
    """256 bytes each, of the job's limit: what the kernel keeps is less."""
    plenty = Supervisor(watches=1 << 30)
    with confined.confined("parent.recv(1)\n" + WATCH.format(count=1000), plenty, program=UNCOUNTED) as child:
        plenty.grant(child.job, 40 * 256, -1)
        child.go()
        assert [40, errno.ENOMEM] == child.told()
        assert 40 * 256 == plenty.charged(child.job)
    plenty.close()
    with confined.confined("parent.recv(1)\n" + WATCH.format(count=1000), supervisor, program=UNCOUNTED) as child:
        child.go()
        assert [0, errno.EACCES] == child.told()  # of a supervisor that was told of none


#: Eight threads, which signals interrupt, each with so many mappings; how many there were.
AT_ONCE = f"""
parent.recv(1)
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
parent.recv(1)
"""


def test_charges_no_less_than_it_grants_under_signals(supervisor: Supervisor) -> None:
    """A call that is interrupted and made again may be charged twice; none goes on without."""
    with confined.confined(AT_ONCE, supervisor, program=UNCOUNTED) as child:
        supervisor.grant(child.job, 200 * 8192, -1)
        child.go()
        granted, tried = child.told()

        assert 480 == tried
        assert granted * 8192 <= supervisor.charged(child.job) <= 200 * 8192
        assert 100 <= granted
