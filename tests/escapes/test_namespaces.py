"""Namespaces: no job makes one, joins one or sees past its own. Catalogue cases 1 to 5 and 11."""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator

import pytest

from kit.attack import NAMESPACES, within, without
from kit.box import Box, control

Only = Callable[..., Box]

ALL = sum(NAMESPACES.values())
FLAGS = (*NAMESPACES.values(), ALL, NAMESPACES["CLONE_NEWUSER"] | NAMESPACES["CLONE_NEWNS"],
         NAMESPACES["CLONE_NEWUSER"] | NAMESPACES["CLONE_NEWNET"])


UNSHARE = """
names = "cgroup ipc mnt net pid time user uts".split()
def seen():
    return {name: os.readlink(f"/proc/self/ns/{name}") for name in names if os.path.lexists(f"/proc/self/ns/{name}")}
before = seen()
said = [call("unshare", flag) for flag in flags]
tell({"said": said, "same": before == seen(), "capabilities": int(status("CapEff"), 16)})
"""


@pytest.mark.smoke
@pytest.mark.lock("seccomp")
def test_c001_cannot_make_a_namespace_by_unshare(box: Box, only: Only) -> None:
    """Every namespace flag, alone and with others, is refused; the job stays where it is, without a capability."""
    with control():
        loose = within(only(), UNSHARE, flags=[NAMESPACES["CLONE_NEWUSER"]])
        assert {"said": [""], "same": False, "capabilities": 0x1ffffffffff} == loose | {
            "capabilities": 0x1ffffffffff if loose["capabilities"] else 0}

    for sandbox in (box, only("seccomp")):
        got = within(sandbox, UNSHARE, flags=FLAGS)

        assert {"EACCES"} == set(got["said"])
        assert got["same"]
    assert 0 == within(box, UNSHARE, flags=FLAGS)["capabilities"]
    assert {"unshare": 1} == box.run("import ctypes; ctypes.CDLL(None).unshare(0x10000000)").denied


CLONE3 = """
request = (ctypes.c_uint64 * 11)(flags, 0, 0, 0, signal.SIGCHLD)
got = value("clone3", request, ctypes.sizeof(request))
if 0 == got:
    os._exit(0)
if got > 0:
    os.waitpid(got, 0)
odd = [value("clone3", 0, size) for size in (0, 64, 88, 1 << 20)]
tell({"made": got > 0, "said": errno.errorcode.get(-got), "odd": [errno.errorcode[-each] for each in odd]})
"""


@pytest.mark.lock("seccomp")
@pytest.mark.parametrize("flags", [0, *NAMESPACES.values()], ids=["none", *NAMESPACES])
def test_c002_cannot_make_a_namespace_by_clone3(box: Box, only: Only, flags: int) -> None:
    """clone3 isn't there for a job, whatever it asks for: its flags lie where no filter looks."""
    with control():
        loose = within(only(), CLONE3, flags=flags and flags | NAMESPACES["CLONE_NEWUSER"])
        # CLONE_NEWTIME needs a namespace for children already: EPERM or EINVAL, from a call that is there.
        assert loose["made"] or (NAMESPACES["CLONE_NEWTIME"] == flags and "ENOSYS" != loose["said"])

    for sandbox in (box, only("seccomp")):
        got = within(sandbox, CLONE3, flags=flags)

        assert not got["made"]
        assert "ENOSYS" == got["said"]
        assert {"ENOSYS"} == set(got["odd"])


@pytest.mark.no_attack("what honest jobs do in place of clone3")
def test_c002_threads_and_processes_do_without_clone3(box: Box) -> None:
    """libc falls back to clone, so that plain threads, forks and subprocesses still work."""
    got = within(box, """
import subprocess, threading
seen = []
thread = threading.Thread(target=seen.append, args=("thread",))
thread.start()
thread.join()
pid = os.fork()
if 0 == pid:
    os._exit(7)
seen.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
seen.append(subprocess.run(["echo", "process"], capture_output=True, text=True).stdout)
tell(seen)
""")

    assert ["thread", 7, "process\n"] == got


CLONE = """
reading, writing = os.pipe()
got = value("clone", flags, 0, 0, 0, 0)
if 0 == got:
    os.write(writing, os.readlink("/proc/self/ns/user").encode())
    os._exit(0)
os.close(writing)
other = os.read(reading, 100).decode()
if got > 0:
    os.waitpid(got, 0)
tell({"said": errno.errorcode.get(-got, ""), "left": bool(other) and other != os.readlink("/proc/self/ns/user")})
"""

#: What the kernel drops of the register: it takes the low half for flags.
GARBAGE = 0xDEAD_BEEF << 32


@pytest.mark.lock("seccomp")
def test_c003_cannot_make_a_namespace_by_clone(box: Box, only: Only) -> None:
    """Refused by the low half of the register, whatever the upper half says."""
    sigchld = 17
    newuser = NAMESPACES["CLONE_NEWUSER"] | sigchld
    for flags in (newuser, newuser | GARBAGE):
        with control():
            assert {"said": "", "left": True} == within(only(), CLONE, flags=flags)

    makes = [flag for name, flag in NAMESPACES.items() if "CLONE_NEWTIME" != name]  # that bit is a signal's here
    for sandbox in (box, only("seccomp")):
        for flag in (*makes, sum(makes)):
            for upper in (0, GARBAGE, 1 << 63):
                assert {"said": "EACCES", "left": False} == within(sandbox, CLONE, flags=flag | sigchld | upper)
        # And the upper half alone doesn't turn a fork into something forbidden.
        assert {"said": "", "left": False} == within(sandbox, CLONE, flags=sigchld | GARBAGE)


SETNS = """
held = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(256) if os.path.lexists(f"/proc/self/fd/{fd}")]
def join(path, flag):
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        return "not opened: " + errno.errorcode[error.errno]
    return call("setns", fd, flag)
names = {"cgroup": 0x2000000, "ipc": 0x8000000, "mnt": 0x20000, "net": 0x40000000, "pid": 0x20000000,
         "user": 0x10000000, "uts": 0x4000000}
pidfd = value("pidfd_open", os.getpid(), 0)
init = value("pidfd_open", 1, 0)
tell({"self": {name: join(f"/proc/self/ns/{name}", flag) for name, flag in names.items()},
      "init": {name: join(f"/proc/1/ns/{name}", flag) for name, flag in names.items()},
      "pidfd": [call("setns", fd, flag) for fd in (pidfd, init) for flag in names.values()],
      "held": held})
"""


@pytest.mark.lock("seccomp")
def test_c004_cannot_join_a_namespace(box: Box, only: Only) -> None:
    """Neither by a file of /proc nor by a pidfd nor by what it was born with."""
    with control():
        loose = within(only(), SETNS)
        assert "" == loose["self"]["mnt"]
        assert "" in loose["pidfd"]

    for sandbox in (box, only("seccomp")):
        got = within(sandbox, SETNS)

        assert {"EACCES"} == set(got["self"].values()) - {"not opened: EACCES"}
        assert {"EACCES", "not opened: EACCES"} >= set(got["init"].values())
        assert {"EACCES"} == set(got["pidfd"])
    held = within(box, SETNS)["held"]
    assert held
    assert not [name for name in held if ":[" in name and not name.startswith("pipe:")]


PROBE = """
import resource
said = {"kill": attempt(os.kill, pid, 0), "affinity": attempt(os.sched_getaffinity, pid),
        "scheduler": attempt(os.sched_getscheduler, pid), "group": attempt(os.getpgid, pid),
        "session": attempt(os.getsid, pid), "nice": attempt(os.getpriority, os.PRIO_PROCESS, pid),
        "limits": attempt(resource.prlimit, pid, resource.RLIMIT_NOFILE), "pidfd": attempt(os.pidfd_open, pid),
        "io": call("ioprio_get", 1, pid), "robust": call("get_robust_list", pid, ctypes.create_string_buffer(8),
                                                        ctypes.create_string_buffer(8))}
found = ""
for name in ("environ", "cmdline", "status", "stat", "maps", "mem", "cwd/secret", "root/etc/hostname"):
    try:
        found += open(f"/proc/{pid}/{name}", errors="replace").read(4096)
    except OSError:
        pass
tell({"said": said, "found": found, "pids": [name for name in os.listdir("/proc") if name.isdigit()]})
"""


@pytest.fixture
def stranger() -> Iterator[tuple[int, str]]:
    """A process of the host, of this user, with a secret in its environment."""
    text = secrets.token_hex(16)
    waits = "import sys; print(1, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env={"SECRET": text, "PATH": os.environ["PATH"]})
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    yield process.pid, text
    assert process.poll() is None, "an attack reached it"
    process.stdin.close()
    process.wait()
    process.stdout.close()


@pytest.mark.smoke
@pytest.mark.lock("namespaces")
def test_c005_cannot_reach_a_process_of_the_host(box: Box, only: Only, stranger: tuple[int, str]) -> None:
    """A pid that the host tells means nothing inside: no file, no signal, no question about it."""
    pid, text = stranger
    with control():
        loose = without(PROBE, pid=pid)
        assert text in loose["found"]
        assert {""} == set(loose["said"].values())

    for sandbox in (box, only("namespaces"), only("namespaces", "mounts")):
        assert {"ESRCH"} == set(within(sandbox, PROBE, pid=pid)["said"].values())
    for sandbox in (box, only("namespaces", "mounts")):  # what /proc shows is a mount's doing
        got = within(sandbox, PROBE, pid=pid)

        assert "" == got["found"]
        assert ["1", "2"] == got["pids"]


@pytest.mark.lock("namespaces", beside=("mounts",), because="/proc/1 has to be its own init")
def test_c005_cannot_signal_a_process_outside_its_pid_namespace(box: Box, only: Only,
                                                                stranger: tuple[int, str]) -> None:
    """SIGKILL to every process reaches none outside, and not its own init."""
    attack = """
for target in (-1, 1, pid):
    attempt(os.kill, target, signal.SIGKILL)
tell(os.listdir("/proc/1/task"))
"""
    with control():
        assert "" == without("tell(attempt(os.kill, pid, 0))", pid=stranger[0])

    for sandbox in (box, only("namespaces", "mounts")):
        assert ["1"] == within(sandbox, attack, pid=stranger[0])


NAMES = """
class Name(ctypes.Structure):
    _fields_ = [(field, ctypes.c_char * 65) for field in "system node release version machine domain".split()]
name = Name()
libc.uname(ctypes.byref(name))
tell({"node": name.node.decode(), "domain": name.domain.decode()})
"""

@pytest.fixture
def named() -> Iterator[str]:
    """
    A canary for node and domain name, in a uts namespace for this thread and all that it starts: the machine's
    own names may be dull.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    name = secrets.token_hex(8)
    with open("/proc/thread-self/ns/uts") as before:
        assert 0 == libc.unshare(NAMESPACES["CLONE_NEWUTS"]), ctypes.get_errno()
        assert 0 == libc.sethostname(name.encode(), len(name)) == libc.setdomainname(name.encode(), len(name))
        yield name
        assert 0 == libc.setns(before.fileno(), NAMESPACES["CLONE_NEWUTS"]), ctypes.get_errno()


@pytest.mark.needs("root", "unreduced")
@pytest.mark.lock("namespaces")
def test_c011_cannot_read_the_hosts_names(named: str) -> None:
    """Node and domain name are the sandbox's; a new uts namespace would start with copies of the host's."""
    with control():
        assert {"node": named, "domain": named} == without(NAMES)
    with Box(locks=()) as bare, control():
        assert {"node": named, "domain": named} == within(bare, NAMES)

    for locks in (None, {"namespaces"}):
        with Box(locks=locks) as sandbox:
            assert {"node": "leeward", "domain": "(none)"} == within(sandbox, NAMES)


SET_NAMES = """
tell([call("sethostname", b"mine", 4), call("setdomainname", b"mine", 4)])
"""


@pytest.mark.lock("seccomp")
@pytest.mark.lock("privileges", beside=("namespaces",), because="a host's name needs another capability anyway")
def test_c011_cannot_change_a_name(box: Box, only: Only) -> None:
    """Refused by the filter, and without it for want of a capability."""
    before = os.uname()
    with control():  # in a uts namespace of its own
        assert ["", ""] == within(only("namespaces"), SET_NAMES)

    assert ["EACCES"] * 2 == within(box, SET_NAMES)
    assert ["EACCES"] * 2 == within(only("seccomp"), SET_NAMES)
    assert ["EPERM"] * 2 == within(only("namespaces", "privileges"), SET_NAMES)
    assert before == os.uname()


CLOCKS = """
timex = ctypes.create_string_buffer(256)  # modes 0: asks only
now = (ctypes.c_long * 2)(1, 0)
tell({"clock_settime": call("clock_settime", 0, now) if set_it else "", "settimeofday": call("settimeofday", now, 0)
      if set_it else "", "adjtimex": call("adjtimex", timex), "clock_adjtime": call("clock_adjtime", 0, timex)})
"""


@pytest.mark.needs("unfiltered")
@pytest.mark.lock("seccomp")
def test_c011_cannot_touch_a_clock(box: Box, only: Only) -> None:
    """Not even the calls that could set a clock are a job's, whatever it asks of them."""
    with control():  # the harmless half, since root could set it
        assert {""} == set(without(CLOCKS, set_it=False).values())

    for sandbox in (box, only("seccomp")):
        assert {"EACCES"} == set(within(sandbox, CLOCKS, set_it=True).values())


@pytest.mark.lock("descriptors")
def test_c004_no_namespace_descriptor_is_inherited_from_the_daemon() -> None:
    """One that the daemon holds, inheritable even, doesn't reach a job."""
    attack = """
tell([os.readlink(f"/proc/self/fd/{n}") for n in range(1024) if os.path.lexists(f"/proc/self/fd/{n}")])
"""
    def seen(locks: Collection[str] | None) -> list[str]:
        with Box(locks=locks) as box:
            return [name.partition(":")[0] for name in within(box, attack)]

    fd = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        with control():
            assert "mnt" in seen(())
        product = seen(None)
        assert "pipe" in product
        assert "mnt" not in product + seen({"descriptors"})
    finally:
        os.close(fd)
