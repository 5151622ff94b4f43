"""
What only a rule of `ask` names waits for the operator's answer, through a real daemon: a connection, a request of HTTP,
a fetch; and is refused at once where nobody listens.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import leeward
from kit import egress
from kit.egress import Servers
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until

GET = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=20) as got:
            print(got.status, got.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().rstrip())
    except OSError as error:
        print(error)
"""

#: It has no HTTP: the server speaks first.
TALK = """
import socket, sys
try:
    with socket.create_connection(("echo.example.org", int(sys.argv[1])), 20) as sock:
        print(sock.recv(6))
except OSError as error:
    print(error)
"""

#: As many requests at once as may wait, and one more.
MANY = """
import sys, threading, urllib.error, urllib.request
def one(at):
    try:
        urllib.request.urlopen(f"{sys.argv[1]}/{at}", timeout=30)
    except urllib.error.HTTPError as error:
        sys.stdout.write(f"{error.code}\\n")  # in one piece: print would write the end of the line by itself
for at in range(17):
    threading.Thread(target=one, args=(at,)).start()
"""

CONFIG = """\
pool_size = 2
[egress.web]
allow = ["http://open.example.org:{port}"]
deny = ["never.example.org"]
ask = ["http://*:{port}", "*:{echo}"]
addresses = ["127.0.0.1/32"]
limits = {{ ask = "60s" }}
[egress.brief]
ask = ["http://*:{port}"]
addresses = ["127.0.0.1/32"]
limits = {{ ask = "300ms" }}
"""


@pytest.fixture(scope="module")
def daemon(host: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with egress.live(tmp_path_factory.mktemp("daemon"), CONFIG.format(port=host.http, echo=host.echo),
                     build={"kit.resolving": {"grace": 0.2}}) as daemon:
        yield daemon


@contextmanager
def listening(daemon: LiveDaemon) -> Iterator[leeward.Client]:
    """A client that answers. `egress_asks` of it waits for the first ask."""
    with daemon.client() as client:
        assert [] == client.egress_asks(wait=0.001)
        yield client


def test_an_asking_connection_goes_on_after_its_answer(daemon: LiveDaemon, host: Servers) -> None:
    """
    The same connection; a request by its method and path, any other connection by its port. No client can answer for
    targets that `allow` and `deny` name.
    """
    url = f"http://web.example.org:{host.http}/a?b=1"
    with listening(daemon) as operator, leeward.Sandbox(socket=daemon.socket, egress="web") as box, ThreadPoolExecutor(
            ) as threads:
        waits = threads.submit(box.run, ["python", "-c", GET, url, f"http://never.example.org:{host.http}/",
                                         f"http://open.example.org:{host.http}/"])
        [ask] = operator.egress_asks(wait=20)
        assert ("sandbox", box.id, 0, "web", os.geteuid()) == (ask.kind, ask.sandbox, ask.job, ask.policy, ask.user)
        assert ("web.example.org", "", host.http) == (ask.name, ask.address, ask.port)
        assert f"http://*:{host.http}" == ask.rule
        assert ("http", "GET", "/a?b=1", 60.0) == (ask.protocol, ask.method, ask.path, ask.seconds)
        assert operator.answer_egress_ask(ask.id, True)
        assert not operator.answer_egress_ask(ask.id, True)
        said = waits.result(60).stdout_text.splitlines()
        assert [f"200 GET web.example.org:{host.http} /a?b=1", f"200 GET open.example.org:{host.http} /"] == [
            said[0], said[2]], said
        assert "not known" in said[1]

        waits = threads.submit(box.run, ["python", "-c", TALK, str(host.echo)])
        [ask] = operator.egress_asks(ask.id, wait=20)
        assert ("echo.example.org", host.echo, "tcp", "", "") == (ask.name, ask.port, ask.protocol, ask.method,
                                                                  ask.path)
        assert operator.answer_egress_ask(ask.id, True)
        assert "b'hello\\n'\n" == waits.result(60).stdout_text


def test_a_refused_request_is_told_the_reason(daemon: LiveDaemon, host: Servers) -> None:
    """By 403 with the words of the client that refused, or those of the daemon; the record has them as well."""
    url = f"http://web.example.org:{host.http}/"
    with listening(daemon) as operator, daemon.client() as client, ThreadPoolExecutor() as threads:
        last = 0
        for message, said in (("Blocked by rule", "Blocked by rule"), ("", "Denied by leeward (request {})")):
            waits = threads.submit(client.execute, GET, args=[url], egress="web", timeout=30)
            [ask] = operator.egress_asks(last, wait=20)
            last = ask.id
            assert ("job", True) == (ask.kind, ask.job > 0)
            assert operator.answer_egress_ask(ask.id, False, message)
            assert f"403 {said.format(ask.id)}\n" == waits.result(60).stdout_text
        record = daemon.run("egress", "log", str(ask.job)).stdout.decode()
        assert f"Denied by leeward (request {ask.id})" in record, record


def test_a_fetch_waits_as_well(daemon: LiveDaemon, host: Servers) -> None:
    url = f"http://web.example.org:{host.http}/fetched"

    async def answered(box_id: str) -> bool:
        async with leeward.AsyncClient(daemon.socket) as operator:
            [ask] = await operator.egress_asks(wait=20)
            assert (box_id, "GET", "/fetched") == (ask.sandbox, ask.method, ask.path)
            return await operator.answer_egress_ask(ask.id, True)

    with listening(daemon) as operator, leeward.Sandbox(socket=daemon.socket, egress="web") as box, ThreadPoolExecutor(
            ) as threads:
        waits = threads.submit(box.fetch, url)
        assert asyncio.run(answered(box.id))
        assert f"GET web.example.org:{host.http} /fetched" == waits.result(60).text
        waits = threads.submit(box.fetch, url)
        [ask] = operator.egress_asks(wait=20)
        operator.answer_egress_ask(ask.id, False, "Blocked by policy")
        with pytest.raises(leeward.FetchFailed, match=r"^domain not in allowlist: .*: Blocked by policy$"):
            waits.result(60)


def test_no_request_waits_without_a_listening_client(daemon: LiveDaemon, host: Servers) -> None:
    """Not the name either; and waiting requests are refused when the last listening client has gone."""
    url = f"http://web.example.org:{host.http}/"
    with daemon.client() as client, ThreadPoolExecutor() as threads:
        poll_until(lambda: "not known" in client.execute(GET, args=[url], egress="web").stdout_text,
                   "the end of the time in which those who listened before may come back")
        with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
            with pytest.raises(leeward.FetchFailed, match=r"waits for approval, and nobody is there to answer$"):
                box.fetch(url)
            with listening(daemon) as operator:
                waits = threads.submit(box.run, ["python", "-c", GET, url])
                assert operator.egress_asks(wait=20)
            assert "403 nobody is there to answer any more\n" == waits.result(60).stdout_text
            assert [] == client.egress_asks()


def test_an_ask_ends_with_its_time_and_with_its_sandbox(daemon: LiveDaemon, host: Servers) -> None:
    """The policy's limit; and the end of the sandbox withdraws its asks."""
    url = f"http://web.example.org:{host.http}/"
    with listening(daemon) as operator, daemon.client() as client:
        got = client.execute(GET, args=[url], egress="brief", timeout=30).stdout_text
        assert "403 nobody has answered within 0.3 s\n" == got
        assert [] == operator.egress_asks()
        with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
            box.start(["python", "-c", GET, url])
            [ask] = operator.egress_asks(wait=20)
        poll_until(lambda: not operator.egress_asks(), "the end of an ask")
        assert not operator.answer_egress_ask(ask.id, True)


def test_a_sandbox_has_sixteen_asks_at_most(daemon: LiveDaemon, host: Servers) -> None:
    """The next one is refused at once."""
    with listening(daemon) as operator, leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        process = box.start(["python", "-c", MANY, f"http://web.example.org:{host.http}"])
        seen: dict[int, leeward.EgressAsk] = {}
        while len(seen) < 16:
            seen |= {each.id: each for each in operator.egress_asks(max(seen, default=0), wait=20)}
        assert 16 == len({each.path for each in seen.values()})
        assert b"429" in next(iter(process)).data
        for each in seen:
            assert operator.answer_egress_ask(each, False)
        assert ["403"] * 16 == process.result().stdout_text.split()
