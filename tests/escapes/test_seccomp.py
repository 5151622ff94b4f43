"""
The filter and its supervisor: no call that no row allows, by whatever way in. Catalogue cases 29 to 44.

In the product, and with the filter as the only lock. What the filter decides for each number is in
tests/integration/test_seccomp.py, what the supervisor answers in test_supervisor.py beside it; the
device nodes of case 26 are in test_files.py. Not here: a slow audit log (case 39), which doesn't exist.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import features
from kit.attack import NUMBER, PRELUDE, within, without
from kit.box import PATIENCE_S, RUNS, TESTS, Box, Run, control
from kit.confined import HERE
from kit.live_daemon import LiveDaemon, command, descendants, environment, watched
from kit.running import running
from leeward._native import seccomp as native
from leeward.daemon.run.report import Report
from leeward.isolation.seccomp.rules import NOTIFY
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import EXIT_SIGNAL_BASE, Outcome

pytestmark = pytest.mark.needs("seccomp-notify")

Only = Callable[..., Box]


# --- other ways in ------------------------------------------------------------


#: Enters the kernel by instructions of its own; `enter` gives eax. In the first 2 GiB, where 32 bits reach.
MACHINE_CODE = """
import faulthandler, mmap
MAP_32BIT = 0x40
page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT,
                 mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
def enter(way, number, *args):
    registers = {"bb": 0, "b9": 0, "ba": 0} | dict(zip(("bb", "b9", "ba"), args))
    code = b"\\x53\\x55"                                                           # push rbx; push rbp
    code += b"\\xbd" + (address + 2048).to_bytes(4, "little")                      # mov ebp, a stack
    for opcode, value in ({"b8": number} | registers).items():                     # mov eax, ebx, ecx and edx
        code += bytes.fromhex(opcode) + (value & 0xffffffff).to_bytes(4, "little")
    code += bytes.fromhex({"int 0x80": "cd80", "sysenter": "0f34", "syscall": "0f05"}[way]) + b"\\x5d\\x5b\\xc3"
    page.seek(0)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
def ends_by(function, *args):
    pid = os.fork()
    if 0 == pid:
        faulthandler.disable()
        function(*args)
        os._exit(0)
    return -os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

#: To the 32-bit entry 4 is write; to a filter that doesn't look at the architecture it would be stat.
WRITES = """
text = b"written by 32 bits"
page.seek(1024)
page.write(text)
enter("int 0x80", 4, 1, address + 1024, len(text))
"""

#: getpid, ptrace, mount, socketcall.
NUMBERS_OF_32_BITS = (20, 26, 21, 102)


@pytest.mark.needs("x86-64", "unfiltered")
@pytest.mark.lock("seccomp")
def test_c029_cannot_enter_by_the_32_bit_gate(box: Box, only: Only) -> None:
    """int 0x80 writes nothing and ends the process; so does sysenter, where the processor has it at all."""
    attack = MACHINE_CODE + """
tell({way: [ends_by(enter, way, number, 255) for number in numbers] for way in ("int 0x80", "sysenter")})
"""
    with control():
        loose = only().run(PRELUDE + MACHINE_CODE + WRITES)
        assert b"written by 32 bits" == loose.stdout or signal.SIGSEGV == loose.exit_code - EXIT_SIGNAL_BASE
    unfiltered = within(only(), attack, numbers=NUMBERS_OF_32_BITS)
    assert signal.SIGSYS not in {*unfiltered["int 0x80"], *unfiltered["sysenter"]}

    for sandbox in (box, only("seccomp")):
        got = sandbox.run(PRELUDE + MACHINE_CODE + WRITES)
        assert (Outcome.SIGNALLED, b"") == (got.outcome, got.stdout)
        assert got.exit_code - EXIT_SIGNAL_BASE in {signal.SIGSYS, signal.SIGSEGV}
        if loose.stdout:
            assert signal.SIGSYS == got.exit_code - EXIT_SIGNAL_BASE

        ends = within(sandbox, attack, numbers=NUMBERS_OF_32_BITS)
        assert [got.exit_code - EXIT_SIGNAL_BASE] * 4 == ends["int 0x80"]
        # SIGILL and SIGSEGV: a processor, or a kernel, for which sysenter isn't there from 64-bit code.
        assert {signal.SIGSYS, signal.SIGSEGV, signal.SIGILL} >= set(ends["sysenter"])


@pytest.mark.needs("x86-64", "unfiltered")
@pytest.mark.lock("seccomp")
def test_c030_cannot_call_as_x32(box: Box, only: Only) -> None:
    """Every number of x32's own, and ordinary ones with its bit: the process ends, by syscall(2) and by bare code."""
    attack = MACHINE_CODE + """
x32 = 1 << 30
def bare(number):
    enter("syscall", number)
tell({"by libc": [ends_by(libc.syscall, ctypes.c_long(number | x32)) for number in numbers],
      "by hand": [ends_by(bare, number | x32) for number in numbers]})
"""
    numbers = (*range(512, 548), *(NUMBER[name] for name in ("getpid", "read", "mount", "ptrace", "socket")))
    with control():
        assert {0} == {end for ends in within(only(), attack, numbers=numbers).values() for end in ends}

    for sandbox in (box, only("seccomp")):
        got = within(sandbox, attack, numbers=numbers)

        assert {signal.SIGSYS} == {end for ends in got.values() for end in ends}


@pytest.mark.smoke
@pytest.mark.needs("unfiltered")
@pytest.mark.lock("seccomp")
def test_c031_unknown_numbers_are_not_there(box: Box, only: Only) -> None:
    """-1 and everything above the newest call: ENOSYS as from the kernel itself, not counted; so probes go on working."""
    attack = """
def raw(number):
    got = libc.syscall(ctypes.c_long(number))
    return errno.errorcode[ctypes.get_errno()] if -1 == got else ""
tell([raw(number) for number in numbers])
"""
    newest = max(HERE.calls)
    unknown = [-1, -2, -(1 << 31), *range(newest + 1, 1024), (1 << 30) - 1, 1 << 31, 1 << 32 | newest + 1]
    with control():  # a kernel newer than the table
        assert {"ENOSYS"} >= set(within(only(), attack, numbers=unknown)) - {""}

    for sandbox in (box, only("seccomp")):
        assert {"ENOSYS"} == set(within(sandbox, attack, numbers=unknown))
        got = sandbox.run(f"{PRELUDE}libc.syscall(ctypes.c_long(-1))\nlibc.syscall(ctypes.c_long({newest + 1}))")
        assert {} == got.denied


#: Reads a file by a ring: open, then read, neither by a call that a filter sees.
RING = """
import mmap, struct
parameters = ctypes.create_string_buffer(120)
ring = value("io_uring_setup", 8, parameters)
said = [errno.errorcode.get(-ring, ""), call("io_uring_enter", -1, 0, 0, 0, 0, 0),
        call("io_uring_register", -1, 0, 0, 0)]
text = None
def submit(opcode, fd, address, length, offset):
    entries[:64] = struct.pack("<BBHiQQIIQ24x", opcode, 0, 0, fd, offset, address, length, 0, 0)
    tail = struct.unpack_from("<I", shared, sq_tail)[0]
    struct.pack_into("<I", shared, sq_array + 4 * (tail & 7), 0)
    struct.pack_into("<I", shared, sq_tail, tail + 1)
    assert 1 == value("io_uring_enter", ring, 1, 1, 1, 0, 0)
    head = struct.unpack_from("<I", shared, cq_head)[0]
    struct.pack_into("<I", shared, cq_head, head + 1)
    return struct.unpack_from("<Qi", shared, cqes + 16 * (head & 15))[1]
if ring >= 0:
    sq_tail, sq_array = (struct.unpack_from("<I", parameters, 40 + offset)[0] for offset in (4, 24))
    cq_head, cqes = (struct.unpack_from("<I", parameters, 80 + offset)[0] for offset in (0, 20))
    shared = mmap.mmap(ring, 4096)
    entries = mmap.mmap(ring, 4096, offset=0x10000000)
    name, buffer = ctypes.create_string_buffer(path.encode()), ctypes.create_string_buffer(64)
    opened = submit(18, -100, ctypes.addressof(name), 0, 0)
    if opened >= 0:
        got = submit(22, opened, ctypes.addressof(buffer), 64, 0)
        text = buffer.raw[:got].decode()
rings = [fd for fd in os.listdir("/proc/self/fd")
         if os.path.lexists(f"/proc/self/fd/{fd}") and "io_uring" in os.readlink(f"/proc/self/fd/{fd}")]
tell({"said": said, "text": text, "rings": len(rings)})
"""


@pytest.mark.smoke
@pytest.mark.lock("seccomp")
def test_c032_cannot_have_a_ring(box: Box, only: Only, secret: tuple[Path, str]) -> None:
    """No ring, and so no file read past the filter: not by its setup, nor by entering or registering one."""
    path, text = secret
    with control():
        loose = within(only(), RING, path=str(path))
        assert (text, True) == (loose["text"], loose["rings"] > 0) or not features.is_met("io-uring")

    for sandbox in (box, only("seccomp")):
        got = within(sandbox, RING, path=str(path))

        assert {"said": ["EACCES"] * 3, "text": None, "rings": 0} == got
    asked = box.run(PRELUDE + "call('io_uring_setup', 8, 0)")
    assert {"io_uring_setup": 1} == asked.denied


# --- what is refused ----------------------------------------------------------


#: What no call takes as an argument: whatever a call does, it can't do it with these.
BAD = (1 << 64) - 1

#: Refused whatever is asked, or at least for BAD; from the policy itself.
REFUSED = sorted(call.name for number, call in HERE.calls.items()
                 if NOTIFY == HERE.decide(HERE.audit_arch, number, (BAD,) * 6))

#: The calls of c033, where this architecture has them. Two more have arguments that are allowed.
NAMED = (
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd bpf perf_event_open userfaultfd keyctl"
    " add_key request_key mount umount2 pivot_root chroot swapon swapoff reboot kexec_load kexec_file_load init_module"
    " finit_module delete_module acct quotactl lookup_dcookie modify_ldt iopl ioperm vmsplice fanotify_init"
    " open_by_handle_at move_pages migrate_pages uselib nfsservctl syslog vhangup landlock_create_ruleset"
    " landlock_add_rule landlock_restrict_self lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal"
)

#: Answered EACCES by the filter alone, without a record: libraries try them by themselves, or, for seccomp,
#: nobody else is to be asked.
STATIC = ("mbind", "set_mempolicy", "seccomp")


@pytest.fixture(scope="module")
def lasting() -> Iterator[Box]:
    """The product, with a worker that isn't replaced for its age."""
    with Box(recycle_after=10_000) as made:
        yield made


@pytest.mark.no_attack("it is about the list of the tests below")
def test_c033_the_policy_refuses_every_listed_call() -> None:
    """No change of the table has removed one of them from the list below."""
    assert set() == set(NAMED.split()) & set(NUMBER) - set(REFUSED)


#: A module of the host's may say EACCES as well, without any filter.
EACCES_ANYWAY: set[str] = set()


@pytest.mark.needs("unfiltered")
@pytest.mark.lock("seccomp")
@pytest.mark.parametrize("name", REFUSED)
def test_c033_cannot_make_this_call(name: str, lasting: Box, only: Only) -> None:
    """EACCES from the supervisor, counted once; the job goes on, and its worker takes the next."""
    (worker,) = lasting.engine.main.pool.workforce.workers
    got = lasting.run(f"{PRELUDE}tell(call({name!r}, *[{BAD}] * 6))")

    counted = {name: 1, **({"network": 1} if "socket" == name else {})}
    assert (Outcome.FINISHED, b'"EACCES"\n', counted) == (got.outcome, got.stdout, got.denied)
    assert (worker,) == lasting.engine.main.pool.workforce.workers
    alone = only("seccomp").run(f"{PRELUDE}tell(call({name!r}, *[{BAD}] * 6))")
    assert (got.stdout, got.denied) == (alone.stdout, alone.denied)
    with control():  # the kernel says something else, to all but a few: what the filter adds is seen in those
        if "EACCES" == within(only(), f"tell(call({name!r}, *[{BAD}] * 6))"):
            EACCES_ANYWAY.add(name)
        assert 5 > len(EACCES_ANYWAY)


@pytest.mark.lock("seccomp")
def test_c033_cannot_have_another_personality(box: Box, only: Only) -> None:
    """It may be asked for, and set to what it is; nothing turns address randomness off, with high bits neither."""
    attack = """
said = [call("personality", 0x40000 | high) for high in (0, 1 << 32)]
tell({"said": said, "is": value("personality", 0xffffffff), "back": call("personality", 0)})
"""
    with control():
        assert {"said": ["", ""], "is": 0x40000, "back": ""} == within(only(), attack)

    for sandbox in (box, only("seccomp")):
        assert {"said": ["EACCES"] * 2, "is": 0, "back": ""} == within(sandbox, attack)


@pytest.mark.smoke
@pytest.mark.lock("seccomp")
def test_c033_calls_that_the_filter_refuses_by_itself_are_not_recorded(box: Box, only: Only) -> None:
    """Refused by the filter itself: EACCES, and nothing is counted."""
    attack = f"tell([call(name, *[{BAD}] * 6) for name in names])"
    with control():
        assert "EACCES" not in within(only(), attack, names=STATIC)

    for sandbox in (box, only("seccomp")):
        assert ["EACCES"] * len(STATIC) == within(sandbox, attack, names=STATIC)
        assert {} == sandbox.run(f"{PRELUDE}names = {STATIC}\n{attack}").denied


@pytest.mark.no_attack("what the log says of a refusal")
def test_c033_every_refusal_is_logged_while_the_job_runs(box: Box) -> None:
    """One record in the log, with the call's name and the worker."""
    before = len(box.log.of("system call denied"))
    code = f"{PRELUDE}call('kcmp')\nos.write(1, b'here')\nwhile True: signal.pause()"
    with running(box, code.encode()) as found:
        def told() -> list[dict[str, object]]:
            # The self-check's own refusal may be told late, when its runner has a job already.
            return [row for row in box.log.of("system call denied")[before:] if "chroot" != row["syscall"]]

        box.reactor.run(lambda: bool(told()))
        rows = told()

    assert [("kcmp", found.job, 1)] == [(row["syscall"], row["pid"], row["count"]) for row in rows]


# --- the supervisor -----------------------------------------------------------


#: Notifies tee to a listener of its own, and lets a thread answer: do it. `said` is what the kernel
#: said to each way of installing that filter, `made` what tee gave then.
LISTENER = """
import struct, threading
def program(name, action):
    rows = [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBER[name]), (0x06, 0, 0, action), (0x06, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    return struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code)), code
notify, keep = program("tee", 0x7fc00000)
allow, keep_too = program("tee", 0x7fff0000)
def answer(listener):
    asked = ctypes.create_string_buffer(80)
    if 0 == libc.ioctl(listener, 0xc0502100, asked):
        number = struct.unpack_from("Q", asked)[0]
        libc.ioctl(listener, 0xc0182101, struct.pack("QqiI", number, 0, 0, 1))  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
def attack():
    libc.prctl(38, 1, 0, 0, 0)
    got = value("seccomp", 1, 8, notify)
    said = [errno.errorcode.get(-got, ""), call("seccomp", 1, 8 | 1 | 16, notify), call("seccomp", 1, 0, allow),
            call("seccomp", 1, 2, allow), call("prctl", 22, 2, allow)]
    if got >= 0:
        threading.Thread(target=answer, args=(got,), daemon=True).start()
    return {"said": said, "made": call("tee", 0, 0, 0, 0)}
"""

#: The same where a supervisor has been and is gone, and its filter had let seccomp(2) pass.
UNGUARDED = """
first = value("seccomp", 1, 8, notify) if 0 == libc.prctl(38, 1, 0, 0, 0) else -1
os.close(first)
gone = call("tee", 0, 0, 0, 0)
tell(attack() | {"gone": gone})
"""


@pytest.mark.smoke
@pytest.mark.lock("seccomp")
def test_c034_cannot_answer_in_the_supervisors_place(box: Box, only: Only) -> None:
    """Neither a second listener nor any other filter goes on top of ours; the refused call stays refused."""
    with control():
        loose = without(LISTENER + UNGUARDED)
        assert ("ENOSYS", "", "") == (loose["gone"], loose["said"][0], loose["made"])

    for sandbox in (box, only("seccomp")):
        got = within(sandbox, LISTENER + "tell(attack())")

        assert ["EACCES"] * 5 == got["said"]
        assert "EACCES" == got["made"]


#: A daemon with a job in it that is refused again and again. Its keeper is stopped, so that the job outlives the
#: daemon for as long as the test wants. Tells the pids of keeper and init, and where the job's output comes.
DAEMON = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from kit import points
points.build()
from kit.box import Box
from leeward.spec.job import Job
from leeward.spec.limits import Limits
box = Box(locks={locks!r})
box.__enter__()
box.engine.main.pool.submit(Job(code=sys.stdin.buffer.read(), limits=Limits()), print, 60.0)
(worker,) = [worker for worker in box.engine.main.pool.workforce.workers if worker.busy]
output = worker.leasing.execution.output.out
box.reactor.run(lambda: bool(output.head))
os.kill(worker.keeper.pid, signal.SIGSTOP)
print(worker.keeper.pid, worker.leasing.running.pid, output.fd, flush=True)
while True:
    signal.pause()
"""

#: Refused for as long as somebody refuses; then nobody is there to ask.
AFTERWARDS = """
os.write(1, b"here\\n")
while "EACCES" == (gone := call("tee", 0, 0, 0, 0)):
    pass
tell(attack() | {"gone": gone})
while True:
    signal.pause()
"""


@pytest.mark.lock("seccomp")
def test_c035_a_dead_supervisor_allows_no_call() -> None:
    """
    The daemon is killed while a job of it runs: calls that were refused fail with ENOSYS, no listener can be
    installed in place of the one that is gone, and the job ends with its keeper.
    """
    with control():
        loose = without(LISTENER + UNGUARDED)
        assert ("ENOSYS", "", "") == (loose["gone"], loose["said"][0], loose["made"])

    for locks in (None, frozenset({"seccomp"})):
        got = _after_its_daemon(locks)

        assert "ENOSYS" == got["gone"] == got["made"]
        assert ["EACCES"] * 5 == got["said"]


def _after_its_daemon(locks: frozenset[str] | None) -> Any:
    """What a job says that has seen its daemon die."""
    RUNS.append(Run(locks))
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON.format(tests=str(TESTS), locks=locks)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=TESTS.parent, env=environment())
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    daemon.stdin.write((PRELUDE + LISTENER + AFTERWARDS).encode())
    daemon.stdin.close()
    keeper, init, number = map(int, daemon.stdout.readline().split())
    output = Path(f"/proc/{daemon.pid}/fd/{number}")
    with output.open("rb") as said, daemon.stdout, watched([keeper, init, *descendants(init)]) as wait:
        daemon.kill()
        daemon.wait()
        got = json.loads(said.readline())
        os.kill(keeper, signal.SIGCONT)

        assert [] == wait(PATIENCE_S)
    return got


@pytest.mark.no_single_lock("processes end by their channels' ends, whatever confines them")
def test_c035_no_worker_outlives_its_daemon(tmp_path: Path) -> None:
    """SIGKILL the daemon while the jobs of all workers make refused calls: within a second no process is left."""
    code = f"{PRELUDE}os.fork()\nos.fork()\nwhile True: call('tee', 0, 0, 0, 0)"
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon:
        jobs = [subprocess.Popen(command("exec", code), env=environment(daemon.socket), stdin=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL) for _ in range(2)]
        daemon.until(lambda status: status["workers"]["busy"] == 2)
        daemon.logged(lambda rows: 2 == len({row["worker"] for row in rows if "system call denied" == row["event"]}))
        workers = descendants(daemon.process.pid)
        with control():  # the zygote, and twice a keeper, an init and a job, as long as it lives
            assert len(workers) >= 7
        with watched(workers) as wait:
            daemon.process.kill()

            assert [] == wait(1.0)
        assert [1, 1] == [job.wait(PATIENCE_S) for job in jobs]


#: One thread asks, another changes what the pointer points to; every answer that was seen.
RACE = """
import threading
names = [b"/" + b"\\0" * 15, b"/nowhere" + b"\\0" * 8]
path = ctypes.create_string_buffer(16)
done = False
def rewrite():
    while not done:
        for name in names:
            ctypes.memmove(path, name, 16)
thread = threading.Thread(target=rewrite)
thread.start()
seen = set()
for turn in range(turns):
    got = value("open_tree", -100, path, 0)
    if got >= 0:
        os.close(got)
    seen.add(errno.errorcode[-got] if got < 0 else "")
    if len(seen) > 1:
        break
done = True
thread.join()
tell(sorted(seen))
"""


@pytest.mark.lock("seccomp")
def test_c036_cannot_win_by_changing_an_argument(box: Box, only: Only) -> None:
    """A pathname that another thread rewrites under the call makes no difference: nobody looks at it."""
    with control():  # the kernel does look
        assert ["", "ENOENT"] == within(only(), RACE, turns=1_000_000)

    for sandbox in (box, only("seccomp")):
        assert ["EACCES"] == within(sandbox, RACE, turns=1000)


HIDE = """
hidden = libc.prctl(4, 0, 0, 0, 0)
tell({"hidden": [hidden, libc.prctl(3)], "made": call("tee", 0, 0, 0, 0)})
"""


@pytest.mark.lock("seccomp")
def test_c038_hiding_from_the_supervisor_is_no_way_past_it(box: Box, only: Only) -> None:
    """A process that nobody may look into is refused like any other; also a fresh program, which is dumpable at first."""
    program = """
import subprocess
print(subprocess.run([sys.executable, "-c", source], capture_output=True, text=True).stdout)
"""
    with control():
        assert {"hidden": [0, 0], "made": ""} == within(only(), HIDE)

    for sandbox in (box, only("seccomp")):
        for attack in (HIDE, program):
            got = within(sandbox, attack, source=PRELUDE + HIDE)

            assert {"hidden": [0, 0], "made": "EACCES"} == got


#: Eight threads that are refused without pause.
FLOOD = PRELUDE + """
import threading
def flood():
    while True:
        libc.syscall(ctypes.c_long(NUMBER["tee"]))
for _ in range(8):
    threading.Thread(target=flood).start()
"""


@pytest.mark.lock("seccomp")
def test_c040_a_flood_takes_no_answer_from_another_job(only: Only) -> None:
    """Beside it jobs come to their ends, each with its own refusals and nobody else's; the flood gets none through."""
    with control():
        loose = only().run(PRELUDE + "tell([call('tee', 0, 0, 0, 0), call('kcmp')])")
        assert {} == loose.denied
        assert "EACCES" not in json.loads(loose.stdout)

    for locks in (None, {"seccomp"}):
        _stand_a_flood(locks)


def _stand_a_flood(locks: set[str] | None) -> None:
    with Box(locks=locks, pool_size=2) as box:
        flood: list[Report] = []
        box.engine.main.pool.submit(Job(code=FLOOD.encode(), limits=Limits(time=1.5)), flood.append, PATIENCE_S)
        box.reactor.run(lambda: bool(box.log.of("system call denied")))  # it is in full flow
        beside = 0
        while not flood:
            got = box.run(f"{PRELUDE}tell([call('kcmp') for _ in range(50)] + [call('ptrace')])")

            assert (Outcome.FINISHED, {"kcmp": 50, "ptrace": 1}) == (got.outcome, got.denied)
            assert ["EACCES"] * 51 == json.loads(got.stdout)
            beside += 1
        result = flood[0].result
        assert result is not None

        assert beside > 1
        assert Outcome.TIMED_OUT is result.outcome
        assert {"tee"} == set(result.denied)
        assert result.denied["tee"] > 1000
        # The log has sums: 100 ms of one call are one record.
        records = [row for row in box.log.of("system call denied") if "tee" == row["syscall"]]
        assert len(records) < result.denied["tee"] / 10


STORM = """
import subprocess
heard = 0
def hear(*_):
    global heard
    heard += 1
signal.signal(signal.SIGALRM, hear)
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
lines = [subprocess.run(["/bin/sh", "-c", "echo a b | cat | wc -w"], capture_output=True, text=True).stdout.strip()
         for _ in range(pipelines)]
said = [call("tee", 0, 0, 0, 0) for _ in range(200)]
while not heard:
    signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0)
tell({"heard": heard, "lines": lines, "said": said})
"""

#: The long run has enough for a rare loss to show.
PIPELINES = 100 if os.environ.get("LEEWARD_LONG") else 10


@pytest.mark.lock("seccomp")
def test_c041_a_storm_of_signals_loses_no_call(box: Box, only: Only) -> None:
    """
    SIGALRM every millisecond, without SA_RESTART: pipelines give what they should, and every refusal that was
    counted was also heard.
    """
    with control():
        loose = within(only(), STORM, pipelines=0)
        assert loose["heard"] > 0              # there is a storm,
        assert "EACCES" not in loose["said"]   # and without the filter nobody refuses anything

    for sandbox in (box, only("seccomp")):
        got = sandbox.run(f"{PRELUDE}pipelines = {PIPELINES}\n{STORM}", limits={"time": PATIENCE_S})
        said = json.loads(got.stdout)

        assert said["heard"] > 0
        assert ["2"] * PIPELINES == said["lines"]
        assert {"EACCES"} <= set(said["said"]) <= {"EACCES", "EINTR"}  # EINTR: before the supervisor had taken it
        assert {"tee"} == set(got.denied)
        if native.has_wait_killable():
            assert said["said"].count("EACCES") == got.denied["tee"]


# --- terminals and sockets ----------------------------------------------------


#: Types on the terminal of each of its descriptors, and on the one that it is controlled by.
TYPES = """
typed = ctypes.create_string_buffer(b"x")
def open_terminal():
    try:
        return os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return 0
tell([call("ioctl", fd, request | high, typed) for fd in (0, 1, 2, open_terminal())
      for request in (0x5412, 0x541c, 0x5423) for high in (0, 1 << 32, 0xffffffff << 32)])
"""


def typed_on(argv: list[str]) -> tuple[bytes, bytes]:
    """What a command wrote, and what came to its controlling terminal meanwhile."""
    RUNS.append(Run(outside=True))
    ours, terminal = os.openpty()
    try:
        done = subprocess.run(["setsid", "--ctty", "--wait", *argv], stdin=terminal, env=environment(),
                              capture_output=True, check=False, timeout=PATIENCE_S)
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        return done.stdout, os.read(ours, 100) if poll.poll(0) else b""
    finally:
        os.close(ours)
        os.close(terminal)


@pytest.mark.lock("seccomp")
def test_c043_cannot_type_on_a_terminal(box: Box, only: Only) -> None:
    """`leeward run` on a terminal: TIOCSTI and its like are refused, with high bits as well, and nothing is typed."""
    with control():  # EIO: this kernel lets nobody (dev.tty.legacy_tiocsti)
        said, typed = typed_on([sys.executable, "-c", PRELUDE + TYPES])
        assert b"x" in typed or "EIO" in json.loads(said)

    said, typed = typed_on(command("run", PRELUDE + TYPES))
    assert ["EACCES"] * 36 == json.loads(said)
    assert b"" == typed
    for sandbox in (box, only("seccomp")):
        assert {"EACCES"} == set(within(sandbox, TYPES))


#: Every family, by every type that one of them has: stream, datagram, raw, reliable, sequenced, DCCP and packet.
SOCKETS = """
said = {}
for family in range(47):
    for kind in (1, 2, 3, 4, 5, 6, 10):
        for protocol in (0, 3, 17, 255):
            got = value("socket", family, kind, protocol)
            said.setdefault(errno.errorcode.get(-got, ""), []).append(family)
            if got >= 0:
                os.close(got)
pairs = (ctypes.c_int * 2)()
tell({name: sorted(set(families)) for name, families in said.items()}
     | {"pairs": [family for family in range(47) if "" == call("socketpair", family, 1, 0, pairs)]})
"""

AF_UNIX, AF_INET, AF_NETLINK = 1, 2, 16


@pytest.mark.smoke
@pytest.mark.lock("seccomp")
def test_c044_cannot_have_a_socket_of_another_family(box: Box, only: Only) -> None:
    """Unix sockets and no others, of whatever type: no network, netlink, packets, vsock, or the kernel's ciphers."""
    with control():
        loose = within(only(), SOCKETS)
        assert {AF_UNIX, AF_INET, AF_NETLINK} <= set(loose[""])

    for sandbox in (box, only("seccomp")):
        got = within(sandbox, SOCKETS)

        assert [AF_UNIX] == got[""] == got["pairs"]
        assert [family for family in range(47) if AF_UNIX != family] == got["EACCES"]
    denied = box.run(PRELUDE + SOCKETS).denied
    assert {"socket": 46 * 28, "socketpair": 46, "network": 46 * 28} == denied


@pytest.mark.lock("seccomp")
def test_c044_cannot_get_an_answer_from_outside(box: Box, only: Only) -> None:
    """
    No connection comes about by what the standard library offers; without the filter there is a socket for at least
    one way.
    """
    attack = """
import socket
tell([attempt(socket.create_connection, (host, 80), 0.01) for host in ("127.0.0.1", "::1")]
     + [attempt(socket.socket, socket.AF_INET)])
"""
    with control():
        assert "" == within(only(), attack)[2]

    for sandbox in (box, only("seccomp")):
        assert ["EACCES"] * 3 == within(sandbox, attack)


#: An urgent byte, by each call that could send or take one; `taken` if it came.
URGENT = """
import socket, struct
one, other = socket.socketpair()
MSG_OOB = int(socket.MSG_OOB)
byte = ctypes.create_string_buffer(b"!", 1)
iov = struct.pack("PN", ctypes.addressof(byte), 1)
where = ctypes.create_string_buffer(iov)
header = ctypes.create_string_buffer(struct.pack("PIPNPNi", 0, 0, ctypes.addressof(where), 1, 0, 0, 0) + bytes(16))
tries = {
    "sendto": lambda flags: call("sendto", one.fileno(), byte, 1, flags, 0, 0),
    "sendmsg": lambda flags: call("sendmsg", one.fileno(), header, flags),
    "sendmmsg": lambda flags: call("sendmmsg", one.fileno(), header, 1, flags),
}
takes = {
    "recvfrom": lambda flags: call("recvfrom", other.fileno(), byte, 1, flags, 0, 0),
    "recvmsg": lambda flags: call("recvmsg", other.fileno(), header, flags),
    "recvmmsg": lambda flags: call("recvmmsg", other.fileno(), header, 1, flags, 0),
}
said = {}
for (send, sends), (take, taken) in zip(tries.items(), takes.items()):
    said[send], said[take] = sends(MSG_OOB | high), taken(MSG_OOB | high)
    said["plain " + send], said["plain " + take] = sends(0), taken(0)
tell(said)
"""


@pytest.mark.lock("seccomp")
@pytest.mark.parametrize("high", [0, 1 << 32])
def test_c173_cannot_send_or_take_urgent_bytes(box: Box, only: Only, high: int) -> None:
    """MSG_OOB on a Unix socket, by six calls, with high bits as well: refused, and plain bytes come and go."""
    with control():
        assert {""} == set(within(only(), URGENT, high=high).values())

    for sandbox in (box, only("seccomp")):
        said = within(sandbox, URGENT, high=high)
        assert {""} == {what for name, what in said.items() if name.startswith("plain")}
        assert {"ENOTSUP"} == {what for name, what in said.items() if not name.startswith("plain")}
