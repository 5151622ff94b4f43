"""What a tree of processes is charged: shared pages once, and never less than what is held."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys

import pytest

from leeward.isolation.cgroup import watch
from leeward.isolation.cgroup.watch import PAGE, Account, Key, ProcessSample

MIB = 1 << 20
JOB: Key = (100, 1)
BASE = 10 * MIB  # what the job has from its keeper


def process(pid: int, parent: Key | None, resident: int, faulted: int, *, tables: int = 0, shared: int = 0,
            time: float = 0.0, waited: float = 0.0, tasks: int = 1, late: int = 0) -> ProcessSample:
    """
    A process that has *resident* bytes and made *faulted* of them, or others, by faults, *late* of them perhaps after
    `resident` was read.
    """
    return ProcessSample((pid, 1), parent, resident, tables, shared, faulted // PAGE, time, waited, tasks, late // PAGE)


def look(account: Account, *processes: ProcessSample, files: int | None = 0) -> int:
    """The bytes charged at one look."""
    account.note(processes, files=files)
    return account.memory


@pytest.fixture
def account() -> Account:
    """Of a job that is armed, and was looked at before it started."""
    made = Account()
    look(made, process(100, None, BASE, 0))
    return made


def test_pages_of_the_keeper_are_not_charged_to_the_job(account):
    """A job that has done nothing is charged nothing."""
    assert account.memory == 0


def test_a_job_is_charged_the_pages_that_it_touched(account):
    """As far as they are resident: pages that it gave back aren't counted."""
    assert look(account, process(100, None, BASE + 50 * MIB, 50 * MIB)) == 50 * MIB
    assert look(account, process(100, None, 20 * MIB, 500 * MIB)) == 20 * MIB
    assert account.memory_peak == 50 * MIB


def test_page_tables_are_always_charged(account):
    """Sparse touching makes more of them than of pages."""
    assert look(account, process(100, None, BASE, MIB, tables=40 * MIB)) == 41 * MIB


def test_a_pool_that_only_reads_is_charged_once(account):
    """100 MiB and ten children: not 1,100."""
    held = BASE + 100 * MIB
    look(account, process(100, None, held, 100 * MIB))
    children = [process(200 + i, JOB, held, 0) for i in range(10)]

    assert look(account, process(100, None, held, 100 * MIB), *children) == 100 * MIB


def test_a_pool_that_is_forked_at_once_is_charged_once(account):
    """Between two looks: what the children came with tells how much the parent had made before."""
    held = BASE + 100 * MIB
    children = [process(200 + i, JOB, held, 0) for i in range(10)]

    assert look(account, process(100, None, held, 100 * MIB), *children) == 100 * MIB


def test_what_c_saw_of_a_process_counts_when_it_forks(account):
    """It gave back 1,000 MiB while only C looked: its child, which has none of these, isn't charged for them."""
    held = BASE + 100 * MIB
    account.wore(JOB, 1100 * MIB // PAGE, 0, held)
    parent, child = process(100, None, held, 1100 * MIB), process(200, JOB, held, 0)

    assert look(account, parent, child) == 110 * MIB


@pytest.mark.parametrize("read", [0, 20 * MIB], ids=["before the touching", "after it"])
def test_pages_touched_while_the_look_reads_are_no_wear(account, read):
    """
    The faults are read before and after the resident pages. The daemon may wait for a processor in between, while the
    job, whose eight children read its 30 MiB, touches 20 MiB more.
    """
    held = BASE + 30 * MIB
    children = [process(200 + i, JOB, held, 0) for i in range(8)]
    look(account, process(100, None, held, 30 * MIB), *children)

    assert look(account, process(100, None, held + read, 50 * MIB, late=20 * MIB), *children) <= 50 * MIB
    assert look(account, process(100, None, held + 20 * MIB, 50 * MIB), *children) == 50 * MIB


def test_wear_that_one_look_cannot_tell_is_added_by_a_later_one(account):
    """The parent overwrites 40 MiB that its child shares, and a look can't tell whether it did so before."""
    held = BASE + 100 * MIB
    child = process(200, JOB, held, 0)
    look(account, process(100, None, held, 100 * MIB), child)
    look(account, process(100, None, held, 140 * MIB, late=40 * MIB), child)

    assert look(account, process(100, None, held, 140 * MIB), child) >= 140 * MIB


def test_a_child_that_writes_is_charged_its_copies(account):
    """Page by page."""
    held = BASE + 100 * MIB
    look(account, process(100, None, held, 100 * MIB))

    assert look(account, process(100, None, held, 100 * MIB), process(200, JOB, held, 30 * MIB)) == 130 * MIB


def test_a_parent_that_writes_leaves_its_old_pages_to_the_child(account):
    """Twice the memory, though no resident set grows: the way to hide it that a sum of own faults misses."""
    held = BASE + 100 * MIB
    look(account, process(100, None, held, 100 * MIB), process(200, JOB, held, 0))

    assert look(account, process(100, None, held, 200 * MIB), process(200, JOB, held, 0)) >= 200 * MIB


def test_a_parent_that_gives_memory_back_leaves_it_to_the_child(account):
    """So does one that execs. Nobody's resident set shows that the child has it alone now."""
    held = BASE + 100 * MIB
    look(account, process(100, None, held, 100 * MIB))
    look(account, process(100, None, held, 100 * MIB), process(200, JOB, held, 0))

    assert look(account, process(100, None, BASE, 100 * MIB), process(200, JOB, held, 0)) >= 100 * MIB


def test_later_pages_of_a_parent_are_its_own(account):
    """A child that was forked before is not charged for it."""
    look(account, process(100, None, BASE, 0), process(200, JOB, BASE, 0))

    assert look(account, process(100, None, BASE + 90 * MIB, 90 * MIB), process(200, JOB, BASE, 0)) == 90 * MIB


def test_a_child_is_never_charged_more_than_it_has(account):
    """However busy its parent is."""
    look(account, process(100, None, BASE, 900 * MIB))
    look(account, process(100, None, BASE, 900 * MIB), process(200, JOB, BASE, 0))

    got = look(account, process(100, None, BASE, 1800 * MIB), process(200, JOB, BASE, 0))

    assert got == 2 * BASE


def test_an_orphan_is_charged_its_pages_of_the_job(account):
    """Its parent's pages are its own now; those of the keeper are still the keeper's."""
    middle: Key = (200, 1)
    held = BASE + 60 * MIB
    look(account, process(100, None, BASE, 0), process(200, JOB, held, 60 * MIB), process(300, middle, held, 0))

    got = look(account, process(100, None, BASE, 0), process(300, None, held, 0))

    assert got == 60 * MIB


def test_an_orphan_of_an_unseen_parent_is_charged_all(account):
    """It may have come from anywhere in the job."""
    assert look(account, process(100, None, BASE, 0), process(300, None, 30 * MIB, 0)) == 30 * MIB


def test_a_pid_that_comes_round_again_is_another_process(account):
    """The start time tells."""
    look(account, process(100, None, BASE, 0), process(200, JOB, BASE, 0))
    again = dataclasses.replace(process(200, None, 30 * MIB, 0), key=(200, 9))

    assert look(account, process(100, None, BASE, 0), again) == 30 * MIB


def test_files_are_charged_once_or_where_they_are_mapped(account):
    """Once where the file system tells their size."""
    mapping = [process(100, None, BASE, 0, shared=20 * MIB), process(200, JOB, BASE, 0, shared=20 * MIB)]

    assert look(account, *mapping, files=25 * MIB) == 25 * MIB
    assert look(account, *mapping, files=None) == 40 * MIB


def test_time_and_tasks_never_go_back():
    """A process that nobody waited for takes its time with it."""
    account = Account()
    account.note([process(100, None, 0, 0, time=30, tasks=3), process(200, JOB, 0, 0, time=50, tasks=4)], files=0)
    account.note([process(100, None, 0, 0, time=31)], files=0, spent=5)

    assert account.time == 81
    assert account.tasks == 7


def test_the_time_of_a_child_counts_once() -> None:
    """What was seen of it, or what its parent was told when it waited: whichever is more."""
    account = Account()
    account.note([process(100, None, 0, 0, time=1.0), process(200, JOB, 0, 0, time=0.504)], files=0)
    account.note([process(100, None, 0, 0, time=1.25, waited=0.50)], files=0)
    assert 1.754 == pytest.approx(account.time)

    account.note([process(100, None, 0, 0, time=1.25, waited=0.90)], files=0)
    assert 2.15 == pytest.approx(account.time)


@pytest.mark.parametrize(("spent", "time"), [(2.5, 2.5), (0.1, 1.0)])
def test_at_the_end_the_init_knows_best_unless_it_was_killed_first(spent: float, time: float) -> None:
    account = Account()
    account.note([process(100, None, 0, 0, time=1.0)], files=0)
    account.end(spent)

    assert time == account.time


def test_an_empty_look_is_no_error():
    """The job was quicker."""
    account = Account()
    account.note([], files=None)

    assert (account.memory, account.time, account.tasks) == (0, 0, 0)


class Machine:
    """
    Processes with pages that they share: a model of the kernel, as far as the watch needs one.

    A page is a number; who maps it, holds it.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.pages = rng, iter(range(1 << 40))
        self.keeper = [next(self.pages) for _ in range(40)]
        self.maps: dict[int, dict[int, int]] = {100: dict(enumerate(self.keeper))}
        self.faults: dict[int, int] = {100: 0}
        self.parents: dict[int, int | None] = {100: None}

    def step(self) -> None:
        """One fork, exit, burst of writes or of new memory."""
        pid = self.rng.choice(list(self.maps))
        match self.rng.choice(("fork", "exit", "write", "write", "grow", "shrink")):
            case "fork" if len(self.maps) < 12:
                child = max(self.parents) + 1
                self.maps[child], self.faults[child], self.parents[child] = dict(self.maps[pid]), 0, pid
            case "exit" if pid != 100:
                del self.maps[pid]
                self.parents.update({child: None for child, parent in self.parents.items() if parent == pid})
            case "write":
                others = {page for other, pages in self.maps.items() if other != pid for page in pages.values()}
                others.update(self.keeper)
                for place in self.rng.sample(sorted(self.maps[pid]), len(self.maps[pid]) // 2):
                    if self.maps[pid][place] in others:
                        self.maps[pid][place] = next(self.pages)
                        self.faults[pid] += 1
            case "grow":
                for _ in range(self.rng.randrange(60)):
                    self.maps[pid][self.rng.randrange(1 << 30)] = next(self.pages)
                    self.faults[pid] += 1
            case "shrink":
                for place in self.rng.sample(sorted(self.maps[pid]), len(self.maps[pid]) // 4):
                    del self.maps[pid][place]


    def held(self) -> int:
        """Bytes that the job really holds."""
        pages = {page for pages in self.maps.values() for page in pages.values()}
        return len(pages - set(self.keeper)) * PAGE

    def seen(self) -> list[ProcessSample]:
        return [ProcessSample((pid, 1), (parent, 1) if (parent := self.parents[pid]) is not None else None,
                        len(pages) * PAGE, 0, 0, self.faults[pid], 0.0, 0.0, 1) for pid, pages in self.maps.items()]


@pytest.mark.parametrize("seed", range(10))
def test_a_tree_is_never_charged_less_than_it_holds_nor_more_than_is_resident(seed):
    """Whatever a tree of processes does between two looks."""
    rng = random.Random(seed)
    machine, account = Machine(rng), Account()
    account.note(machine.seen(), files=0)
    for _ in range(40):
        for _ in range(rng.randrange(1, 6)):
            machine.step()
        account.note(machine.seen(), files=0)

        assert machine.held() <= account.memory <= sum(each.resident for each in machine.seen())


@pytest.mark.parametrize("name", ["VmSwap:-999999", "VmPTE:", "RssAnon:x", "NSpid:\t1 x", "SigPnd:"])
def test_a_process_does_not_write_its_status_by_its_name(name: str) -> None:
    """Of which the kernel escapes newlines alone."""
    code = f"import ctypes\nctypes.CDLL(None).prctl(15, {b'%c' % 13 + name.encode()!r})\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as made:
        assert made.stdout is not None
        assert made.stdout.read(1)
        with watch.process(made.pid) as folder:
            resident, tables, _ = watch._memory(folder, 1)
            assert (True, True, made.pid) == (resident > 0, tables > 0, watch.numbers_of(folder)[0])
            assert 0 == watch.pending_of(folder)
        made.kill()


def test_all_children_are_listed() -> None:
    """However many: the kernel tells of a few hundred at a time."""
    code = ("import os, signal, sys\nfor _ in range(1000):\n if not os.fork():\n  signal.pause()\n"
            "print(flush=True)\nsys.stdin.read()\nos.killpg(0, 9)")
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          start_new_session=True) as made:
        assert made.stdout is not None
        assert made.stdout.read(1)
        with watch.process(made.pid) as folder:
            assert 1000 == len(set(watch.children_of(folder, made.pid)))
