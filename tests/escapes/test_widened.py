"""
What an operator may allow: TCP and UDP over `lo`, and pseudo-terminals. Catalogue cases 168 to 171, and 211.

What they are for is in tests/integration/test_widened.py and test_real_programs.py; here is what they don't give.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kit.attack import serves, within, without
from kit.box import Box, control
from kit.drivers import DRIVERS, BorrowedDriver

With = Callable[..., Box]


@pytest.fixture(scope="module", params=DRIVERS)
def wide(request: pytest.FixtureRequest) -> Iterator[Box]:
    """Every lock, and all that an operator can add, with each driver that this machine can have."""
    with Box(cgroup=request.param, loopback=True, terminal=True) as made:
        yield made
        assert serves(made)


@pytest.fixture(scope="module")
def wide_with(wide: Box) -> Iterator[With]:
    """`wide_with("mounts")`: the same, with that lock and no other that can be left out."""
    made: dict[frozenset[str], Box] = {}
    with ExitStack() as stack:
        def get(*locks: str) -> Box:
            wanted = frozenset(locks)
            if wanted not in made:
                made[wanted] = stack.enter_context(Box(locks=wanted, driver=BorrowedDriver(wide.engine.driver),
                                                       loopback=True, terminal=True))
            return made[wanted]
        yield get


# --- c168: out of the sandbox ---------------------------------------------------

REACH = """
import socket
said = {}
for name, (family, kind, address) in targets.items():
    def reach():
        with socket.socket(family, kind) as made:
            made.settimeout(2)
            made.connect(tuple(address))
            made.send(b"from inside")
    said[name] = attempt(reach)
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
    client.sendall(b"loopback")
    said["itself"] = server.accept()[0].recv(8).decode()
said["interfaces"] = [name for _, name in socket.if_nameindex()] if "" == attempt(socket.if_nameindex) else ["lo"]
tell(said)
"""

#: An address of the documentation, TEST-NET-1: nobody has it.
NOBODY = "192.0.2.1"


def own_addresses() -> list[str]:
    """127.0.0.1, and the address that this host has for others, where it has one. No packet is sent."""
    with socket.socket(type=socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
        asked.connect((NOBODY, 9))
        return ["127.0.0.1", str(asked.getsockname()[0])]
    return ["127.0.0.1"]


@pytest.mark.smoke
@pytest.mark.lock("namespaces")
def test_c168_cannot_reach_the_host_over_loopback(wide: Box, wide_with: With) -> None:
    """A server of the host on every address that the host has: no packet arrives, over TCP or UDP."""
    with ExitStack() as stack:
        targets: dict[str, tuple[int, int, tuple[str, int]]] = {}
        servers = []
        for address in own_addresses():
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                server = stack.enter_context(socket.socket(type=kind))
                server.bind((address, 0))
                if kind == socket.SOCK_STREAM:
                    server.listen()
                servers.append(server)
                targets[f"{address} {kind.name}"] = (socket.AF_INET, kind, server.getsockname())

        def arrived() -> int:
            return len(select.select(servers, [], [], 0)[0])

        given = {name: (int(family), int(kind), where) for name, (family, kind, where) in targets.items()}
        for sandbox in (wide, wide_with("namespaces")):
            said = within(sandbox, REACH, targets=given)
            assert "loopback" == said["itself"]
            assert ["lo"] == said["interfaces"]
            for address in own_addresses():
                assert said[f"{address} SOCK_STREAM"] in ("ECONNREFUSED", "ENETUNREACH")
            assert 0 == arrived()
        with control():
            said = within(wide_with(), REACH, targets=given)
            assert {""} == {said[name] for name in given}
            assert len(servers) == arrived()


BEYOND = """
import socket
def option(level, name, value, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as made:
        made.setsockopt(level, name, value)
def make(family, kind, protocol=0):
    socket.socket(family, kind, protocol).close()
TCP_CONGESTION, TCP_REPAIR, TCP_ULP, IP_ADD_MEMBERSHIP, IPPROTO_UDPLITE, IPPROTO_MPTCP = 13, 19, 31, 35, 136, 262
DATAGRAMS_6 = socket.AF_INET6, socket.SOCK_DGRAM
tell({
    **{f"netlink {number}": attempt(make, socket.AF_NETLINK, socket.SOCK_RAW, number)
       for number in range(1, 23)},
    "packet": attempt(make, socket.AF_PACKET, socket.SOCK_RAW),
    "raw": attempt(make, socket.AF_INET, socket.SOCK_RAW, 1),
    "raw 6": attempt(make, socket.AF_INET6, socket.SOCK_RAW, 58),
    "ping": attempt(make, socket.AF_INET, socket.SOCK_DGRAM, 1),
    "mptcp": attempt(make, socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP),
    "udp lite": attempt(make, socket.AF_INET, socket.SOCK_DGRAM, IPPROTO_UDPLITE),
    "stream of udp": attempt(make, socket.AF_INET, socket.SOCK_STREAM, 17),
    "vsock": attempt(make, 40, socket.SOCK_STREAM),
    "congestion": attempt(option, socket.IPPROTO_TCP, TCP_CONGESTION, b"reno"),
    "tls": attempt(option, socket.IPPROTO_TCP, TCP_ULP, b"tls"),
    "repair": attempt(option, socket.IPPROTO_TCP, TCP_REPAIR, 1),
    "multicast": attempt(option, socket.IPPROTO_IP, IP_ADD_MEMBERSHIP, socket.inet_aton("224.0.0.251") + bytes(4),
                         kind=socket.SOCK_DGRAM),
    "filter": attempt(option, socket.SOL_SOCKET, 26, bytes(16)),
    "device": attempt(option, socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo"),
    "hop options": attempt(option, socket.IPPROTO_IPV6, socket.IPV6_RECVHOPOPTS, 1, *DATAGRAMS_6),
    "routing header": attempt(option, socket.IPPROTO_IPV6, socket.IPV6_RECVRTHDR, 1, *DATAGRAMS_6),
    "allowed": {attempt(option, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                *(attempt(option, socket.IPPROTO_IPV6, name, 1, *DATAGRAMS_6)
                  for name in (socket.IPV6_RECVHOPLIMIT, socket.IPV6_RECVTCLASS))} == {""},
})
"""


@pytest.mark.lock("seccomp")
def test_c168_loopback_carries_tcp_and_udp_alone(wide: Box, wide_with: With) -> None:
    """
    No raw packets, no other protocol; of netlink the list of interfaces alone; no option that loads a module or runs a
    program in the kernel.
    """
    with control():
        loose = within(wide_with(), BEYOND)
        assert {""} == {loose[name] for name in ("netlink 15", "congestion", "device", "hop options", "routing header")}

    for sandbox in (wide, wide_with("seccomp")):
        said = within(sandbox, BEYOND)
        assert said.pop("allowed")
        assert "EAFNOSUPPORT" == said.pop("netlink 9")  # audit's: as by a kernel without it, which programs know
        assert {"EACCES"} == set(said.values()), said


CHANGE = """
import socket, struct
RTM_NEWLINK, RTM_NEWADDR, NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE = 16, 20, 1, 4, 0x400
def ask(kind, body, flags=0):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as netlink:
        netlink.settimeout(5)
        netlink.send(struct.pack("IHHII", 16 + len(body), kind, NLM_F_REQUEST | NLM_F_ACK | flags, 1, 0) + body)
        error = struct.unpack_from("i", netlink.recv(4096), 16)[0]
        return errno.errorcode[-error] if error else ""
address = socket.inet_aton("192.0.2.7")
tell({"link": ask(RTM_NEWLINK, struct.pack("BxHiII", 0, 0, 1, 1, 1)),  # lo: IFF_UP, which it is
      "address": ask(RTM_NEWADDR, struct.pack("BBBBI", socket.AF_INET, 32, 0, 0, 1)
                     + struct.pack("HH", 8, 2) + address + struct.pack("HH", 8, 1) + address, NLM_F_CREATE)})
"""


@pytest.mark.lock("privileges", beside=("namespaces",), because="the interfaces must not be the host's")
def test_c168_cannot_change_its_network(wide: Box, wide_with: With) -> None:
    """It may ask for its interfaces; a change takes CAP_NET_ADMIN, which it hasn't."""
    with control():
        assert {"link": "", "address": ""} == within(wide_with("namespaces"), CHANGE)

    for sandbox in (wide, wide_with("namespaces", "privileges")):
        assert {"link": "EPERM", "address": "EPERM"} == within(sandbox, CHANGE)


# --- c211: signals by descriptors ------------------------------------------------

#: A socket that sends SIGIO to *target* when something comes.
OWNER = """
import fcntl, socket, struct
ours, theirs = socket.socketpair()
said = attempt(lambda: fcntl.fcntl(ours, fcntl.F_SETOWN, target))
FIOASYNC = 0x5452
fcntl.ioctl(ours, FIOASYNC, struct.pack("i", 1))
theirs.send(b"x")
tell(said)
"""


@pytest.mark.lock("namespaces")
def test_c211_cannot_have_a_descriptor_signal_a_process_outside(wide: Box, wide_with: With) -> None:
    """SIGIO goes to a process of the job's own pid namespace; the kernel keeps it from the init, and the job goes on."""
    @contextlib.contextmanager
    def canary() -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(["sleep", "60"]) as made:
            try:
                yield made
            finally:
                made.kill()

    with control(), canary() as hit:
        assert "" == without(OWNER, target=hit.pid)
        assert -signal.SIGIO == hit.wait(10)

    with canary() as spared:
        for box in (wide, wide_with("namespaces")):
            assert "ESRCH" == within(box, OWNER, target=spared.pid)
        assert "" == within(wide, OWNER, target=1)
        assert spared.poll() is None


# --- c169: to the next job --------------------------------------------------------

LEAVES_A_PORT = """
import socket
server = socket.create_server(("127.0.0.1", 40123))
client = socket.create_connection(server.getsockname())
accepted = server.accept()[0]
accepted.shutdown(socket.SHUT_RDWR)  # this end closes first, and is kept for a minute
client.recv(1); client.close(); accepted.close(); server.close()
with socket.socket() as again:
    tell(attempt(again.bind, ("127.0.0.1", 40123)))
"""

TAKES_IT = """
import socket
with socket.socket() as plain:
    tell(attempt(plain.bind, ("127.0.0.1", 40123)))
"""


@pytest.mark.lock("sockets", beside=("namespaces",), because="it counts what is in a network namespace")
def test_c169_the_next_job_finds_no_port_in_use() -> None:
    """
    A connection that was closed is kept for a minute, and would tell the next job what the one before had. Its worker
    is replaced instead.
    """
    with Box(loopback=True) as whole, Box(locks={"namespaces"}, loopback=True) as alone, \
            Box(locks={"namespaces"}, lacks={"sockets"}, loopback=True) as loose:
        with control():
            assert "EADDRINUSE" == within(loose, LEAVES_A_PORT)
            assert "EADDRINUSE" == within(loose, TAKES_IT)
        for sandbox in (whole, alone):
            assert "EADDRINUSE" == within(sandbox, LEAVES_A_PORT)
            assert "" == within(sandbox, TAKES_IT)


# --- c170: by a terminal ------------------------------------------------------------

DRIVE = """
import pty
TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD, TIOCVHANGUP, TIOCSCTTY = 0x5412, 0x541C, 0x541D, 0x5423, 0x5437, 0x540E
import termios
assert (TIOCSTI, TIOCSETD) == (termios.TIOCSTI, termios.TIOCSETD)
pid, master = pty.fork()
if 0 == pid:
    key, normal = ctypes.c_char(b"x"), ctypes.c_int(0)
    said = {}
    for name, number, argument in (("TIOCSTI", TIOCSTI, ctypes.byref(key)), ("TIOCLINUX", TIOCLINUX, ctypes.byref(key)),
                                   ("TIOCCONS", TIOCCONS, 0), ("TIOCSETD", TIOCSETD, ctypes.byref(normal))):
        for above in (0, 1 << 32, 0xDEADBEEF << 32):
            said[f"{name} {above:#x}"] = call("ioctl", 0, number | above, argument)
    said["TCSETS"] = attempt(termios.tcsetattr, 0, termios.TCSANOW, termios.tcgetattr(0))
    said["/dev/tty"] = attempt(lambda: os.close(os.open("/dev/tty", os.O_RDWR)))
    tell(said)
    os._exit(0)
text = b""
while True:
    try:
        more = os.read(master, 4096)
    except OSError:
        break
    text += more
    if not more:
        break
os.waitpid(pid, 0)
text = text[text.index(b"{"):text.index(b"}") + 1]
print(text.decode())
"""


@pytest.mark.lock("seccomp", beside=("mounts",), because="its terminals are to be of its own devpts")
def test_c170_cannot_type_into_a_terminal(wide: Box, wide_with: With) -> None:
    """TIOCSTI and TIOCLINUX, with and without bits that the kernel ignores; nor change its line discipline."""
    with control():
        loose = within(wide_with("mounts"), DRIVE)
        assert "" == loose["TIOCSETD 0x0"] == loose["TIOCSETD 0x100000000"] == loose["TCSETS"]

    for sandbox in (wide, wide_with("mounts", "seccomp")):
        said = within(sandbox, DRIVE)
        assert "" == said.pop("TCSETS") == said.pop("/dev/tty")
        assert {"EACCES"} == set(said.values()), said


SEEN = """
mine = []
error = ""
try:
    while len(mine) < 64:
        mine.append(os.openpty())
except OSError as refusal:
    error = errno.errorcode[refusal.errno]
for ends in mine:
    os.close(ends[0]); os.close(ends[1])
tell({"host's": [attempt(os.stat, path) for path in paths], "mine": len(mine), "error": error,
      "left": [name for name in os.listdir("/dev/pts") if name.isdigit()] if mounted else []})
"""


@pytest.mark.lock("mounts")
def test_c171_sees_no_terminal_of_the_host_and_takes_few(wide: Box, wide_with: With) -> None:
    """Its devpts is its own, with 16 at most: all of a host's jobs draw on one number, which the kernel bounds."""
    master, slave = os.openpty()
    try:
        paths = [os.ttyname(slave)]
        with control():
            assert [""] == within(wide_with(), SEEN, paths=paths, mounted=False)["host's"]
            assert 64 == without(SEEN, paths=paths, mounted=False)["mine"]

        for sandbox in (wide, wide_with("mounts")):
            got = within(sandbox, SEEN, paths=paths, mounted=True)
            assert {"host's": ["ENOENT"], "mine": 16, "error": "ENOSPC", "left": []} == got
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.lock("mounts")
@pytest.mark.lock("seccomp")
def test_c170_c171_has_neither_terminal_nor_network_by_default(box: Box, only: With) -> None:
    """The profile as it comes: no terminal is there, and no socket of TCP or UDP can be made."""
    attack = """
import fcntl, socket
TIOCGPTN = 0x80045430
tell([attempt(os.openpty), attempt(lambda: fcntl.ioctl(os.open("/dev/pts/ptmx", os.O_RDWR), TIOCGPTN, bytes(4))),
      attempt(os.open, "/dev/tty", os.O_RDWR),
      attempt(lambda: socket.socket(socket.AF_INET).close()), attempt(lambda: socket.socket(socket.AF_INET6).close())])
"""
    with control():
        assert "" == without(attack)[0]
        assert ["", ""] == within(only(), attack)[3:]

    assert ["ENOENT", "EACCES", "ENXIO", "EACCES", "EACCES"] == within(box, attack)
    assert ["ENOENT", "ENOTTY", "ENXIO"] == within(only("mounts"), attack)[:3]  # ptmx is /dev/null
    assert ["EACCES", "EACCES"] == within(only("seccomp"), attack)[3:]
