"""The filter in a real kernel: it decides what the plan says, and nothing gets round it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from kit import confined
from kit.confined import HERE, NUMBER
from leeward._native import seccomp as native
from leeward._native.steps import Cell, Table
from leeward.daemon.supervisor import Supervisor
from leeward.errors import KernelRefusal
from leeward.isolation.seccomp.filters import init_program
from leeward.isolation.seccomp.rules import ALLOW, NOTIFY

pytestmark = pytest.mark.needs("seccomp-notify")


def run(code: str, supervisor: Supervisor) -> tuple[object, dict[str, int]]:
    """What the code told, and what it was refused."""
    with confined.confined(code, supervisor) as child:
        told = child.told()
        assert 0 == child.end()
        return told, supervisor.counts(child.job)


def outside(number: int, *args: int) -> int:
    """The call in this process, without a filter: the control."""
    libc = ctypes.CDLL(None, use_errno=True)
    got = int(libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, args)))
    return -ctypes.get_errno() if -1 == got else got


#: Allowed calls that end, stop or split whoever makes them; the others can be tried with bad arguments.
NOT_TO_BE_TRIED = {"exit", "exit_group", "fork", "vfork", "pause", "rt_sigreturn", "uretprobe", "uprobe"}


@pytest.mark.needs("unfiltered")
def test_c045_the_kernel_decides_every_call_number_as_the_plan_says(supervisor: Supervisor) -> None:
    """All numbers from -1 to 500, each with arguments that no call takes: refused ones are counted, one each."""
    bad = 0xFFFF_FFFF_FFFF_FFFF
    wanted = {number: HERE.decide(HERE.audit_arch, number, (bad,) * 6) for number in range(-1, 501)}
    tried = [number for number in wanted
             if number not in HERE.calls or HERE.calls[number].name not in NOT_TO_BE_TRIED]

    told, denied = run(f"tell({{number: call(number, *[{bad}] * 6) for number in {tried}}})", supervisor)

    assert isinstance(told, dict)
    for number in tried:
        action, got = wanted[number], told[str(number)]
        if NOTIFY.ret == action.ret:
            assert -errno.EACCES == got, number
        elif ALLOW != action:
            assert -(action.ret & 0xFFFF) == got, number
    refused = [number for number, action in wanted.items() if NOTIFY.ret == action.ret]
    assert {HERE.calls[number].name: 1 for number in refused} == denied


@pytest.mark.needs("x86-64")
@pytest.mark.parametrize("number", [39 | 1 << 30, 0 | 1 << 30, 512 | 1 << 30])
def test_c030_x32_ends_the_process(number: int, supervisor: Supervisor) -> None:
    """x86_64's other calling convention isn't there for jobs."""
    with confined.confined(f"tell(1); call({number})", supervisor) as child:
        child.told()

        assert -signal.SIGSYS == child.end()


@pytest.mark.needs("x86-64", "unfiltered")
def test_c029_the_32_bit_entry_ends_the_process(supervisor: Supervisor) -> None:
    """int 0x80 with number 20, getpid there and writev here; outside it answers."""
    code = """
import mmap
page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000 cd80 c3"))  # mov eax, 20; int 0x80; ret
entry = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
"""
    control = subprocess.run([sys.executable, "-c", f"import ctypes, os\n{code}\nassert entry() == os.getpid()"],
                             check=False)
    if 0 != control.returncode:
        assert -signal.SIGSEGV == control.returncode  # a kernel without 32-bit support

    with confined.confined(f"{code}\ntell(1)\nentry()", supervisor) as child:
        child.told()

        assert child.end() in ({-signal.SIGSYS} if 0 == control.returncode else {-signal.SIGSYS, -signal.SIGSEGV})


CLONE_NEW = {"NEWTIME": 0x80, "NEWNS": 0x20000, "NEWCGROUP": 0x2000000, "NEWUTS": 0x4000000, "NEWIPC": 0x8000000,
             "NEWUSER": 0x10000000, "NEWPID": 0x20000000, "NEWNET": 0x40000000}


def test_c001_c003_cannot_make_a_namespace(supervisor: Supervisor) -> None:
    """By unshare and by clone, each flag, also with garbage in the upper half of the register."""
    with subprocess.Popen(["unshare", "--user", "true"]) as control:
        control.wait()
    assert 0 == control.returncode or os.geteuid(), "control: a new user namespace can be had outside"

    flags = list(CLONE_NEW.values())
    told, denied = run(f"""
found = [call({NUMBER["unshare"]}, flag) for flag in {flags}]
found += [call({NUMBER["clone"]}, flag | high | 17) for flag in {flags} for high in (0, 1 << 32, 0xFFFFFFFF << 32)]
tell(found)""", supervisor)

    assert [-errno.EACCES] * 32 == told
    assert {"unshare": 8, "clone": 24} == denied


def test_c002_clone3_says_that_it_doesnt_exist(supervisor: Supervisor) -> None:
    """Its flags can't be seen; libc falls back, so that threads and processes still work."""
    told, denied = run(f"""
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
pid = os.fork() or os._exit(7)
import subprocess
tell([call({NUMBER["clone3"]}, 0, 0), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
      subprocess.run(["/bin/sh", "-c", "exit 5"]).returncode])""", supervisor)

    assert -errno.ENOSYS != outside(NUMBER["clone3"], 0, 0)  # control
    assert [-errno.ENOSYS, 7, 5] == told
    assert {} == denied


def test_c034_cannot_install_a_second_listener(supervisor: Supervisor) -> None:
    """Not while ours lives, and not once it is closed: the filter itself says no."""
    code = f"""
found = []
for turn in range(2):
    found.append([call({NUMBER["seccomp"]}, 1, 8, 0), call({NUMBER["seccomp"]}, 0, 0, 0),
                  call({NUMBER["prctl"]}, 22, 2, 0), call({NUMBER["prctl"]}, 22 | 1 << 32, 1), call({NUMBER["mount"]})])
    tell(found[-1]); parent.recv(1)
"""
    child, listener = confined.start(code)
    try:
        supervisor.add(listener, 1)
        child.go()
        alive = child.told()
        supervisor.remove(1)
        child.go()
        closed = child.told()
    finally:
        confined.stop(child)

    assert -errno.EFAULT == outside(NUMBER["seccomp"], 1, 8, 0)  # control: outside it gets as far as the program
    assert [-errno.EACCES] * 5 == alive
    assert [-errno.EACCES] * 4 + [-errno.ENOSYS] == closed


def test_c009_no_prctl_raises_a_right(supervisor: Supervisor) -> None:
    """Nothing that raises a right or opens a process to others."""
    told, _ = run(f"""
def prctl(*args): return call({NUMBER["prctl"]}, *args)
tell({{"no_new_privs 0": prctl(38, 0, 0, 0, 0), "ambient raise": prctl(47, 2, 21, 0, 0), "keepcaps": prctl(8, 1),
      "securebits": prctl(28, 0), "bounding": prctl(24, 21), "dumpable 1": prctl(4, 1), "ptracer": prctl(0x59616d61, 1),
      "mm": prctl(35, 1, 4096), "subreaper": prctl(36, 1), "mce": prctl(33, 0), "tsc": prctl(26, 2),
      "pdeathsig 0": prctl(1, 0), "no_new_privs is": prctl(39, 0, 0, 0, 0)}})""", supervisor)

    assert isinstance(told, dict)
    assert -errno.EINVAL == told.pop("no_new_privs 0")
    assert 0 == told.pop("pdeathsig 0")
    assert 1 == told.pop("no_new_privs is")
    assert {-errno.EACCES} == set(told.values())


@pytest.mark.parametrize("place", [0x1_0000_0000, 0x7000_0000], ids=["low half null", "high half null"])
def test_the_limit_on_cores_can_be_read_and_not_changed(supervisor: Supervisor, place: int) -> None:
    """A null pointer is a question and answered; one of which a half is null is none, and nothing is done."""
    ask = """
import mmap, resource, struct
resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
def told_limit():
    got = ctypes.create_string_buffer(16)
    assert 0 == call(PRLIMIT, 0, 4, 0, ctypes.addressof(got))
    return struct.unpack("QQ", got)
"""
    set_ = f"""
libc.mmap.restype = ctypes.c_void_p
assert {place} == libc.mmap(ctypes.c_void_p({place}), ctypes.c_size_t(4096), 3, 0x100022, -1, ctypes.c_long(0))
ctypes.memset({place}, 0, 16)
said = call(PRLIMIT, 0, 4, {place}, 0)
tell([said, told_limit()])
"""
    # The limit of 1 comes before the filter, so the process asks and sets twice: outside and inside.
    ask, set_ = (text.replace("PRLIMIT", str(NUMBER["prlimit64"])) for text in (ask, set_))
    boot = confined.CHILD.partition("parent =")[0]
    control = subprocess.run([sys.executable, "-c", boot + ask + set_], check=True, capture_output=True, text=True)
    assert [0, [0, 0]] == json.loads(control.stdout)

    limits = resource.getrlimit(resource.RLIMIT_CORE)
    told, denied = run(ask.replace("resource.setrlimit(resource.RLIMIT_CORE, (1, 1))\n", "") + set_, supervisor)
    assert [0, list(struct.unpack("2Q", struct.pack("2q", *limits)))] == told
    assert {} == denied


TYPES = """
import fcntl, os, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
try: fcntl.ioctl(0, termios.TIOCSTI, b"x")
except OSError as refused: os._exit(refused.errno)
"""


def test_c043_cannot_type_on_a_terminal(supervisor: Supervisor) -> None:
    """TIOCSTI, TIOCLINUX and TIOCSETD, with and without high bits: nothing is typed on the terminal that is stdin."""
    ours, terminal = os.openpty()
    with open(ours, "rb", buffering=0) as screen, open(terminal, "rb", buffering=0) as stdin:
        control = subprocess.run([sys.executable, "-c", TYPES], stdin=stdin, check=False).returncode
        assert control in (0, errno.EIO)  # EIO: this kernel lets nobody (dev.tty.legacy_tiocsti)
        if 0 == control:
            assert b"x" == screen.read(1)  # echoed

        with confined.confined(f"""
typed = ctypes.create_string_buffer(b"y")
tell([call({NUMBER["ioctl"]}, 0, request | high, ctypes.addressof(typed))
      for request in (0x5412, 0x541C, 0x5423) for high in (0, 1 << 32)])""", supervisor, stdin=terminal) as child:
            told = child.told()
            denied = supervisor.counts(child.job)

        os.set_blocking(ours, False)
        assert [-errno.EACCES] * 6 == told
        assert {"ioctl": 6} == denied
        assert screen.read(1) is None


def test_c044_sockets_of_unix_only(supervisor: Supervisor) -> None:
    """Every family and type; socketpair as well."""
    told, denied = run(f"""
def close(got):
    if got >= 0: os.close(got)
    return min(got, 0)
import array
pair = array.array("i", [0, 0])
tell([[[close(call({NUMBER["socket"]}, family | high, kind, 0)) for kind in (1, 2, 3, 5)]
       for family in range(47) for high in (0, 1 << 32)],
      [call({NUMBER["socketpair"]}, family, 1, 0, pair.buffer_info()[0]) for family in range(47)]])""", supervisor)

    assert isinstance(told, list)
    for index, got in enumerate(told[0]):
        want = {0, -errno.ESOCKTNOSUPPORT} if 1 == index // 2 else {-errno.EACCES}
        assert want >= set(got), f"family {index // 2}"
    assert 0 == told[1].pop(1)
    assert {-errno.EACCES} == set(told[1])
    assert {"socket": 46 * 8, "socketpair": 46} == denied


def test_c026_cannot_make_a_device(supervisor: Supervisor, tmp_path: Path) -> None:
    """Not a character device, nor a block device, nor the whiteout 0:0; a FIFO, a plain file and a socket can be made."""
    told, denied = run(f"""
def node(mode, device=0):
    try: os.mknod({str(tmp_path)!r} + f"/{{mode}}{{device}}", mode | 0o600, device)
    except OSError as error: return error.errno
import stat
tell([node(stat.S_IFCHR), node(stat.S_IFCHR, os.makedev(1, 3)), node(stat.S_IFBLK, os.makedev(8, 0)),
      node(stat.S_IFIFO), node(stat.S_IFREG), node(0), node(stat.S_IFSOCK)])""", supervisor)

    assert [errno.EACCES] * 3 + [None] * 2 + [None] * 2 == told
    assert {"mknodat": 3} == denied or {"mknod": 3} == denied


def test_c041_signals_dont_lose_calls(supervisor: Supervisor) -> None:
    """
    SIGALRM every millisecond without SA_RESTART, while shell pipelines run and calls are refused.

    A signal can end the wait until the supervisor has taken the call: EINTR, which the job may repeat.
    """
    told, denied = run(f"""
import subprocess
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
lines = [subprocess.run(["/bin/sh", "-c", "echo a b | cat | wc -w"], capture_output=True, text=True).stdout.strip()
         for _ in range(30)]
refused = [call({NUMBER["mount"]}) for _ in range(300)]
signal.setitimer(signal.ITIMER_REAL, 0)
tell([lines, refused])""", supervisor)

    assert isinstance(told, list)
    assert ["2"] * 30 == told[0]
    assert {-errno.EACCES} <= set(told[1]) <= {-errno.EACCES, -errno.EINTR}
    assert {"mount"} == set(denied)
    if native.has_wait_killable():
        assert told[1].count(-errno.EACCES) == denied["mount"]  # what was taken was answered


def test_the_listener_is_close_on_exec_and_unique() -> None:
    """Close-on-exec, and a second one on the same thread is refused with a reason."""
    code = """
from leeward.errors import KernelRefusal
allow_all = bytes.fromhex("060000000000ff7f")
first = listen(allow_all)
import fcntl
try: listen(allow_all); second = "installed"
except KernelRefusal as refused: second = str(refused)
tell([fcntl.fcntl(first, fcntl.F_GETFD), second])
"""
    boot = confined.CHILD.partition("parent =")[0]
    got = subprocess.run([sys.executable, "-c", f"{boot}\nprivileges.no_new_privs()\n{code}"], check=True,
                         capture_output=True, text=True).stdout

    assert f"[{fcntl.FD_CLOEXEC}, " in got
    assert "EBUSY: another listener is installed already" in got


def test_a_filter_needs_no_new_privs() -> None:
    """The error names the call; as root the kernel asks for none."""
    if os.geteuid():
        with pytest.raises(KernelRefusal, match=r"seccomp\(.*\): EACCES"):
            Table([native.listen_step(Cell("listener"), bytes.fromhex("060000000000ff7f"), killable=False)]).run()
    with pytest.raises(KernelRefusal, match=r"seccomp\(.*\): E"):
        Table([native.listen_step(Cell("listener"), b"", killable=False)]).run()


def test_the_probes_agree_with_the_kernels_version() -> None:
    """The probes agree with the kernel's version."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])

    assert native.has_user_notif()
    assert native.has_wait_killable() == (release >= (5, 19))


def test_the_inits_filter_kills() -> None:
    """Waiting and exiting work; the first other call is the last."""
    boot = f"""
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
program = ctypes.create_string_buffer(bytes.fromhex("{init_program(platform.machine()).hex()}"))
libc.prctl(38, 1, 0, 0, 0)
prog = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(program))
assert 0 == libc.syscall({NUMBER["seccomp"]}, 1, 0, prog)
"""
    waits = f"assert -1 == libc.syscall({NUMBER['wait4']}, -1, 0, 1, 0)\nlibc.syscall({NUMBER['exit_group']}, 3)"

    assert 3 == subprocess.run([sys.executable, "-c", f"{boot}{waits}"], check=False).returncode
    for forbidden in ("getpid", "write", "kill", "mmap", "openat"):
        code = f"{boot}libc.syscall({NUMBER[forbidden]}, 0, 0, 0, 0, 0, 0)\n{waits}"
        assert -signal.SIGSYS == subprocess.run([sys.executable, "-c", code], check=False).returncode
