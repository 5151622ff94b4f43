"""The supervisor's thread on real listeners: always EACCES, nobody waits for another, nothing is lost."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kit import confined
from kit.confined import NUMBER
from kit.unclosed import close_garbage
from kit.waiting import poll_until
from leeward.daemon.supervisor import Denied, Supervisor
from leeward.errors import KernelRefusal
from leeward.isolation.seccomp.rules import NOTIFY

pytestmark = pytest.mark.needs("seccomp-notify")

ROOT = Path(__file__).resolve().parents[2]
MOUNT = f"call({NUMBER['mount']})"


def ready(fd: int, seconds: float) -> bool:
    """Does *fd* become readable in time?"""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def spent(seconds: float) -> float:
    """Processor time of this process, the thread's included, over so long a while of idleness."""
    before = time.process_time()
    select.select([], [], [], seconds)
    return time.process_time() - before


def drained(supervisor: Supervisor, seconds: float = 10) -> list[Denied]:
    """The records that come next."""
    assert ready(supervisor.fileno(), seconds)
    return supervisor.drain()


def test_refuses_counts_and_reports(supervisor: Supervisor) -> None:
    """EACCES, and the process goes on; name, pid and job are known."""
    with confined.confined(f"tell([{MOUNT}, {MOUNT}, call({NUMBER['ptrace']})]); parent.recv(1)", supervisor) as child:
        assert [-errno.EACCES] * 3 == child.told()
        assert {"mount": 2, "ptrace": 1} == supervisor.counts(child.job)
        found: list[Denied] = []
        while sum(record.count for record in found) < 3:
            found += drained(supervisor)

    assert {("mount", child.process.pid, child.job), ("ptrace", child.process.pid, child.job)} == {
        (record.syscall, record.pid, record.job) for record in found}
    assert {os.uname().machine} == {record.arch for record in found}


def test_refused_calls_of_a_self_check_are_neither_counted_nor_reported(supervisor: Supervisor) -> None:
    """
    Until it is settled a runner's refusals wake nobody, and then they are gone; the same call of its job is counted
    from one, and reported.
    """
    code = f"tell([{MOUNT}, {MOUNT}]); parent.recv(1); tell({MOUNT}); parent.recv(1)"
    with confined.confined(code, supervisor, checking=True) as child:
        assert [-errno.EACCES] * 2 == child.told()
        assert {"mount": 2} == supervisor.counts(child.job)
        assert not ready(supervisor.fileno(), 0)
        supervisor.end_check(child.job)
        assert {} == supervisor.counts(child.job)
        assert 0 == supervisor.total(child.job)
        assert [] == supervisor.drain()
        child.go()
        assert -errno.EACCES == child.told()
        assert [("mount", 1)] == [(record.syscall, record.count) for record in drained(supervisor)]
        assert {"mount": 1} == supervisor.counts(child.job)


def test_a_call_that_a_job_repeats_is_reported_in_sums(supervisor: Supervisor) -> None:
    """c040: a flood is a few records; the counts are exact."""
    with confined.confined(f"parent.recv(1)\nfor _ in range(2000): {MOUNT}\ntell(1)\nparent.recv(1)", supervisor) as child:
        start = time.monotonic()
        child.go()
        records: list[Denied] = []
        while sum(record.count for record in records) < 2000:
            records += drained(supervisor)
        child.told()

        assert {"mount": 2000} == supervisor.counts(child.job)
    assert len(records) < 5 + 20 * (time.monotonic() - start)  # one each 100 ms


def test_one_drain_has_the_refused_calls_of_all_jobs(supervisor: Supervisor) -> None:
    """No job is left out because another one had records: they would come later, when another job has begun."""
    with contextlib.ExitStack() as stack:
        code = f"tell({MOUNT})\nparent.recv(1)"
        children = [stack.enter_context(confined.confined(code, supervisor)) for _ in range(5)]
        for child in children:
            child.told()

        assert sorted(child.job for child in children) == sorted(record.job for record in supervisor.drain())


def test_records_of_a_removed_job_are_drained_after_it(supervisor: Supervisor) -> None:
    """remove() gives the final counts, drain() the records."""
    with confined.confined(f"tell({MOUNT})", supervisor) as child:
        child.told()
        child.end()

        assert {"mount": 1} == supervisor.remove(child.job)
    assert [("mount", 1)] == [(record.syscall, record.count) for record in drained(supervisor)]


def test_counts_stay_when_all_tasks_are_dead(supervisor: Supervisor) -> None:
    """The hang-up is noticed without spinning."""
    with confined.confined(f"tell({MOUNT})", supervisor) as child:
        child.told()
        child.end()
        supervisor.drain()

        assert spent(0.3) < 0.1
        assert {"mount": 1} == supervisor.counts(child.job)


def test_a_listener_that_comes_when_all_tasks_are_dead(supervisor: Supervisor) -> None:
    """As that of a program that is over at once: nothing is left to answer, and its removal finds no counts."""
    child, listener = confined.start(f"tell({MOUNT})")
    confined.stop(child)
    assert ready(listener, 60)
    supervisor.add(listener, child.job)
    assert spent(0.2) < 0.1
    assert ({}, {}) == (supervisor.counts(child.job), supervisor.remove(child.job))
    with confined.confined(f"tell({MOUNT})", supervisor) as child:  # perhaps in its slot
        assert -errno.EACCES == child.told()


FLOOD = f"""
def flood():
    while True: {MOUNT}
for _ in range(8): threading.Thread(target=flood, daemon=True).start()
tell(1)
parent.recv(1)
"""

#: The time of 200 refused calls, in seconds, one by one.
TIMED = f"""
times = []
for _ in range(200):
    start = time.monotonic(); {MOUNT}; times.append(time.monotonic() - start)
tell(sorted(times))
parent.recv(1)
"""


def timed(supervisor: Supervisor) -> list[float]:
    """How long a job waits for its refusals."""
    with confined.confined(TIMED, supervisor) as child:
        times = child.told()
        assert isinstance(times, list)
        return times


def test_c040_a_flood_doesnt_slow_another_job(supervisor: Supervisor) -> None:
    """Eight threads refuse to stop; another job's calls are answered as promptly as without, and the flood is slowed."""
    alone = timed(supervisor)
    with confined.confined(FLOOD, supervisor) as flood:
        flood.told()
        beside = timed(supervisor)
        start, before = time.monotonic(), supervisor.counts(flood.job)["mount"]
        spent(0.5)
        rate = (supervisor.counts(flood.job)["mount"] - before) / (time.monotonic() - start)

    assert beside[len(beside) // 2] < 0.01 + 10 * alone[len(alone) // 2]
    assert beside[-1] < 0.1 + 10 * alone[-1]
    assert before > 1000
    assert rate < 6000  # 4000 by the thread's count, which begins anew every 10 ms


def test_c040_a_flood_is_answered_within_100_ms(supervisor: Supervisor) -> None:
    """c039: the flooding job's own calls wait their turn, no longer."""
    alone = timed(supervisor)
    with confined.confined(FLOOD + TIMED, supervisor) as child:
        child.told()
        child.go()
        times = child.told()

    assert isinstance(times, list)
    assert times[-1] < 0.1 + 10 * alone[-1]


def test_c039_answers_without_descriptors(supervisor: Supervisor) -> None:
    """EMFILE in the daemon keeps no answer back."""
    with confined.confined(f"parent.recv(1); tell([{MOUNT} for _ in range(100)])", supervisor) as child:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            child.go()
            assert [-errno.EACCES] * 100 == child.told()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_c035_without_a_supervisor_the_kernel_refuses() -> None:
    """SIGKILL the process that has the listener: ENOSYS for what was notified, also for a call that waits."""
    child, listener = confined.start(f"tell({MOUNT}); tell([{MOUNT}, call({NUMBER['seccomp']}, 1, 8, 0)])")
    with contextlib.closing(child.parent), child.process:
        holder = subprocess.Popen([sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"],
                                  pass_fds=[listener], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with holder:
            assert holder.stdout is not None
            holder.stdout.read(1)
            child.go()
            assert ready(listener, 10), "the call waits for its supervisor"
            os.close(listener)
            holder.kill()

        assert -errno.ENOSYS == child.told()
        assert [-errno.ENOSYS, -errno.EACCES] == child.told()


def test_removing_under_a_flood(supervisor: Supervisor) -> None:
    """The listener closes between two answers; the counts are those that the job saw, and then the kernel refuses."""
    code = f"""
refused = 0
tell(1)
while (got := {MOUNT}) == -{errno.EACCES}: refused += 1
tell([refused, got])"""
    for _ in range(5):
        with confined.confined(code, supervisor) as child:
            child.told()
            poll_until(lambda: supervisor.counts(child.job).get("mount", 0) >= 50,
                       "the thread counts, and says so of a few calls alone")
            counts = supervisor.remove(child.job)

            assert [counts["mount"], -errno.ENOSYS] == child.told()


def test_c037_a_target_that_dies_is_no_error_of_the_supervisor(supervisor: Supervisor) -> None:
    """Killed between asking and answering, a hundred times; the thread goes on, the job's count is bounded."""
    code = f"""
for _ in range(100):
    pid = os.fork()
    if not pid:
        while True: {MOUNT}
    time.sleep(0.001)  # a step of time on purpose: the kill comes at any moment of a call
    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
tell({MOUNT})"""
    with confined.confined(code, supervisor) as child:
        assert -errno.EACCES == child.told()
        assert {"mount"} == set(supervisor.counts(child.job))


def test_c042_memory_that_cant_be_read_is_no_matter(supervisor: Supervisor) -> None:
    """c036, c038: pointers to nowhere, huge names, a process that nobody may look into: the same answer."""
    told = []
    with confined.confined(f"""
huge = ctypes.create_string_buffer(b"a" * 100000)
calls = [{MOUNT}, call({NUMBER["mount"]}, 1, 1, 1, 1, 1), call({NUMBER["mount"]}, *[ctypes.addressof(huge)] * 3)]
libc.prctl(4, 0, 0, 0, 0)
tell(calls + [{MOUNT}, call({NUMBER["chroot"]}, ctypes.addressof(huge))])""", supervisor) as child:
        told = child.told()

    assert [-errno.EACCES] * 5 == told


@pytest.mark.needs("unfiltered")
def test_many_different_calls_are_all_named(supervisor: Supervisor) -> None:
    """c033: every call that is refused, one by one; each in the counts, each in a record."""
    bad = 0xFFFF_FFFF_FFFF_FFFF
    refused = {call.name: number for number, call in confined.HERE.calls.items()
               if NOTIFY == confined.HERE.decide(confined.HERE.audit_arch, number, (bad,) * 6)}
    with confined.confined(f"tell([call(number, *[{bad}] * 6) for number in {list(refused.values())}]); parent.recv(1)",
                           supervisor) as child:
        told = child.told()
        records: set[str] = set()
        while len(records) < len(refused):
            records |= {record.syscall for record in drained(supervisor)}

        assert dict.fromkeys(refused, 1) == supervisor.counts(child.job)
    assert [-errno.EACCES] * len(refused) == told
    assert set(refused) == records
    assert len(refused) > 100


def test_a_descriptor_that_is_no_listener(supervisor: Supervisor, tmp_path: Path) -> None:
    """The kernel says so, and the descriptor isn't leaked."""
    (tmp_path / "file").touch()
    fd = os.open(tmp_path / "file", os.O_RDONLY | os.O_CLOEXEC)
    with pytest.raises(KernelRefusal, match=r"epoll_ctl.*EPERM"):
        supervisor.add(fd, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_descriptor_that_can_be_polled_but_isnt_a_listener(supervisor: Supervisor) -> None:
    """It is given up on; others go on being answered, and nothing spins."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    supervisor.add(reader, 1)
    os.write(writer, b"x")
    os.close(writer)
    with confined.confined(f"tell({MOUNT})", supervisor) as child:
        assert -errno.EACCES == child.told()

    assert spent(0.2) < 0.1
    assert {} == supervisor.remove(1)


def test_no_descriptor_or_thread_is_left_after_close() -> None:
    """With listeners open or not."""
    close_garbage()
    before = set(os.listdir("/proc/self/fd")), set(os.listdir("/proc/self/task"))
    for _ in range(20):
        supervisor = Supervisor()
        child, listener = confined.start("parent.recv(1)")
        supervisor.add(listener, 1)
        supervisor.close()
        confined.stop(child)

    # Threads of tests before may still be on their way out.
    assert set() == set(os.listdir("/proc/self/fd")) - before[0]
    assert set() == set(os.listdir("/proc/self/task")) - before[1]


def test_python_may_be_busy(supervisor: Supervisor) -> None:
    """The thread never waits for the GIL: a Python that holds it for 300 ms delays no answer."""
    def waited() -> float:
        with confined.confined(f"""
parent.recv(1)
start = time.monotonic(); got = {MOUNT}; tell([got, time.monotonic() - start])""", supervisor) as child:
            sys.setswitchinterval(5)
            try:
                child.go()
                until = time.monotonic() + 0.3
                while time.monotonic() < until:
                    pass
                got, seconds = child.told()
            finally:
                sys.setswitchinterval(0.005)
        assert -errno.EACCES == got
        return float(seconds)

    # On a busy machine one may wait for a processor; who waits for the GIL does so each time.
    assert any(waited() < 0.1 for _ in range(5))


def test_one_code_path_continues_a_call() -> None:
    """
    c036: one place of ours names the flag that runs a call after all, once, for a call all of whose arguments are
    registers, and for `stat` and its like, which elsewhere no filter asks about.
    """
    sources = [*ROOT.glob("leeward/**/*.py"), *ROOT.glob("leeward/**/*.c"), *ROOT.glob("leeward/**/*.h")]

    assert len(sources) > 20
    assert {"supervisor_charges.c": 1} == {source.name: count for source in sources
                                           if (count := source.read_text().count("NOTIF_FLAG_CONTINUE"))}


def test_adding_and_removing_from_busy_threads(supervisor: Supervisor) -> None:
    """Jobs come and go while others are answered; each gets its own counts."""
    rounds, before = 10, threading.active_count()
    with confined.confined(FLOOD, supervisor):
        for _ in range(rounds):
            with confined.confined(f"tell([{MOUNT} for _ in range(10)])", supervisor) as child:
                assert [-errno.EACCES] * 10 == child.told()
                child.end()
                assert {"mount": 10} == supervisor.remove(child.job)

    assert before == threading.active_count()  # the native one isn't Python's


NATIVE = ROOT / "leeward" / "_native" / "src"

#: Control: the same program without its mutex.
WITHOUT_MUTEX = ["-Dpthread_mutex_lock=no_lock", "-Dpthread_mutex_unlock=no_lock"]


@pytest.mark.needs("compiler", "sanitizers")
@pytest.mark.parametrize("flags", [
    pytest.param([], id="as it is"), pytest.param(["-DWATCHES=1"], id="with inotify"),
    pytest.param(WITHOUT_MUTEX, id="control")])
def test_no_data_races(flags: list[str], tmp_path: Path) -> None:
    """ThreadSanitizer over jobs that flood, come, go, die and are asked about, all at once."""
    program = tmp_path / "races"
    subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=thread", f"-I{NATIVE}", *flags, "-o",
                    program, ROOT / "tests/native/supervisor_races.c", NATIVE / "supervisor.c",
                    *(NATIVE / f"supervisor_{part}.c" for part in ("charges", "ids", "owners", "watches")), "-pthread"],
                   check=True)
    # -R: this sanitizer's memory map is older than 32 bits of address randomness
    got = subprocess.run(["setarch", "-R", program], check=False, capture_output=True, text=True,
                         env={"TSAN_OPTIONS": "halt_on_error=1"})

    is_control = flags == WITHOUT_MUTEX
    assert is_control == ("data race" in got.stderr), got.stderr
    assert is_control or 0 == got.returncode, got.stderr


@pytest.mark.needs("compiler")
def test_what_all_sandboxes_remember_of_owners_has_a_bound(tmp_path: Path) -> None:
    """A single one may have all that a table holds; forty have 48 MiB together."""
    program = tmp_path / "owners"
    subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", f"-I{NATIVE}", "-o", program,
                    ROOT / "tests/native/supervisor_owners_bound.c", NATIVE / "supervisor.c",
                    *(NATIVE / f"supervisor_{part}.c" for part in ("charges", "ids", "watches")), "-pthread"], check=True)
    first, together, left = map(int, subprocess.run([program], check=True, capture_output=True).stdout.split())

    assert 1 << 17 == first < together <= 48 * (1 << 20) // 24
    assert 0 == left
