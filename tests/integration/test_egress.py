"""
Egress: what a sandbox reaches by a policy, with the programs that people use; and what it is told of the rest.

The servers are on this host's loopback, and the names of a resolver of the tests' own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import egress
from kit.box import TESTS, Box
from kit.egress import GET, Servers
from kit.egress_hosts import AUTHORITY
from kit.live import opened
from kit.live_daemon import PLACES

GET_TLS = """
    import ssl, sys, urllib.request
    context = ssl.create_default_context(cadata=open("ca.pem").read())
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=20, context=context).read().decode())
    except OSError as error:
        print(error)
"""

FIRST = """
    import socket, sys
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as sock:
            print(sock.recv(100))
            sock.sendall(b"again")
            print(sock.recv(100))
    except OSError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def box(host: Servers) -> Iterator[Box]:
    """Requests to web.example.org that are seen, TLS to it, and bytes to echo.example.org."""
    policy = {
        "allow": [f"http://*.example.org:{host.http}", f"https://web.example.org:{host.tls}",
                  f"echo.example.org:{host.echo}", f"GET http://api.test.example.org:{host.http}/v1/*"],
        "deny": ["denied.example.org"],
        "addresses": ["127.0.0.1/32"],
        "limits": {"connect": "5s"},
    }
    with egress.reaching(policy, spares=0) as made:
        yield made


def test_a_name_that_is_allowed_is_reached(box: Box, host: Servers) -> None:
    """By a program that knows nothing of a proxy; with a row when it begins, and one with the bytes when it is over."""
    got = box.run(GET, args=(f"http://web.example.org:{host.http}/some/path?x=1",))

    assert f"200 GET web.example.org:{host.http} /some/path?x=1\n" == got.stdout.decode(), got
    closed = egress.row_of(box, "closed", name="web.example.org")
    allowed = egress.row_of(box, "allowed", name="web.example.org", number=closed.number, lease=closed.lease)
    assert ("127.0.0.1", host.http) == (allowed.address, allowed.port)
    assert f"http://*.example.org:{host.http}" == allowed.rule
    assert closed.sent > 50
    assert closed.received > 50


def test_a_name_that_is_not_allowed_does_not_exist(box: Box, host: Servers) -> None:
    """At once, and with the reason in the record."""
    got = box.run(GET, args=(f"http://evil.example.net:{host.http}/",))

    assert "Name or service not known" in got.stdout.decode(), got
    row = egress.row_of(box, "denied", name="evil.example.net")
    assert "domain not in allowlist" in row.reason


@pytest.mark.parametrize(("name", "said"), [
    ("private.example.org", "private IP blocked"),
    ("metadata.example.org", "private IP blocked"),
    ("missing.example.org", "DNS resolution failed"),
])
def test_a_name_that_leads_elsewhere_is_answered_by_the_broker(box: Box, host: Servers, name: str, said: str) -> None:
    """HTTP that can't go on gets an answer with the reason."""
    got = box.run(GET, args=(f"http://{name}:{host.http}/",)).stdout.decode()

    assert said in got, got
    assert got[:3] in ("403", "502")


def test_of_several_addresses_one_that_is_allowed_is_dialled(box: Box, host: Servers) -> None:
    """The answer's first address is private."""
    got = box.run(GET, args=(f"http://mixed.example.org:{host.http}/",))

    assert f"200 GET mixed.example.org:{host.http} /\n" == got.stdout.decode(), got


def test_tls_passes_untouched(box: Box, host: Servers) -> None:
    """The certificate that the client sees is the server's own."""
    ca = {"ca.pem": AUTHORITY.encode()}
    got = box.run(GET_TLS, args=(f"https://web.example.org:{host.tls}/x",), files=ca)

    assert f"GET web.example.org:{host.tls} /x\n" == got.stdout.decode(), got


def test_bytes_pass_where_a_rule_names_the_port(box: Box, host: Servers) -> None:
    """A server that speaks first isn't waited for by reading the client."""
    got = box.run(FIRST, args=("echo.example.org", str(host.echo)))

    assert "b'hello\\n'\nb'again'\n" == got.stdout.decode(), got


def test_many_bytes_pass_as_they_are(box: Box, host: Servers) -> None:
    """In both directions at once, and counted: most of them go past the broker's memory."""
    got = box.run(f"""
        import os, socket, threading
        sent = os.urandom(4 << 20)
        with socket.create_connection(("echo.example.org", {host.echo})) as sock:
            assert b"hello\\n" == sock.recv(6, socket.MSG_WAITALL)
            def send():
                sock.sendall(sent)
                sock.shutdown(socket.SHUT_WR)
            threading.Thread(target=send).start()
            got = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        print(sent == got)
    """)
    assert b"True\n" == got.stdout, got
    row = egress.row_of(box, "closed", name="echo.example.org", sent=4 << 20)
    assert (4 << 20) + 6 == row.received


def test_an_address_or_port_that_no_rule_names_is_refused(box: Box, host: Servers) -> None:
    """By an error of its own, which is no timeout: the connection or the socket says so."""
    direct = box.run(FIRST, args=("93.184.216.34", str(host.echo)))
    assert "ConnectionResetError" in direct.stdout.decode(), direct
    assert egress.row_of(box, "denied", address="93.184.216.34").port == host.echo

    other = box.run(FIRST, args=("echo.example.org", "9"))
    assert ("PermissionError" in other.stdout.decode() or "ConnectionRefusedError" in other.stdout.decode()), other


def test_methods_and_paths_are_those_of_the_rule(box: Box, host: Servers) -> None:
    """A rule with a method and a path; the wildcard beside it has neither, so another name is used."""
    policy = {"allow": [f"GET http://api.example.org:{host.http}/v1/*"], "addresses": ["127.0.0.1/32"]}
    with egress.reaching(policy, spares=0) as narrow:
        url = f"http://api.example.org:{host.http}"
        assert "200 GET" in narrow.run(GET, args=(f"{url}/v1/x",)).stdout.decode()
        assert "403 leeward: path not allowed" in narrow.run(GET, args=(f"{url}/v2/x",)).stdout.decode()
        post = narrow.run("""
            import sys, urllib.request, urllib.error
            try:
                urllib.request.urlopen(sys.argv[1], data=b"x")
            except urllib.error.HTTPError as error:
                print(error.code, error.read().decode())
        """, args=(f"{url}/v1/x",))
        assert "403 leeward: method not allowed" in post.stdout.decode(), post


KEEPS = """
    import http.client, sys
    with_port = http.client.HTTPConnection("web.example.org", int(sys.argv[1]), timeout=20)
    for number in range(3):
        with_port.request("POST", f"/{number}", body=iter([b"piece ", b"and piece"]), encode_chunked=True,
                          headers={"Transfer-Encoding": "chunked"})
        print(with_port.getresponse().read())
    socket = with_port.sock
    with_port.request("GET", "/chunked")
    print(with_port.getresponse().read(), with_port.sock is socket)
"""


def test_requests_follow_each_other_on_one_connection(box: Box, host: Servers) -> None:
    """Chunked in both directions."""
    got = box.run(KEEPS, args=(str(host.http),))

    assert 3 * "b'piece and piece'\n" + "b'one two three' True\n" == got.stdout.decode(), got


PARTED = """
    import http.client, sys
    kept, other = (http.client.HTTPConnection("web.example.org", int(sys.argv[1]), timeout=20) for _ in range(2))
    for each, path in ((kept, "/parting"), (other, "/parted"), (kept, "/again")):
        each.request("GET", path)
        print(each.getresponse().read().decode())
"""


def test_a_connection_outlives_its_servers(box: Box, host: Servers) -> None:
    """A server that has closed a kept connection is dialled anew: the job's own was never closed."""
    got = box.run(PARTED, args=(str(host.http),))

    assert f"one more?\nTrue\nGET web.example.org:{host.http} /again\n" == got.stdout.decode(), got


SOCKET = """
    import socket, sys
    sock = socket.create_connection(("web.example.org", int(sys.argv[1])), 20)
    request = ["GET /ws HTTP/1.1", "Host: web.example.org:" + sys.argv[1], "Connection: Upgrade", "Upgrade: websocket",
               "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
    sock.sendall("\\r\\n".join(request).encode())
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += sock.recv(4096)
    print(head.split(b"\\r\\n")[0])
    for word in (b"one", b"two"):
        sock.sendall(word)
        print(sock.recv(100))
"""


def test_a_websocket_stays_open(box: Box, host: Servers) -> None:
    """After the server's agreement bytes pass as they are."""
    got = box.run(SOCKET, args=(str(host.http),))

    assert "b'HTTP/1.1 101 '\nb'ONE'\nb'TWO'\n" == got.stdout.decode().replace("Switching Protocols", ""), got


def test_programs_of_the_host_reach_it_in_a_live_sandbox(box: Box, host: Servers) -> None:
    """curl, by the address that the resolver gave; by the proxy, for those that want one; and by CONNECT."""
    with opened(box) as live:
        plain = live.run("curl", "-sS", f"http://web.example.org:{host.http}/plain")
        assert f"GET web.example.org:{host.http} /plain" == plain.out, plain
        proxied = live.run("curl", "-sS", "-x", "http://127.0.0.1:3128", f"http://web.example.org:{host.http}/proxied")
        assert f"GET web.example.org:{host.http} /proxied" == proxied.out, proxied
        tunnel = live.run("curl", "-sSp", "-x", "http://127.0.0.1:3128", f"http://web.example.org:{host.http}/tunnel")
        assert f"GET web.example.org:{host.http} /tunnel" == tunnel.out, tunnel
        denied = live.run("curl", "-sSp", "-x", "http://127.0.0.1:3128", f"http://denied.example.org:{host.http}/")
        assert "403" in denied.err, denied
        names = live.run("getent", "ahosts", "web.example.org")
        assert "198.18." in names.out or "198.19." in names.out, names


def test_a_broker_that_dies_is_replaced(box: Box, host: Servers) -> None:
    """The sandbox lives on, its names have the addresses that they had, and nothing has to be told again."""
    with opened(box) as live:
        before = live.run("getent", "ahostsv4", "web.example.org").out
        broker = box.engine.exits.broker
        assert broker is not None
        starts = broker.starts
        os.kill(broker.pid, signal.SIGKILL)
        box.reactor.run(lambda: broker.starts > starts)
        after = live.run("curl", "-sS", "--retry", "5", "--retry-all-errors", f"http://web.example.org:{host.http}/after")
        assert f"GET web.example.org:{host.http} /after" == after.out, after
        assert before == live.run("getent", "ahostsv4", "web.example.org").out


def test_limits_hold_and_are_reported(host: Servers) -> None:
    """Connections at once, requests in a minute, and the bytes of a response."""
    policy = {"allow": [f"http://web.example.org:{host.http}", f"echo.example.org:{host.echo}"],
              "addresses": ["127.0.0.1/32"], "limits": {"connections": 3, "per_minute": 8, "response": 2000}}
    with egress.reaching(policy, spares=0) as small:
        got = small.run("""
            import socket, sys
            held = [socket.create_connection(("echo.example.org", int(sys.argv[1]))) for _ in range(3)]
            print([sock.recv(10) for sock in held])
            try:
                print(socket.create_connection(("echo.example.org", int(sys.argv[1]))).recv(10))
            except ConnectionResetError:
                print("reset")
            held[0].sendall(b"x" * 5000)
            try:
                while held[0].recv(10000):
                    pass
            except ConnectionResetError:
                print("too much")
        """, args=(str(host.echo),))
        assert f"{[b'hello' + bytes([10])] * 3}\nreset\ntoo much\n" == got.stdout.decode(), got
        assert "3 connections are open" in egress.row_of(small, "denied").reason
        assert "response too large" in egress.row_of(small, "closed", reason="response too large: more than 2000 bytes"
                                                     ).reason
        often = small.run("""
            import http.client, sys
            said = []
            for _ in range(10):
                with_port = http.client.HTTPConnection("web.example.org", int(sys.argv[1]), timeout=20)
                try:
                    with_port.request("GET", "/")
                    said.append(with_port.getresponse().status)
                except OSError as error:
                    said.append(type(error).__name__)
            print(said)
        """, args=(str(host.http),))
        assert str([200] * 8 + ["ConnectionResetError"] * 2) == often.stdout.decode().strip(), often


def test_the_route_is_tried_by_a_process_of_its_own() -> None:
    """It works on each kernel that is tested. Where no netlink socket may be made it is refused."""
    code = "from kit import no_netlink\n{0}from leeward.daemon.pool.begin import is_routed\nprint(is_routed())"
    for filtered, said in (("", b"True"), ("no_netlink.prepare()\n", b"False")):
        done = subprocess.run([sys.executable, "-c", code.format(filtered)], stdin=subprocess.DEVNULL,
                              capture_output=True, check=False, timeout=120,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), PLACES))})
        assert said == done.stdout.strip(), done.stderr


def test_without_netlink_sockets_the_proxy_is_the_only_way_out(host: Servers, tmp_path: Path) -> None:
    """
    Of a daemon under a filter as units and containers have it: its programs are told of the proxy, which decides by
    the policy; no other address answers.
    """
    config = f"""\
pool_size = 1
[egress.web]
allow = ["web.example.org:{host.http}"]
addresses = ["127.0.0.1/32"]
"""
    code = """
import os, socket, sys, urllib.request
print(os.environ["http_proxy"])
for name in ("web", "other"):
    try:
        print(urllib.request.urlopen(f"http://{name}.example.org:{sys.argv[1]}/", timeout=60).status)
    except OSError as error:
        print(error)
for place in (("web.example.org", int(sys.argv[1])), ("1.2.3.4", 443)):
    try:
        socket.create_connection(place, 20)
    except OSError as error:
        print(type(error).__name__)
"""
    with egress.live(tmp_path, config, build={"kit.no_netlink": {}}) as daemon:
        with daemon.client() as client:
            got = client.execute(code, args=[str(host.http)], egress="web", timeout=120)
        daemon.logged(lambda rows: [row for row in rows if "this host refuses the route" in row["event"]])
    proxy, allowed, denied, *refused = got.stdout_text.splitlines()
    assert ("http://127.0.0.1:3128", "200") == (proxy, allowed), got
    assert "403" in denied
    assert 2 == len(refused), got
    assert {"OSError", "PermissionError", "ConnectionRefusedError"} >= set(refused)
