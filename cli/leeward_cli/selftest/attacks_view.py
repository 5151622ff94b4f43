"""Attacks on a job's view of the host: namespaces, network, mounts, /proc, devices."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from leeward_cli.selftest.attack import Attack, Seen, secret_read

if TYPE_CHECKING:
    from leeward_cli.selftest.canaries import Canaries


def _hurt(canaries: Canaries, seen: Seen) -> str:
    return canaries.victim_is_hurt()


def _neighbour(canaries: Canaries, seen: Seen) -> str:
    return canaries.neighbour_is_hurt()


def _called(canaries: Canaries, seen: Seen) -> str:
    return canaries.arrived()


def _host_name(canaries: Canaries, seen: Seen) -> str:
    return "the host's name" if seen.any == socket.gethostname() else ""


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
""", _neighbour),
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
""", _host_name, only="namespaces"),
    Attack("c074", "namespaces", "read shared memory (System V) of the host", ("namespaces", "seccomp"), """
def attack():
    number = call("shmget", given["shared"], 0, 0)
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(number, None, 0o10000)
    if at in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat")
    return ctypes.string_at(at, 16).decode()
""", secret_read),
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
