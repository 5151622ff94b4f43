"""Attacks by system calls, and on rights and descriptors that a job should not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leeward.outcome import Outcome
from leeward_cli.selftest.attack import Attack, Seen

if TYPE_CHECKING:
    from leeward_cli.selftest.canaries import Canaries

#: Environment variables that every job has, independent of the daemon's environment.
OWN = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "USER", "LC_ALL", "LC_CTYPE", "TZ", "TERM",
                 "PYTHONDONTWRITEBYTECODE", "MPLCONFIGDIR", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                 "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "PYTHONUNBUFFERED"})


def _of_the_daemon(canaries: Canaries, seen: Seen) -> str:
    found = seen.any or {}
    names = sorted(name for name, value in found.items()
                   if canaries.token in value or (name not in OWN and value == canaries.daemon_environment.get(name)))
    return ", ".join(names)[:80]


CALLS = (
    Attack("c001", "system calls", "make a user namespace", ("seccomp",), """
def attack():
    call("unshare", 0x10000000)
    return "made"
""", only="seccomp"),
    Attack("c003", "system calls", "clone into a new user namespace, past a filter of 32 bits", ("seccomp",), """
def attack():
    child = call("clone", 0x10000000 | 17 | 1 << 63, 0, 0, 0, 0)
    if 0 == child:
        os._exit(0)
    os.waitpid(child, 0)
    return "started"
""", only="seccomp"),
    Attack("c032", "system calls", "make an io_uring, whose operations no filter sees", ("seccomp",), """
def attack():
    return f"descriptor {call('io_uring_setup', 4, ctypes.create_string_buffer(120))}"
""", only="seccomp"),
    Attack("c033", "system calls", "add a key to a ring of the kernel's", ("seccomp",), """
def attack():
    return f"key {call('add_key', b'user', given['mark'].encode(), b'x', 1, -2)}"
""", only="seccomp"),
    Attack("c033", "system calls", "handle page faults of its own (userfaultfd)", ("seccomp",), """
def attack():
    return f"descriptor {call('userfaultfd', 1)}"
""", only="seccomp"),
    Attack("c033", "system calls", "load a program into the kernel (bpf)", ("seccomp", "privileges"), """
def attack():
    about = bytearray(128)
    about[0:16] = b"".join(number.to_bytes(4, sys.byteorder) for number in (2, 4, 8, 1))  # an array of one value
    return f"descriptor {call('bpf', 0, (ctypes.c_char * 128).from_buffer(about), 128)}"
"""),
    Attack("c033", "system calls", "measure the kernel (perf_event_open)", ("seccomp",), """
def attack():
    about = bytearray(128)
    about[0:8] = (1).to_bytes(4, sys.byteorder) + (128).to_bytes(4, sys.byteorder)  # PERF_TYPE_SOFTWARE
    return f"descriptor {call('perf_event_open', (ctypes.c_char * 128).from_buffer(about), 0, -1, -1, 0)}"
"""),
    Attack("c084", "system calls", "trace another process", ("seccomp",), """
def attack():
    child = os.fork()
    if 0 == child:
        os._exit(0 if refusal(call, "ptrace", 0, 0, 0, 0) else 1)
    traced = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not traced:
        raise OSError(errno.EACCES, "ptrace")
    return "traced"
""", only="seccomp"),
    Attack("c084", "system calls", "read another process's memory by a call", ("seccomp",), """
def attack():
    there = ctypes.create_string_buffer(b"memory", 8)
    here = ctypes.create_string_buffer(8)
    rows = [(ctypes.c_size_t * 2)(ctypes.addressof(of), 6) for of in (here, there)]
    call("process_vm_readv", os.getpid(), rows[0], 1, rows[1], 1, 0)
    return here.value.decode()
""", only="seccomp"),
    Attack("c034", "system calls", "ask for a filter of its own on top", ("seccomp",), """
def attack():
    call("seccomp", 2, 0, ctypes.byref(ctypes.c_uint32(0x7fff0000)))
    return "answered"
""", only="seccomp"),
    Attack("c029", "system calls", "make a 32-bit call, whose numbers mean others", ("seccomp",), """
def attack():
    if "x86_64" != os.uname().machine:
        raise OSError(errno.ENOSYS, "no 32-bit entry is known for this machine")
    import mmap
    code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
    code.write(bytes.fromhex("53 b814000000 cd80 5b c3".replace(" ", "")))  # getpid by int 0x80
    got = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    if -38 == got:
        raise OSError(errno.ENOSYS, "the kernel has no 32-bit calls")
    return f"it said {got}"
""", ends=(Outcome.SIGNALLED,), only="seccomp"),
    Attack("c157", "system calls", "keep pages in a pipe (vmsplice)", ("seccomp",), """
def attack():
    read, write = os.pipe()
    page = ctypes.create_string_buffer(4096)
    call("vmsplice", write, (ctypes.c_size_t * 2)(ctypes.addressof(page), 4096), 1, 0)
    return "spliced"
""", only="seccomp"),
)

RIGHTS = (
    Attack("c009", "rights", "have a capability, or be able to get one", ("privileges",), """
def attack():
    with open("/proc/self/status") as file:
        rows = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    has = [name for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(rows[name], 16)]
    if "1" != rows["NoNewPrivs"]:
        has.append("set-id programs")
    return ", ".join(has)
""", only="privileges"),
    Attack("c006", "rights", "become root", ("privileges", "namespaces"), """
def attack():
    os.setresuid(0, 0, 0)
    return f"uid {os.getuid()}"
"""),
    Attack("c077", "descriptors", "have a descriptor that somebody left open", ("descriptors",), """
def attack():
    return ", ".join(str(fd) for fd in range(6, 1024) if not refusal(os.fstat, fd))
""", only="descriptors"),
    Attack("c079", "descriptors", "read the daemon's environment", ("environment",), """
def attack():
    return dict(os.environ)
""", _of_the_daemon, only="environment"),
)
