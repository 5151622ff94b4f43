"""Names, sums and bounds of what the thread counted; the thread is a fake."""

from __future__ import annotations

import os

import pytest

import leeward.daemon.supervisor
from leeward._native.supervisor import OTHER_NR, Tally
from leeward.daemon.supervisor import DEPARTED, Denied, Supervisor
from leeward.errors import Bug, KernelRefusal
from leeward.isolation.seccomp.syscalls import AUDIT_ARCH

X86, ARM = AUDIT_ARCH["x86_64"], AUDIT_ARCH["aarch64"]


class FakeThread:
    """Has one tally for each job, and closes nothing."""

    def __init__(self) -> None:
        self.tallies: dict[int, list[Tally]] = {}
        self.drained: list[Tally] = []
        self.granted: dict[int, int] = {}
        self.full = False
        self.stopped = False

    def add(self, fd: int, job: int, *, quiet: bool = False, of: int = -1) -> int:
        if self.full:
            raise KernelRefusal("epoll_ctl", "EPOLL_CTL_ADD", 28)
        os.close(fd)
        self.tallies[job] = []
        if of in self.granted:
            self.granted[job] = self.granted[of]
        return job

    def end_check(self, slot: int) -> None:
        self.tallies[slot] = []

    def counts(self, slot: int) -> list[Tally]:
        return self.tallies[slot]

    def grant(self, slot: int, limit: int, files: int) -> None:
        self.granted[slot] = limit

    def set_watches(self, most: int) -> None:
        self.watches = most

    def set_watchers(self, most: int, queue: int) -> None:
        self.watchers = most

    def share(self, slot: int, of: int) -> None:
        self.granted[slot] = self.granted[of]

    def charged(self, slot: int) -> int:
        return self.granted.get(slot, 0)

    def remove(self, slot: int) -> list[Tally]:
        return self.tallies.pop(slot)

    def drain(self) -> list[Tally]:
        drained, self.drained = self.drained, []
        return drained

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> FakeThread:
    """What the next Supervisor runs."""
    made = FakeThread()
    monkeypatch.setattr(leeward.daemon.supervisor, "Thread", lambda: made)
    return made


def descriptor() -> int:
    """Some descriptor to give away."""
    return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


def closed(fd: int) -> bool:
    """Is it?"""
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def test_counts_go_by_name(thread: FakeThread) -> None:
    """The kernel's names, on each architecture; a number for what has none; "other" for what came too late."""
    supervisor = Supervisor()
    supervisor.add(descriptor(), 7)
    thread.tallies[7] = [Tally(7, 3, 0, X86, 165, 1), Tally(7, 2, 0, ARM, 165, 1), Tally(7, 1, 0, X86, 999, 1),
                         Tally(7, 9, 0, 0, OTHER_NR, 1), Tally(7, 4, 0, 0x28, 5, 1)]

    assert {"mount": 3, "getrusage": 2, "syscall_999": 1, "other": 9, "syscall_5": 4} == supervisor.counts(7)
    assert {"mount": 3, "getrusage": 2, "syscall_999": 1, "other": 9, "syscall_5": 4} == supervisor.remove(7)


def test_records_have_the_new_refusals(thread: FakeThread) -> None:
    """A record's count is since the last one, the result's is since the start."""
    supervisor = Supervisor()
    thread.drained = [Tally(7, 100, 3, X86, 165, 4711)]

    assert [Denied(job=7, syscall="mount", arch="x86_64", pid=4711, count=3)] == supervisor.drain()
    assert [] == supervisor.drain()


def test_records_outlive_their_job(thread: FakeThread) -> None:
    """What wasn't drained when a job went is drained after."""
    supervisor = Supervisor()
    supervisor.add(descriptor(), 7)
    thread.tallies[7] = [Tally(7, 5, 2, X86, 165, 1), Tally(7, 5, 0, X86, 166, 1)]

    assert {"mount": 5, "umount2": 5} == supervisor.remove(7)
    assert [Denied(7, "mount", "x86_64", 1, 2)] == supervisor.drain()
    assert [] == supervisor.drain()


def test_undrained_records_are_lost_and_counted(thread: FakeThread) -> None:
    """c039: bounded; the counts of results aren't touched."""
    supervisor = Supervisor()
    for job in range(DEPARTED + 3):
        supervisor.add(descriptor(), job)
        thread.tallies[job] = [Tally(job, 1, 1, X86, 165, 1)]
        assert {"mount": 1} == supervisor.remove(job)

    assert 3 == supervisor.lost
    assert list(range(3, DEPARTED + 3)) == [record.job for record in supervisor.drain()]


def test_add_takes_the_descriptor_also_when_it_fails(thread: FakeThread) -> None:
    """Nobody else closes it."""
    supervisor = Supervisor()
    thread.full = True
    fd = descriptor()
    with pytest.raises(KernelRefusal, match="ENOSPC"):
        supervisor.add(fd, 7)

    assert closed(fd)
    assert {} == supervisor.remove(7)


def test_a_job_has_one_listener(thread: FakeThread) -> None:
    """A second one is a mistake of ours."""
    supervisor = Supervisor()
    supervisor.add(descriptor(), 7)
    fd = descriptor()
    with pytest.raises(Bug, match="job 7"):
        supervisor.add(fd, 7)

    assert closed(fd)


def test_removing_twice_is_harmless(thread: FakeThread) -> None:
    """A worker that is lost in the middle is taken down from two sides."""
    supervisor = Supervisor()
    supervisor.add(descriptor(), 7)

    assert {} == supervisor.remove(7)
    assert {} == supervisor.remove(7)


def test_closing_ends_the_thread(thread: FakeThread) -> None:
    """And only that."""
    Supervisor().close()

    assert thread.stopped


def test_jobs_of_one_limit_share_its_grants(thread: FakeThread) -> None:
    """Grants of an ended job aren't counted."""
    supervisor = Supervisor()
    for job in (1, 2, 3):
        supervisor.add(os.open("/dev/null", os.O_RDONLY), job)
    supervisor.grant(1, 4096, -1)
    supervisor.share(2, 1)
    supervisor.remove(1)
    supervisor.share(3, 1)

    assert [4096, 0] == [supervisor.charged(job) for job in (2, 3)]
