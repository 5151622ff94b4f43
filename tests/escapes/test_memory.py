"""
Memory: all that a job can take is counted against one limit, whoever holds it. Catalogue cases 53, 54 and 66.

What becomes of each attack under which driver is a table in docs/kernel.md, which these tests keep true.
"""

from __future__ import annotations

import os
import secrets
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from kit.attack import serves, within
from kit.box import RUNS, Box, control, run_outside
from kit.drivers import BorrowedDriver
from kit.memory_attacks import AROUND, BESIDE, BEYOND, CODE, HIDDEN, KERNEL, TOUCH
from kit.promises import promised
from kit.running import running, status
from leeward._native.supervisor import INSTANCES
from leeward.isolation.watching import watchers
from leeward.spec.limits import MIB, Limits
from leeward.spec.outcome import Limit, Outcome, Result

Only = Callable[..., Box]

#: How far a job may get before a watch has looked. docs/threat-model.md has what was measured; this is for a
#: machine so busy that the daemon waits for a processor, and tells only that it did look.
LATE = 2


@pytest.fixture(autouse=True)
def _still_serves(held: Box) -> Iterator[None]:
    yield
    assert serves(held)


ALL = {**dict.fromkeys(TOUCH, 256 * MIB), **{name: limit for name, (_, limit) in {**HIDDEN, **KERNEL}.items()}}


#: The limit where a watch doesn't see what a job takes: all that eight forked interpreters inherit, with which it charges
#: each if it looked at their parent long before the fork.
FORKS = 128 * MIB

#: Seconds in which a watch that shall end a job has to look at it, on a machine where the daemon waits for a processor;
#: and those for a few looks, where it may go on.
ENDS_S, GOES_ON_S = 30.0, 0.05


def code_of(name: str, seconds: float = GOES_ON_S) -> str:
    code = TOUCH[name] if name in TOUCH else {**HIDDEN, **KERNEL}[name][0]
    return AROUND.replace("SECONDS", str(seconds)).replace("{}", textwrap.indent(code.strip("\n"), " " * 8))


def verdict(got: Result) -> str:
    """In the table's words."""
    if Outcome.OUT_OF_MEMORY is got.outcome:
        assert Limit.MEMORY is got.limit
        return "ended"
    assert Outcome.FINISHED is got.outcome, (got, got.error)
    assert not got.stderr, got.stderr
    return got.stdout_text


@pytest.fixture(scope="module")
def beyond(unlimited: Box) -> Callable[[str], str]:
    """What each attack says where no driver holds it, with every other lock: found out once."""
    found: dict[str, str] = {}

    def ask(name: str) -> str:
        if name in found:
            RUNS.append(unlimited.made_of)  # it did, for the driver before
        else:
            found[name] = verdict(unlimited.run(code_of(name), limits={"memory": ALL[name]}))
        return found[name]
    return ask


def hiding(names: Iterable[str]) -> list[ParameterSet]:
    """Each attack, and a mark for what holds it."""
    return [pytest.param(name, marks=pytest.mark.lock("limits", beside=BESIDE[name][0], because=BESIDE[name][1])
                         if name in BESIDE else pytest.mark.lock("limits")) for name in names]


def expect(box: Box, name: str) -> None:
    driver = box.engine.driver.name
    what = promised(name, driver)
    limit, seconds = FORKS if "beyond" in what else ALL[name], ENDS_S if "ended" == what else GOES_ON_S
    got = box.run(code_of(name, seconds), limits={"memory": limit, "time": 2 * ENDS_S})

    # Shared memory without a name is also charged when it is mapped, and that may be first if the watch is late.
    refused_first = "none" == driver and "leaves one page mapped of each shared memory without a name" == name
    assert verdict(got) in (what, *(("ENOMEM",) if refused_first else ()))
    if "none" != driver:
        assert got.memory_peak <= ALL[name] * 1.1
    elif name in TOUCH:  # others are charged by what they might hold
        assert got.memory_peak <= ALL[name] * LATE


@pytest.mark.lock("limits")
@pytest.mark.parametrize("name", [name for name in TOUCH if name != CODE])
def test_c053_cannot_touch_more_than_its_limit(held: Box, held_alone: Box, beyond: Callable[[str], str],
                                               name: str) -> None:
    """Whatever way it asks for 600 MiB, it is ended or refused at 256; by the driver alone, too."""
    with control():  # it is the driver that holds it
        assert "done" == beyond(name)

    for box in (held, held_alone):
        expect(box, name)


@pytest.mark.lock("limits", beside=("seccomp",), because="the supervisor raises the limit that would refuse it")
def test_c053_cannot_touch_more_code_than_its_limit(held: Box, held_with: Only, beyond: Callable[[str], str]) -> None:
    with control():
        assert "done" == beyond(CODE)

    for box in (held, held_with("seccomp")):
        expect(box, CODE)


@pytest.mark.smoke
@pytest.mark.no_single_lock("nothing happens to a neighbour without a limit either: it is about what a limit ends")
def test_c053_the_daemon_and_a_job_beside_it_are_unaffected(held: Box) -> None:
    """A neighbour with 50 MiB of its own, keeper and zygote are what they were when the job has been ended."""
    neighbour = b"import os, signal\nkept = b'x' * (50 << 20)\nos.write(1, b'here')\nwhile True: signal.pause()\n"
    with Box(pool_size=2, driver=BorrowedDriver(held.engine.driver)) as box, running(box, neighbour) as there:
        box.run("print(1)")  # both workers have had a job

        def resident() -> dict[int, int]:
            return {pid: int(status(pid)["RssAnon"].split()[0]) >> 10
                    for pid in (there.job, there.keeper, there.zygote, os.getpid())}

        before = resident()
        with control():  # it is there to be taken away
            assert before[there.job] >= 50

        expect(box, "touches 600 mappings of 1 MiB")

        after = resident()
        assert before[there.job] == after[there.job]
        assert all(abs(after[pid] - before[pid]) <= 4 for pid in before), (before, after)


@pytest.mark.parametrize("name", hiding(HIDDEN))
def test_c054_cannot_hide_memory_from_its_limit(held: Box, held_with: Only, beyond: Callable[[str], str],
                                                name: str) -> None:
    """Memory that is in no process's resident set is counted, or can't be had."""
    with control():
        assert beyond(name) == BEYOND.get(name, "done")

    for box in (held, held_with(*BESIDE.get(name, ((), ""))[0])):
        expect(box, name)


@pytest.mark.lock("mounts")
def test_c054_files_in_memory_go_with_the_job(held: Box, only: Only) -> None:
    """Six jobs, each of which leaves 30 MiB in files: the host has no more of such pages than before."""
    left = Path(f"/dev/shm/left-{secrets.token_hex(8)}")
    with control():  # without a mount of its own it outlives who made it
        run_outside(f"open('{left}', 'wb').write(bytes(1 << 20))")
        assert 1 << 20 == left.stat().st_size
    left.unlink()

    def shared() -> int:
        row = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Shmem:"))
        return int(row.split()[1]) >> 10

    full = "with open('/dev/shm/left', 'wb') as file:\n    file.write(bytes(30 << 20))\n"
    def shown() -> int:
        before = shared()
        with running(held, (full + "import os, signal\nos.write(1, b'here')\nsignal.pause()").encode()):
            return shared() - before

    def left_by(box: Box) -> int:
        before = shared()
        for _ in range(6):
            assert Outcome.FINISHED is box.run(full).outcome
        return shared() - before

    # Others on this machine make and remove files, too, but hardly so that each try looks otherwise than it is.
    with control():  # this is where they show
        assert any(shown() >= 20 for _ in range(5))
    for box in (held, only("mounts")):
        assert any(left_by(box) < 90 for _ in range(5))  # of 180


@pytest.mark.lock("limits")
@pytest.mark.parametrize("name", KERNEL)
def test_c066_cannot_have_memory_of_the_kernel(held: Box, held_alone: Box, beyond: Callable[[str], str],
                                               name: str) -> None:
    """Watches are counted as memory is, where anything counts."""
    with control():
        assert "beyond" in beyond(name)

    for box in (held, held_alone):
        expect(box, name)


OBJECTS = """
kinds = {}
def until_refused(name, make):
    made, said = 0, ""
    while made < 10_000 and not said:
        got = make(made)
        made, said = (made + 1, "") if got >= 0 else (made, errno.errorcode[-got])
    kinds[name] = [made, said]
slot = ctypes.c_int()
until_refused("timers", lambda _: value("timer_create", 1, None, ctypes.byref(slot)))
until_refused("inotify", lambda _: value("inotify_init1", 0))
until_refused("mqueues", lambda n: value("mq_open", b"q%d" % n, os.O_CREAT | os.O_RDWR, 0o600, None))
until_refused("keys", lambda n: value("add_key", b"user", b"k%d" % n, b"x" * 1000, 1000, -3))
until_refused("keyrings", lambda _: value("keyctl", 1, None))
until_refused("segments", lambda _: value("shmget", 0, 4096, 0o1600))
until_refused("semaphores", lambda _: value("semget", 0, 250, 0o1600))
until_refused("queues", lambda _: value("msgget", 0, 0o1600))
until_refused("descriptors", lambda _: value("eventfd2", 0, 0))
import select
for fd in range(100, 200):
    os.close(fd)
nest = [select.epoll() for _ in range(20)]
until_refused("nests", lambda n: -1000 if n > 18 else value(
    "epoll_ctl", nest[n + 1].fileno(), 1, nest[n].fileno(), (ctypes.c_uint32 * 3)(1, 0, 0)))
tell(kinds)
"""


@pytest.mark.needs("unfiltered")
@pytest.mark.no_single_lock("each kind has a bound of its own: an rlimit, the filter, the namespace's size")
def test_c066_objects_of_the_kernel_are_bounded_and_released(held: Box, only: Only) -> None:
    """
    Timers, segments, queues, descriptors end at a limit; keys and mqueues can't be had. The next job
    of the worker has as many: nothing was left of them.
    """
    counted = held.engine.driver.memory_counted
    none = [0, "EACCES"]
    with control():
        loose = within(only("namespaces", "mounts"), OBJECTS)  # those of the host's own namespaces would stay
        assert 1024 < loose["timers"][0]
        assert Limits().descriptors < loose["descriptors"][0]
        # What the user has of some is shared with his other processes, and given back a while after they end.
        assert not [kind for kind, (_, said) in loose.items() if "EACCES" == said], loose
        assert 0 < min(loose[kind][0] for kind in ("segments", "semaphores", "queues"))

    first = within(held, OBJECTS)

    assert [1024, "EAGAIN"] == first["timers"]  # RLIMIT_SIGPENDING
    assert first["inotify"] in ([none] if not watchers().most else [[INSTANCES, "EMFILE"]] if counted else
                                [[INSTANCES, "EMFILE"], *([made, "ENOMEM"] for made in range(INSTANCES))])
    assert none == first["mqueues"] == first["keys"] == first["keyrings"]
    assert "EMFILE" == first["descriptors"][1]
    assert "ELOOP" == first["nests"][1]
    assert first["nests"][0] <= 5
    for kind, most in (("segments", 4096), ("semaphores", 32000), ("queues", 32000)):
        assert 0 < first[kind][0] <= most if counted or kind == "segments" else none == first[kind]
    assert first == within(held, OBJECTS)


LOCKS = """
import fcntl, os, signal
kept = [os.open("/tmp/%d" % number, os.O_CREAT | os.O_RDWR) for number in range(100)]
for fd in kept:
    fcntl.flock(fd, fcntl.LOCK_SH)
    for at in range(100):
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 2 * at)
os.write(1, b"here")
signal.pause()
"""


@pytest.mark.no_single_lock("nothing bounds them, and the kernel drops them with the process in any sandbox")
def test_c066_locks_of_files_are_released(held: Box) -> None:
    """No limit bounds them but that of time: docs/threat-model.md says so. None outlives its job."""
    def locks(pid: int) -> int:
        return sum(str(pid) == line.split()[4] for line in Path("/proc/locks").read_text().splitlines())

    with running(held, LOCKS.encode()) as there, control():
        assert locks(there.job) >= 10_000

    assert 0 == locks(there.job)
