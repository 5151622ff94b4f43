"""
The attacks: on a job's view of the host, by system calls, on rights and descriptors, on limits, and on later jobs.

Those on limits have a bound of their own, so that they do no harm if a limit is missing.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from leeward.spec.limits import KIB, MIB
from leeward.spec.outcome import Outcome
from leeward_cli.selftest.trial import Attack, Seen, secret_read

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


def _hurt(canaries: Canaries, seen: Seen) -> str:
    return canaries.victim_is_hurt()


def _called(canaries: Canaries, seen: Seen) -> str:
    return canaries.arrived()


NAMESPACES = (
    Attack("c082", "namespaces", "kill a process of the host by its number", ("namespaces", "landlock"), """
def attack():
    os.kill(given["victim"], 9)
""", _hurt),
    Attack("c082", "namespaces", "stop a process of the host by a pidfd", ("namespaces", "landlock"), """
import signal
def attack():
    signal.pidfd_send_signal(os.pidfd_open(given["victim"]), signal.SIGSTOP)
""", _hurt),
    Attack("c094", "namespaces", "kill a process of the job in the worker beside", ("namespaces", "landlock"), """
def attack():
    os.kill(given["neighbour"], 9)
""", lambda canaries, seen: canaries.neighbour_is_hurt()),
    Attack("c005", "namespaces", "find the host's processes in /proc", ("mounts", "namespaces"), """
def attack():
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/cmdline", "rb") as file:
                if given["mark"][::-1].encode() in file.read():
                    return f"process {number}"
        except OSError:
            pass
""", only="mounts"),
    Attack("c011", "namespaces", "read the host's name", ("namespaces",), """
def attack():
    return os.uname().nodename
""", lambda canaries, seen: "the host's name" if seen.any == socket.gethostname() else "", only="namespaces"),
    Attack("c074", "namespaces", "read shared memory (System V) of the host", ("namespaces",), """
def attack():
    number = call("shmget", given["shared"], 0, 0)
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(number, None, 0o10000)
    if at in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat")
    return ctypes.string_at(at, 16).decode()
""", secret_read, only="namespaces"),
)

NETWORK = (
    Attack("c044", "network", "connect to a TCP port of this host", ("seccomp", "namespaces", "landlock"), """
import socket
def attack():
    with socket.socket() as sock:
        sock.settimeout(2)
        sock.connect(("127.0.0.1", given["tcp"]))
""", _called),
    Attack("c044", "network", "send a UDP datagram to this host", ("seccomp", "namespaces"), """
import socket
def attack():
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.sendto(b"here", ("127.0.0.1", given["udp"]))
""", _called),
    Attack("c075", "network", "connect to an abstract Unix socket of the host", ("namespaces", "landlock"), """
import socket
def attack():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(2)
        sock.connect(chr(0) + given["abstract"])
""", _called),
    Attack("c105", "network", "reach the daemon's own socket by its path", ("mounts", "landlock"), """
import socket
def attack():
    if given["socket"]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(2)
            sock.connect(given["socket"])
            return "connected"
"""),
    Attack("c044", "network", "open a netlink, a packet or a raw socket", ("seccomp",), """
import socket
def attack():
    families = {"netlink": 16, "packet": 17, "raw": socket.AF_INET}
    said = {name: refusal(socket.socket, family, socket.SOCK_RAW) for name, family in families.items()}
    made = [name for name, why in said.items() if not why]
    if not made:
        raise OSError(getattr(errno, said["netlink"]), "socket")
    return ", ".join(made)
""", only="seccomp"),
    Attack("c050", "network", "find a network interface other than lo", ("namespaces",), """
def attack():
    with open("/proc/self/net/dev") as file:
        names = [line.partition(":")[0].strip() for line in file if ":" in line]
    return ", ".join(name for name in names if "lo" != name)
""", only="namespaces"),
)

MOUNTS = (
    Attack("c012", "mounts", "read a file of the host by its path", ("mounts", "landlock"), """
def attack():
    with open(given["secret"]) as file:
        return file.read()
""", secret_read),
    Attack("c013", "mounts", "read it by /proc/PID/root of every process", ("mounts", "landlock"), """
def attack():
    refused = None
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/root{given['secret']}") as file:
                return file.read()
        except OSError as error:
            refused = error
    raise refused
""", secret_read),
    Attack("c021", "mounts", "open the standard library for writing", ("mounts", "landlock"), """
def attack():
    os.close(os.open(os.__file__, os.O_WRONLY))
    return os.__file__
"""),
    Attack("c028", "mounts", "make a file in /usr", ("mounts", "landlock"), """
def attack():
    name = f"/usr/{given['mark']}"
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    os.unlink(name)
    return name
"""),
    Attack("c025", "mounts", "list the devices of the host in /sys", ("mounts",), """
def attack():
    return ", ".join(os.listdir("/sys/class")) + ", ".join(os.listdir("/sys/kernel"))
""", only="mounts"),
    Attack("c018", "mounts", "mount a file system", ("seccomp", "privileges", "landlock"), """
def attack():
    call("mount", b"x", b"/tmp", b"tmpfs", 0, None)
    return "mounted"
"""),
    Attack("c016", "mounts", "unmount /proc", ("seccomp", "privileges"), """
def attack():
    call("umount2", b"/proc", 2)
    return "unmounted"
"""),
    Attack("c015", "mounts", "change the root", ("seccomp", "privileges"), """
def attack():
    os.chroot(".")
    return "changed"
"""),
    Attack("c017", "mounts", "use the newer mount calls", ("seccomp",), """
def attack():
    said = {name: refusal(call, name, *args) for name, args in {
        "fsopen": (b"tmpfs", 0), "open_tree": (-100, b"/tmp", 0)}.items()}
    made = [name for name, why in said.items() if not why]
    if not made:
        raise OSError(getattr(errno, said["fsopen"]), "fsopen")
    return ", ".join(made)
""", only="seccomp"),
    Attack("c027", "mounts", "get a handle, to open any file of a disk by it", ("seccomp",), """
def attack():
    handle = ctypes.create_string_buffer((128).to_bytes(4, sys.byteorder), 136)
    number = ctypes.c_int()
    call("name_to_handle_at", -100, os.fsencode(os.__file__), handle, ctypes.byref(number), 0)
    return "a handle"
""", only="seccomp"),
    Attack("c026", "mounts", "open or make a device", ("mounts", "seccomp", "landlock"), """
import stat
def attack():
    names = [f"/dev/{name}" for name in ("mem", "kmsg", "sda", "vda", "nvme0n1", "loop0", "kvm", "fuse", "net/tun")]
    opened = [name for name in names if not refusal(os.open, name, os.O_RDONLY)]
    if opened:
        return ", ".join(opened)
    os.mknod("/tmp/device", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    return "made one"
"""),
)

PROCFS = (
    Attack("c023", "/proc", "open settings of the kernel for writing", ("mounts", "landlock"), """
def attack():
    names = [f"/proc/{name}" for name in ("sys/kernel/core_pattern", "sys/vm/drop_caches", "sysrq-trigger")]
    said = {name: refusal(os.open, name, os.O_WRONLY) for name in names}
    opened = [name for name, why in said.items() if not why]
    if not opened:
        raise OSError(getattr(errno, said[names[0]]), "open")
    return ", ".join(opened)
"""),
    Attack("c024", "/proc", "read memory, addresses or keys of the kernel", ("mounts", "namespaces"), """
def attack():
    found = []
    refused = None
    for name in ("kcore", "kallsyms", "keys", "kmsg", "iomem", "vmallocinfo"):
        try:
            with open(f"/proc/{name}", "rb") as file:
                content = file.read(4096)
        except OSError as error:
            refused = error
            continue
        if any(line.split()[0].strip(b"0-:") for line in content.splitlines() if line.strip()):
            found.append(name)
    if not found and refused:
        raise refused
    return ", ".join(found)
"""),
    Attack("c024", "/proc", "look into the first process of its sandbox", ("privileges", "landlock"), """
def attack():
    names = ("environ", "maps", "mem", "fd", "cwd")
    said = {name: refusal(os.listdir if "fd" == name else os.readlink if "cwd" == name else open, f"/proc/1/{name}")
            for name in names}
    seen = [name for name, why in said.items() if not why]
    if not seen:
        raise OSError(getattr(errno, said["environ"]), "open")
    return ", ".join(seen)
""", only="privileges"),
    Attack("c023", "/proc", "change its own score for the kernel's memory killer", ("landlock", "mounts"), """
def attack():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    return "changed"
"""),
)

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


def _taken(canaries: Canaries, seen: Seen) -> str:
    return f"took {seen.any}" if seen.any else ""


def _wrote(canaries: Canaries, seen: Seen) -> str:
    length = len(seen.results[0].stdout)
    return f"{length} bytes came, of 65536 that were allowed" if length > 64 * KIB else ""


def _ran_on(canaries: Canaries, seen: Seen) -> str:
    duration = seen.results[0].duration
    return f"it ran for {duration:.1f} s, of 1 s that was allowed" if seen.any or duration > 6.0 else ""


def _alike(canaries: Canaries, seen: Seen) -> str:
    drawn = [did for did in seen.did if did]
    return "two jobs drew the same numbers" if len(set(drawn)) < len(drawn) else ""


_STOPPED = (Outcome.OUT_OF_MEMORY, Outcome.SIGNALLED)

LIMITS = (
    Attack("c053", "limits", "take three times its memory, in one process", ("limits", "rlimits"), """
def attack():
    taken = bytearray(192 << 20)
    for at in range(0, len(taken), 4096):
        taken[at] = 1
    return "192 MiB"
""", _taken, options={"memory": 64 * MIB, "timeout": 20.0}, ends=_STOPPED, only="limits"),
    Attack("c053", "limits", "take three times its memory, in six processes", ("limits",), """
import signal
def attack():
    read, write = os.pipe()
    for _ in range(6):
        if 0 == os.fork():
            taken = bytearray(32 << 20)
            for at in range(0, len(taken), 4096):
                taken[at] = 1
            os.write(write, b"+")
            signal.pause()
    os.close(write)
    done = 0
    while done < 6 and os.read(read, 1):
        done += 1
    if done < 6:
        raise OSError(errno.ENOMEM, "fork")
    return "192 MiB"
""", _taken, options={"memory": 64 * MIB, "timeout": 20.0}, ends=(*_STOPPED, Outcome.TIMED_OUT), only="limits"),
    Attack("c055", "limits", "start twice as many processes as it may have", ("limits", "rlimits"), """
import signal
def attack():
    for _ in range(32):
        if 0 == os.fork():
            signal.pause()
    return "32 processes"
""", _taken, options={"processes": 16, "timeout": 20.0}, only="limits"),
    Attack("c056", "limits", "compute on more processors than it may have", ("limits",), """
import time
def attack():
    try:
        os.sched_setaffinity(0, range(1024))
    except OSError:
        pass
    start = time.monotonic()
    children = range(max(4, len(os.sched_getaffinity(0))))
    for _ in children:
        if 0 == os.fork():
            while time.monotonic() < start + 1.0:
                pass
            os._exit(0)
    for _ in children:
        os.wait()
    times = os.times()
    share = (times.children_user + times.children_system) / (time.monotonic() - start)
    return f"{share:.1f} processors" if share > 1.3 * given["cpu"] / 100 else ""
""", options={"processes": 64, "timeout": 20.0}, needs="controllers"),
    Attack("c057", "limits", "run on when its time is over", ("the daemon's clock",), """
import signal, time
def attack():
    for number in range(1, 32):
        if number not in (9, 19):
            signal.signal(number, signal.SIG_IGN)
    until = time.monotonic() + 8.0
    while time.monotonic() < until:
        pass
    return "8 s"
""", _ran_on, options={"timeout": 1.0}, ends=(Outcome.TIMED_OUT,)),
    Attack("c059", "limits", "write four times as much as it may", ("pipes",), """
def attack():
    for _ in range(256):
        os.write(1, b"x" * 1024)
    return "256 KiB"
""", _wrote, options={"output": 64 * KIB}, ends=(Outcome.OUTPUT_LIMIT,)),
    Attack("c060", "limits", "fill its folders with twice its memory", ("mounts", "limits"), """
def attack():
    size = 0
    for number, folder in enumerate(("/workspace", "/tmp", "/dev/shm") * 2):
        try:
            with open(f"{folder}/{given['mark']}-{number}", "wb", buffering=0) as file:
                for _ in range(22):
                    size += file.write(b"x" * (1 << 20))
        except OSError as error:
            refused = error
    if size < 128 << 20:
        raise refused
    return f"{size >> 20} MiB"
""", _taken, options={"memory": 64 * MIB, "timeout": 20.0}, ends=_STOPPED),
    Attack("c061", "limits", "open 4,096 descriptors", ("rlimits",), """
def attack():
    for _ in range(4096):
        os.dup(1)
    return "4096 descriptors"
""", _taken, only="rlimits"),
)

LEFTOVERS = (
    Attack("c090", "the job before", "find a file that an earlier job has left", ("mounts",), """
def attack():
    names = [f"{folder}/{given['mark']}-left" for folder in ("/workspace", "/tmp", "/dev/shm", "/var/tmp")]
    if not given["turn"]:
        made = [name for name in names if not refusal(lambda: open(name, "x").close())]
        if not made:
            raise RuntimeError("no folder is writable")
        return
    return ", ".join(filter(os.path.exists, names))
""", repeat=3, only="mounts"),
    Attack("c089", "the job before", "leave a process behind", ("namespaces",), """
import subprocess
def attack():
    # A session of its own, and a parent that is gone.
    subprocess.Popen(["/bin/sh", "-c", f"trap '' HUP TERM INT; (sleep 30; : {given['mark'][::-1]}-left) & sleep 0.2"],
                     start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL).wait()
""", lambda canaries, seen: canaries.left_behind()),
    Attack("c088", "the job before", "change the interpreter for the next job", ("a process for each job",), """
import builtins
def attack():
    if given["turn"]:
        return "the change is there" if hasattr(builtins, given["mark"]) or given["mark"] in os.environ else ""
    setattr(builtins, given["mark"], True)
    os.environ[given["mark"]] = "1"
    os.umask(0)
""", repeat=3),
    Attack("c095", "the job before", "draw the same random numbers as another job", ("randomness",), """
import random
def attack():
    return random.random()
""", _alike, repeat=3, only="randomness"),
)

ATTACKS = (*NAMESPACES, *NETWORK, *MOUNTS, *PROCFS, *CALLS, *RIGHTS, *LIMITS, *LEFTOVERS)
