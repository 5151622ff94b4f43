"""Ctrl-C: KeyboardInterrupt in the job, and its end when it comes again. On a person's terminal, over both transports."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit import live_daemon, reactors
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from kit.operator_terminal import OperatorTerminal
from kit.waiting import poll_until
from leeward import Cancelled, Client, SessionOver
from leeward.spec.outcome import Outcome
from leeward.wire.frames import FrameReader, decode, encode

DAEMON, REACTORS = ("--pool-size", "2"), reactors.WAYS

pytestmark = pytest.mark.needs("user-namespaces")

#: Tells the host that it runs: by a thread's name, which everybody sees.
BEGIN = "import ctypes, time\nprint('begun', flush=True)\nsay = ctypes.CDLL(None).prctl\nsay(15, b'%s')\n"
SLEEPS = BEGIN + "while True: time.sleep(60)"
COUNTS = BEGIN + "while True: pass"
HANDLES = BEGIN + "try: time.sleep(60)\nexcept KeyboardInterrupt: print('handled')"
DEAF = BEGIN + """
n = 0
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        n += 1
        print('no', flush=True)
        say(15, b'%s')
"""
#: Shows that a signal came: no handler runs before the call ends, but the interpreter writes the signal's number.
IN_C = BEGIN + "import os, signal\nos.set_blocking(1, False)\nsignal.set_wakeup_fd(1)\nsum(range(10**15))"


def named() -> str:
    return secrets.token_hex(6)


def until_named(name: str) -> None:
    """Wait until a job tells *name*."""
    def there() -> bool:
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    if (folder / "comm").read_text().strip() == name:
                        return True
                except OSError:
                    continue
        return False

    poll_until(there, "a thread's name")


Screen = Callable[[str], OperatorTerminal]


@pytest.fixture
def screen(daemon: LiveDaemon, program: list[str], monkeypatch: pytest.MonkeyPatch) -> Screen:
    """`leeward exec`, as the C program and as the Python one, on a terminal."""
    monkeypatch.setattr(live_daemon, "PROGRAM", program)
    return lambda code: OperatorTerminal(command("exec", code), environment(daemon.socket))


@pytest.fixture
def alone() -> Screen:
    """`leeward run`, which has no daemon."""
    return lambda code: OperatorTerminal(command("run", code), environment())


def interrupted(screen: Screen, *codes: str) -> None:
    for code in codes:
        name = named()
        with screen(code % name) as terminal:
            until_named(name)
            terminal.types("\x03")
            terminal.until("begun.*Traceback.*KeyboardInterrupt")

            assert 130 == terminal.end()


def handled(screen: Screen) -> None:
    name = named()
    with screen(HANDLES % name) as terminal:
        until_named(name)
        terminal.types("\x03")
        terminal.until("begun.*handled")

        assert 0 == terminal.end()


def ended(screen: Screen) -> None:
    name, again = named(), named()
    with screen(DEAF % (name, again)) as terminal:
        until_named(name)
        terminal.types("\x03")
        until_named(again)
        terminal.types("\x03")
        terminal.until("begun.*no.*the job was ended")

        assert 130 == terminal.end()


def test_ctrl_c_interrupts_the_job(screen: Screen) -> None:
    """Which tells it by a traceback, with what it printed before; the exit status is 130."""
    interrupted(screen, SLEEPS, COUNTS)


def test_a_job_that_handles_it_ends_as_it_likes(screen: Screen) -> None:
    handled(screen)


def test_the_second_one_ends_a_job_that_ignores_the_first(screen: Screen) -> None:
    """What it has written is shown."""
    ended(screen)


def test_without_a_daemon(alone: Screen) -> None:
    """All of that."""
    interrupted(alone, COUNTS)
    handled(alone)
    ended(alone)


def test_a_job_in_c_code_is_ended_by_the_second_one(screen: Screen) -> None:
    """Python's handler would run only behind that call."""
    name = named()
    with screen(IN_C % name) as terminal:
        until_named(name)
        terminal.until("begun")  # shown while the job runs
        terminal.types("\x03")
        terminal.until(r"\x02|\\x02")  # two at once may be one for whoever was busy
        terminal.types("\x03")
        terminal.until("the job was ended")

        assert 130 == terminal.end()


def test_a_client_interrupts_its_job_from_another_thread(daemon: LiveDaemon) -> None:
    """One on the fast path (code alone) and one that isn't; and the client goes on."""
    with Client(daemon.socket) as client, ThreadPoolExecutor(1) as pool:
        for options in ({}, {"args": ["x"]}):
            name = named()
            result = pool.submit(client.execute, SLEEPS % name, **options)
            until_named(name)
            client.interrupt()
            got = result.result(PATIENCE)
            assert (Outcome.RAISED, 130, b"begun\n") == (got.outcome, got.exit_code, got.stdout)
        client.interrupt()  # nothing runs

        assert b"42\n" == client.execute("print(42)").stdout


def test_an_interrupt_brings_the_files(daemon: LiveDaemon) -> None:
    with Client(daemon.socket) as client, ThreadPoolExecutor(1) as pool:
        name = named()
        result = pool.submit(client.execute, "open('a', 'w').write('x')\n" + SLEEPS % name, collect=["a"])
        until_named(name)
        client.interrupt()

        assert {"a": b"x"} == result.result(PATIENCE).files


class Peer:
    """The wire, one request after the other."""

    def __init__(self, client: Client) -> None:
        client.ping()
        sock = client._connection._socket
        assert sock is not None
        self._socket, self._reader, self._answers = sock, FrameReader(), dict[int, dict[str, Any]]()

    def send(self, **fields: object) -> None:
        self._socket.sendall(encode({"v": 1, **fields}))

    def answer(self, number: int) -> dict[str, Any]:
        while number not in self._answers:
            for payload in self._reader.feed(self._socket.recv(1 << 16)):
                message = decode(payload)
                self._answers[message["id"]] = message
        return self._answers.pop(number)


def test_a_late_cancel_has_no_effect(daemon: LiveDaemon) -> None:
    """Neither on a job that is over, nor on the next one, nor on a number that is no job's."""
    with Client(daemon.socket) as client:
        peer = Peer(client)
        peer.send(id=10, op="execute", code=b"print(1)")
        assert b"1\n" == peer.answer(10)["ok"]["stdout"]
        for number, how in enumerate(({}, {"interrupt": True}, {"kill": True}), 11):
            peer.send(id=number, op="cancel", target=10, **how)
            assert {"cancelled": False} == peer.answer(number)["ok"]
        peer.send(id=20, op="cancel", target=10, kill=True, interrupt=True)
        assert "bad_request" == peer.answer(20)["error"]["kind"]
        for number in range(100, 300, 2):  # at any moment of a short job
            peer.send(id=number, op="execute", code=b"x = 1")
            peer.send(id=number + 1, op="cancel", target=number, interrupt=True)
            assert {"cancelled"} == set(peer.answer(number + 1)["ok"])
            answer: Any = peer.answer(number)
            end = answer.get("ok", {"outcome": answer.get("error", {}).get("kind"), "exit_code": None})
            assert (end["outcome"], end["exit_code"]) in (
                ("finished", 0), ("raised", 130), ("cancelled", None)), answer  # the last one had no worker yet


def test_a_job_that_waits_is_taken_back(daemon: LiveDaemon) -> None:
    """It has nothing that could be interrupted."""
    names = [named(), named()]
    with ThreadPoolExecutor(2) as pool, Client(daemon.socket) as one, Client(daemon.socket) as two, \
            Client(daemon.socket, retry_busy=False) as third:
        results = [pool.submit(client.execute, SLEEPS % name) for client, name in zip((one, two), names, strict=True)]
        for name in names:
            until_named(name)
        peer = Peer(third)
        peer.send(id=10, op="execute", code=b"1")
        peer.send(id=11, op="cancel", target=10, interrupt=True)
        assert "cancelled" == peer.answer(10)["error"]["kind"]
        assert {"cancelled": True} == peer.answer(11)["ok"]
        for client in (one, two):
            client.interrupt()
        assert [130, 130] == [result.result(PATIENCE).exit_code for result in results]


def test_in_a_session(daemon: LiveDaemon) -> None:
    """An interrupt keeps the session, a kill ends it."""
    with Client(daemon.socket) as client:
        peer = Peer(client)
        peer.send(id=10, op="session_open")
        session = peer.answer(10)["ok"]["session"]
        for number, how, end in ((20, "interrupt", ("raised", 130)), (30, "kill", ("signalled", 137))):
            name = named()
            peer.send(id=number, op="execute", session=session, code=(SLEEPS % name).encode())
            until_named(name)
            peer.send(id=number + 1, op="cancel", target=number, **{how: True})
            got = peer.answer(number)["ok"]
            assert (*end, b"begun\n") == (got["outcome"], got["exit_code"], got["stdout"])
        peer.send(id=40, op="execute", session=session, code=b"1")
        assert SessionOver.kind == peer.answer(40)["error"]["kind"]


def test_an_interrupt_that_finds_the_call_taken_back(daemon: LiveDaemon) -> None:
    """A blocking client hears of it as Cancelled."""
    names = [named(), named()]
    with ThreadPoolExecutor(3) as pool, Client(daemon.socket) as one, Client(daemon.socket) as two, \
            Client(daemon.socket) as third:
        results = [pool.submit(client.execute, SLEEPS % name) for client, name in zip((one, two), names, strict=True)]
        for name in names:
            until_named(name)
        waits = pool.submit(third.execute, "1")
        poll_until(lambda: third._connection._awaited, "a request that is on its way")
        third.interrupt()
        with pytest.raises(Cancelled):
            waits.result(PATIENCE)
        for client in (one, two):
            client.interrupt()
        assert [130, 130] == [result.result(PATIENCE).exit_code for result in results]
