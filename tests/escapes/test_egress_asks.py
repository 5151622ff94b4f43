"""
Answers in a job's favour: one that a server gives, by leading a fetch elsewhere, and one that a job gives itself.
Catalogue cases 294 and 297.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import leeward
from kit import egress
from kit.attack import PRELUDE
from kit.box import control, run_outside
from kit.egress import Servers
from kit.live_daemon import LiveDaemon

CONFIG = """\
pool_size = 1
[egress.web]
allow = ["http://*.example.org:{port}"]
addresses = ["127.0.0.1/32"]
[egress.wide]
allow = ["http://*.example.org:{port}", "http://127.0.0.1:{port}"]
addresses = ["127.0.0.1/32"]
[egress.asks]
ask = ["http://*.example.org:{port}"]
addresses = ["127.0.0.1/32"]
"""


@pytest.fixture(scope="module")
def daemon(host: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with egress.live(tmp_path_factory.mktemp("daemon"), CONFIG.format(port=host.http)) as daemon:
        yield daemon


@pytest.mark.no_single_lock("the broker decides each redirect anew, a process of the daemon's")
def test_c294_cannot_redirect_a_fetch_to_this_hosts_network(daemon: LiveDaemon, host: Servers) -> None:
    """To addresses written out, in their number forms, and to names that lead there."""
    away = f"http://web.example.org:{host.http}/away/"
    goals = {f"http://127.0.0.1:{host.http}/": "domain not in allowlist",
             f"http://2130706433:{host.http}/": "domain not in allowlist",
             f"http://[::ffff:127.0.0.1]:{host.http}/": "domain not in allowlist",
             f"http://private.example.org:{host.http}/": "redirect to private IP",
             f"http://metadata.example.org:{host.http}/": "redirect to private IP",
             f"//127.0.0.1:{host.http}/": "domain not in allowlist", "file:///etc/passwd": "scheme not allowed"}
    with control(), leeward.Sandbox(socket=daemon.socket, egress="wide") as wide:
        assert f"GET 127.0.0.1:{host.http} /" == wide.fetch(f"{away}http://127.0.0.1:{host.http}/").text

    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        for goal, said in goals.items():
            with pytest.raises(leeward.FetchFailed, match=rf"^{said}"):
                box.fetch(away + goal)


#: Frames are a length of four bytes and a map in MessagePack: this one is {"v": 1, "id": 1, "op": "ping"}, so that the
#: attack needs nothing but a socket.
ANSWER = """
import socket
def ask(family, address):
    with socket.socket(family) as sock:
        sock.settimeout(5)
        sock.connect(address)
        sock.sendall(frame)
        return len(sock.recv(100)) > 4
said = []
for family, address in places:
    try:
        said.append(ask(family, address))
    except OSError as error:
        said.append(errno.errorcode.get(error.errno, "?"))
tell(said)
"""


@pytest.mark.smoke
@pytest.mark.no_single_lock("no view has the daemon's socket, and abstract names are the sandbox's own")
def test_c297_cannot_answer_its_own_ask(daemon: LiveDaemon, host: Servers) -> None:
    """
    While a thread of a job waits for an answer, others look for the daemon: by its socket's path, below /proc, by an
    abstract name. It's the operator's answer that counts.
    """
    from leeward.wire.frames import VERSION, encode

    frame = bytes(encode({"v": VERSION, "id": 1, "op": "egress_answer", "ask": 1, "allow": True}))
    path = str(daemon.socket)
    places = [(1, path), (1, f"/proc/1/root{path}"), (1, "\0" + path)]
    given = f"frame, places = {frame!r}, {places!r}\n"
    with control():
        assert "true" in run_outside(PRELUDE + given + ANSWER).splitlines()[-1]

    waits = f"""
import threading, urllib.error, urllib.request
def fetch():
    try:
        urllib.request.urlopen("http://web.example.org:{host.http}/", timeout=60)
        print("reached", flush=True)
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip(), flush=True)
thread = threading.Thread(target=fetch)
thread.start()
"""
    with daemon.client() as operator, daemon.client() as client, ThreadPoolExecutor() as threads:
        assert [] == operator.egress_asks(wait=0.001)
        done = threads.submit(client.execute, f"{PRELUDE}{given}{waits}{ANSWER}\nthread.join()", egress="asks",
                              timeout=60)
        [ask] = operator.egress_asks(wait=30)
        assert operator.answer_egress_ask(ask.id, False, "Blocked by rule")
        said = sorted(done.result(60).stdout_text.splitlines())
    assert "403 Blocked by rule" == said[0]
    assert "true" not in said[1]
