"""Sessions with the real thing: state, interrupts, resets, limits, and every process that may die meanwhile."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import reactors
from kit.box import Box
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.sessions import Wire
from leeward.base.dataclass import replace
from leeward.client.session import Session
from leeward.daemon.config import Config
from leeward.daemon.loop import fast_path
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.pool.quotas import Quota, Quotas
from leeward.daemon.pool.sessions import SessionState
from leeward.daemon.run import output
from leeward.daemon.run.runner import job_of
from leeward.errors import Cancelled, DaemonAway, SessionOver, ShuttingDown
from leeward.spec.outcome import Outcome
from leeward.wire.frames import FrameReader, decode, encode

WORKERS = 3


@pytest.fixture(scope="module", params=[reactors.REFERENCE, "native"])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """All in Python; and with the shim's loop, where plain jobs go by the fast path."""
    made_by = NativeReactor("auto", fast_path=True) if "native" == request.param else reactors.reactor(request.param)
    with Box(pool_size=WORKERS, spares=1, max_sessions=2, session_grace=0.1, reactor=made_by) as made:
        yield made


@pytest.fixture
def wire(box: Box) -> Iterator[Wire]:
    with Wire(box) as made:
        yield made
    assert 0 == box.engine.main.pool.sessions
    assert {0} == {account.jobs for account in box.engine.main.pool.ledger._accounts.values()} | {0}

DAEMON = ("--pool-size", "4")


# --- what stays, and what is each job's -----------------------------------------


def test_the_next_job_of_a_session_finds_the_state_of_the_one_before(wire: Wire):
    """Variables, imports, threads, files, folder, environment, arguments."""
    peer = wire.peer()
    number = peer.open()
    peer.run(number, "import math, os, threading\nx = [1]\nopen('f', 'w').write('kept')\nos.mkdir('d'); os.chdir('d')\n"
                     "go = threading.Event(); done = threading.Event()\n"
                     "def work():\n    go.wait(); x.append(2); done.set()\n"
                     "threading.Thread(target=work).start()\ndef f(): return math.tau > x[0]",
             env={"KEY": "value"}, args=["a", "b"], files={"given/file": b"1"})
    got = peer.run(number, "import sys; go.set(); done.wait(); print(x, f(), open('../f').read(), os.getcwd(), "
                           "os.environ['KEY'], sys.argv, open('/workspace/given/file').read(), __name__)",
                   collect=["f"])

    assert b"[1, 2] True kept /workspace/d value ['-c', 'a', 'b'] 1 __main__\n" == got["stdout"], got
    assert {"f": b"kept"} == got["files"]


def test_results_are_each_jobs_own(wire: Wire):
    """Output, errors, exit codes, denied calls, times."""
    peer = wire.peer()
    number = peer.open()
    busy = peer.run(number, "import ctypes, time\nfor _ in range(3): ctypes.CDLL(None).unshare(0x10000000)\n"
                            "end = time.process_time() + 0.1\nwhile time.process_time() < end: pass\nprint('first')")
    raised = peer.run(number, "def f(): 1 / 0\nf()")
    left = peer.run(number, "import sys; sys.exit('leaves')")
    plain = peer.run(number, "pass")

    assert (b"first\n", {"unshare": 3}, "finished") == (busy["stdout"], busy["denied"], busy["outcome"])
    assert ("raised", 1, "ZeroDivisionError") == (raised["outcome"], raised["exit_code"], raised["error"]["type"])
    assert b'File "<job 2>", line 1, in f\n    def f(): 1 / 0' in raised["stderr"]
    assert (b"", b"leaves\n", 1) == (left["stdout"], left["stderr"], left["exit_code"])
    assert (b"", b"", 0, {}, None) == tuple(
        plain[name] for name in ("stdout", "stderr", "exit_code", "denied", "error"))
    assert plain["cpu_time"] < 0.1 < busy["cpu_time"] + 0.05
    assert peer.run(number, "f.__name__")["exit_code"] == 0


def test_large_output_and_many_jobs(wire: Wire):
    """A memory file now and then, and no trace of it in the next job."""
    peer = wire.peer()
    number = peer.open()
    for count in range(30):
        got = peer.run(number, f"print('x' * {300_000 if count % 10 == 5 else 3})")
        assert got["stdout"] == (b"xxx\n" if count % 10 != 5 else [0, 0, 300_001])


@pytest.mark.parametrize("held_back", [0.0, 3600.0], ids=["told when it began", "told when it was over"])
def test_the_books_of_many_short_jobs(wire: Wire, monkeypatch: pytest.MonkeyPatch, held_back: float):
    """However the daemon hears of them: each is counted once, and what they used is no later job's."""
    monkeypatch.setattr(fast_path, "_HELD_S", held_back)
    pool = wire.box.engine.main.pool
    before = pool.done
    ended: list[tuple[int, Outcome]] = []
    monkeypatch.setattr(wire.box.engine, "job_ended", lambda ticket, report: ended.append(
        (ticket.runner, report.result.outcome)))
    peer = wire.peer()
    number = peer.open()
    short = [peer.run(number, "x = sum(range(40_000))") for _ in range(100)]
    raised = peer.run(number, "1 / 0")
    other = peer.run(number, "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass",
                     limits={"time": 5.0})

    assert {("finished", 0)} == {(job["outcome"], job["exit_code"]) for job in [*short, other]}
    assert "raised" == raised["outcome"]
    assert raised["cpu_time"] < sum(job["cpu_time"] for job in short) / 2
    assert other["cpu_time"] > 0.17  # without controllers it is counted in ticks of 10 ms
    assert 102 == pool.done - before
    assert [Outcome.FINISHED] * 100 + [Outcome.RAISED, Outcome.FINISHED] == [outcome for _, outcome in ended]
    assert 1 == len({runner for runner, _ in ended})
    assert not pool.running


def test_a_drain_while_a_session_has_a_job(monkeypatch: pytest.MonkeyPatch):
    """It is answered; the next one is not taken, not even by the fast path, on which the job stays here."""
    monkeypatch.setattr(output, "_FLOOD_LOOK_S", 3600.0)
    drained: list[int] = []
    with Box(pool_size=2, spares=0, max_sessions=1, reactor=NativeReactor("auto", fast_path=True)) as box, \
            Wire(box) as wire:
        peer = wire.peer()
        number = peer.open()
        running = peer.send("execute", session=number, code=b"import time; time.sleep(0.3); print('over')")
        wire.until(lambda: bool(box.engine.main.pool.running))
        box.engine.main.pool.drain(60.0, lambda: drained.append(1))
        answer = peer.wait(running)
        wire.until(lambda: bool(drained))
        late = peer.run(number, "print('late')")

    assert b"over\n" == answer["ok"]["stdout"]
    assert ("shutting_down", [1]) == (late["kind"], drained)


# --- the end of the process -------------------------------------------------------


ENDS: dict[str, tuple[str, dict[str, Any], str, int, str]] = {
    "time": ("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
             {"limits": {"time": 0.1}}, "timed_out", 124, "time limit"),
    "output": ("print('x' * 3_000_000)", {"limits": {"output": 1 << 20, "overflow": "end"}},
               "output_limit", 153, "output limit"),
    "memory": ("kept = bytearray(1 << 30)\nkept[::4096] = b'x' * len(kept[::4096])", {}, "", 0, ""),
    "exit": ("import os; os._exit(4)", {}, "finished", 4, "exited"),
    "signal": ("import os; os.kill(os.getpid(), 11)", {}, "signalled", 139, "signal"),
    "reply": ("import os; os.write(4, b'\\xff' * 8)", {}, "internal", 125, "lost"),
    "pipe": ("import os; os.close(4)", {}, "finished", 70, "exited"),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_the_process_is_the_end_of_the_state(wire: Wire, name: str):
    """The job is answered as any other; later ones are refused, with the reason, until a reset."""
    code, fields, outcome, exit_code, why = ENDS[name]
    peer = wire.peer()
    number = peer.open(limits={"memory": 64 << 20})
    peer.run(number, "x = 1")
    got = peer.run(number, code, **fields)
    if "memory" == name:
        assert got["outcome"] in ("out_of_memory", "raised")
        if "raised" == got["outcome"]:  # by a driver whose limit is the address space: the process lives
            assert "memory" == got["limit"]
            return
    else:
        assert (outcome, exit_code) == (got["outcome"], got["exit_code"])
    for _ in range(2):
        refused = peer.run(number, "print(x)")
        assert "session_over" == refused["kind"]
        assert why in refused["message"]
    assert 0 == wire.box.engine.main.pool.workforce.states()["busy"]  # a session without a process holds no worker

    assert {} == peer.ask("session_reset", session=number)
    assert "NameError" == peer.run(number, "print(x)")["error"]["type"]


@pytest.mark.parametrize("target", ["job", "init", "keeper"])
@pytest.mark.parametrize("when", ["idle", "running"])
def test_a_death_ends_one_session(wire: Wire, target: str, when: str):
    """SIGKILL to one of its processes: this session is lost, the one beside it lives."""
    peer, other = wire.peer(), wire.peer()
    number = peer.open()
    worker = next(worker for worker in wire.box.engine.main.pool.workforce.workers if worker.busy)
    beside = other.open()
    other.run(beside, "x = 'lives'")
    runner = worker.leasing.running
    assert runner is not None
    running = peer.send("execute", session=number, code=b"import time; time.sleep(60)") if "running" == when else 0
    wire.until(lambda: not running or worker.leasing.execution.turn is not None)  # type: ignore[union-attr]  # it is a lease
    os.kill({"job": job_of(runner.pid), "init": runner.pid, "keeper": worker.keeper.pid}[target], signal.SIGKILL)
    if running:
        got = peer.wait(running)["ok"]
        assert got["outcome"] in ("signalled", "internal")
    wire.until(lambda: not worker.busy)

    assert "session_over" == peer.run(number, "pass")["kind"]
    assert b"lives\n" == other.run(beside, "print(x)")["stdout"]
    assert {} == peer.ask("session_reset", session=number)
    assert b"1\n" == peer.run(number, "print(1)")["stdout"]


def test_sessions_outlive_the_zygote(wire: Wire):
    peer = wire.peer()
    number = peer.open()
    peer.run(number, "x = 'lives'")
    zygote = wire.box.engine.main.zygotes.current
    assert zygote is not None
    os.kill(zygote.pid, signal.SIGKILL)
    wire.until(lambda: wire.box.engine.main.zygotes.current not in (None, zygote))

    assert b"lives\n" == peer.run(number, "print(x)")["stdout"]


# --- interrupts ------------------------------------------------------------------


def test_an_interrupt_hits_the_job_that_runs(wire: Wire):
    """At every moment of its life: sent with it, while it sleeps, while it computes; and none comes late."""
    peer = wire.peer()
    number = peer.open()
    assert {"interrupted": False} == peer.ask("interrupt", session=number)
    for code in ("import time; time.sleep(60)", "while True: pass", "import threading; threading.Event().wait()"):
        for wait in (0, 1, 4):
            job = peer.send("execute", session=number, code=code.encode())
            for _ in range(wait):
                wire.box.reactor.turn(0.005)
            assert {"interrupted": True} == peer.ask("interrupt", session=number)
            got = peer.wait(job)["ok"]
            assert ("raised", 130, "KeyboardInterrupt") == (got["outcome"], got["exit_code"], got["error"]["type"])
            assert b"inside" not in got["stderr"]
            assert b"1\n" == peer.run(number, "print(1)")["stdout"]


def test_many_interrupts_never_hit_a_later_job(wire: Wire):
    """Jobs that last as long as an interrupt takes: it hits, or comes too late and is forgotten."""
    peer = wire.peer()
    number = peer.open()
    hit = 0
    for count in range(60):
        job = peer.send("execute", session=number, code=f"for n in range({count * count * 200}): pass".encode())
        interrupts = [peer.send("interrupt", session=number) for _ in range(3)]
        got = peer.wait(job)["ok"]
        hit += "raised" == got["outcome"]
        for interrupt in interrupts:
            peer.wait(interrupt)
        quiet = peer.run(number, "n = 0\nfor _ in range(2000): n += 1\nprint(n)")
        assert (b"2000\n", b"") == (quiet["stdout"], quiet["stderr"])
    assert hit


def test_a_job_may_handle_its_interrupt(wire: Wire):
    """Then it ends as it wants."""
    peer = wire.peer()
    number = peer.open()
    job = peer.send("execute", session=number, code=b"""\
import time
try:
    print('there', flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print('caught')
""")
    lease = next(worker.leasing.execution for worker in wire.box.engine.main.pool.workforce.workers if worker.busy)
    wire.until(lambda: lease.turn is not None and lease.turn.output.out.length > 0)  # type: ignore[union-attr]  # it is a lease
    peer.ask("interrupt", session=number)

    got = peer.wait(job)["ok"]
    assert (b"there\ncaught\n", "finished") == (got["stdout"], got["outcome"])


def test_signal_handlers_of_a_job_between_jobs(wire: Wire):
    """One that raises when no job runs is told with the next job, and ends nothing."""
    peer = wire.peer()
    number = peer.open()
    peer.run(number, "import signal\ndef ring(*_): raise RuntimeError('rang')\n"
                     "signal.signal(signal.SIGALRM, ring); signal.setitimer(signal.ITIMER_REAL, 0.02)")
    runner = next(worker.leasing.running for worker in wire.box.engine.main.pool.workforce.workers if worker.busy)
    assert runner is not None
    rang = select.poll()
    rang.register(runner.err, select.POLLIN)
    assert rang.poll(PATIENCE * 1000)
    got = peer.run(number, "print('goes on')")

    assert (b"goes on\n", "finished") == (got["stdout"], got["outcome"])
    assert b"rang" in got["stderr"]


# --- bounds -----------------------------------------------------------------------


def test_bounds_and_refusals(wire: Wire):
    """So many in all and no more; limits that are the session's; what was closed makes room."""
    peer, other = wire.peer(), wire.peer()
    first, _ = peer.open(), other.open()
    assert "busy" == peer.ask("session_open")["kind"]
    assert b"1\n" == peer.ask("execute", code=b"print(1)")["stdout"]  # a worker is left for others
    assert "bad_request" == peer.run(first, "1", limits={"memory": 64 << 20})["kind"]
    assert "bad_request" == peer.run(first, "1", limits={"time": 1e9})["kind"]
    assert "bad_request" == peer.ask("session_open", limits={"memory": 1 << 50})["kind"]
    assert "bad_request" == peer.ask("session_open", idle=601.0)["kind"]
    peer.ask("session_close", session=first)
    assert peer.open() > first


def test_a_guest_leaves_sessions_to_others(wire: Wire):
    """A quarter of them at most, on all his connections together; one is always his."""
    guest = wire.peer(user=4711)
    number = guest.open()
    assert "all that a guest may have" in wire.peer(user=4711).ask("session_open")["message"]
    assert wire.peer().open()
    guest.ask("session_close", session=number)
    assert {"session": 1} == wire.peer(user=4711).ask("session_open")


def test_a_connection_has_so_many_and_no_more(wire: Wire):
    wire.server.config = replace(wire.server.config, connection_sessions=1)
    peer = wire.peer()
    number = peer.open()
    assert "of this connection" in peer.ask("session_open")["message"]
    peer.ask("session_close", session=number)
    assert {"session": number + 1} == peer.ask("session_open")


def test_quotas_hold_for_sessions(wire: Wire):
    """One is one running job of its user, as long as it has a worker."""
    pool = wire.box.engine.main.pool
    pool.govern(Quotas(Quota(jobs=1)), 8, 2)
    wire.server.govern(Quotas(Quota(jobs=1)))
    try:
        peer = wire.peer(user=4711)
        number = peer.open()
        waiting = peer.send("execute", code=b"print(1)")
        assert b"2\n" == peer.run(number, "print(2)")["stdout"]
        assert not peer.has(waiting)
        peer.ask("session_close", session=number)
        assert b"1\n" == peer.wait(waiting)["ok"]["stdout"]
    finally:
        pool.govern(Quotas(), 64, 2)


def test_idle_and_lifetime(box: Box):
    """What nobody uses gives its worker back; what is old ends."""
    with Wire(box, session_idle=0.2, session_lifetime=1.5) as wire:
        peer = wire.peer()
        number = peer.open()
        session = next(iter(box.engine.main.pool._sessions))
        wire.until(lambda: SessionState.LOST is session.state)
        assert "no job for 0.2 s" in peer.run(number, "pass")["message"]
        wire.until(lambda: SessionState.CLOSED is session.state)
        assert "session_over" == peer.ask("session_reset", session=number)["kind"]
        assert 0 == box.engine.main.pool.sessions


def test_a_cancelled_job_takes_the_state_along(wire: Wire):
    peer = wire.peer()
    number = peer.open()
    job = peer.send("execute", session=number, code=b"import time; time.sleep(60)")
    wire.box.reactor.turn(0.02)
    assert {"cancelled": True} == peer.ask("cancel", target=job)
    assert "cancelled" == peer.wait(job)["error"]["kind"]
    assert "taken back" in peer.run(number, "pass")["message"]


def test_a_reset_answers_the_running_job_first(wire: Wire):
    peer = wire.peer()
    number = peer.open()
    job = peer.send("execute", session=number, code=b"import time; time.sleep(60)")
    reset = peer.send("session_reset", session=number)
    early = peer.send("execute", session=number, code=b"pass")
    assert {} == peer.wait(reset)["ok"]
    assert "cancelled" == peer.wait(job)["error"]["kind"]
    assert peer.wait(early).get("error", {}).get("kind") in (None, "busy")
    assert peer.order.index(job) < peer.order.index(reset)


# --- the clients -------------------------------------------------------------------


def test_closing_answers_a_reset_that_waits(wire: Wire):
    """For a worker; nobody else would ever answer it."""
    peer = wire.peer()
    number = peer.open()
    others = [peer.send("execute", code=b"import time; time.sleep(60)") for _ in range(WORKERS)]
    reset = peer.send("session_reset", session=number)
    closed = peer.ask("session_close", session=number)
    answer = peer.wait(reset)
    for other in others:
        peer.ask("cancel", target=other)

    assert ({}, "cancelled") == (closed, answer["error"]["kind"])


def test_closing_answers_an_open_that_waits(daemon: LiveDaemon):
    """More often than a connection may have requests in flight: none of them stays there."""
    daemon.idle()
    code = b"import time; time.sleep(60)"
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(PATIENCE)
        peer.connect(str(daemon.socket))
        reader = FrameReader()
        answers: dict[int, Any] = {}

        def hear(number: int) -> Any:
            while number not in answers:
                data = peer.recv(1 << 16)
                assert data, answers
                answers.update((reply["id"], reply) for reply in map(decode, reader.feed(data)))
            return answers.pop(number)

        peer.sendall(b"".join(encode({"v": 1, "id": number, "op": "execute", "code": code}) for number in range(1, 5)))
        for session in range(1, Config().connection_requests + 20):
            number = 10 * session
            peer.sendall(encode({"v": 1, "id": number, "op": "session_open"})
                         + encode({"v": 1, "id": number + 1, "op": "session_close", "session": session}))
            assert "cancelled" == hear(number)["error"]["kind"]
            assert {} == hear(number + 1)["ok"]
        assert {} == answers  # of the jobs that keep the workers busy


def test_a_withdrawn_reset_has_no_answer(wire: Wire):
    """Its number may be another request's by the time that the session is closed."""
    peer = wire.peer()
    number = peer.open()
    others = [peer.send("execute", code=b"import time; time.sleep(60)") for _ in range(WORKERS)]
    reset = peer.send("session_reset", session=number)
    taken = peer.ask("cancel", target=reset)
    refused = peer.wait(reset)
    peer._last = reset - 1
    again = peer.send("execute", code=b"print('waits, and runs')")
    peer._last += 10
    closed = peer.ask("session_close", session=number)
    for other in others:
        peer.ask("cancel", target=other)
    answer = peer.wait(again)

    assert ({"cancelled": True}, "cancelled", {}) == (taken, refused["error"]["kind"], closed)
    assert again == reset
    assert b"waits, and runs\n" == answer["ok"]["stdout"], answer


def test_the_blocking_client(daemon: LiveDaemon):
    """Interrupted from another thread; reset; refused by errors of their own; beside other calls of the client."""
    with daemon.client() as client, client.session(memory="64M", timeout=20, idle=30) as session:
        session.execute("x = 6")
        job = threading.Thread(target=lambda: results.append(session.execute("print('there', flush=True)\n"
                                                                            "while True: pass")))
        results: list[leeward.Result] = []
        job.start()
        while job.is_alive():
            session.interrupt()
            job.join(0.05)
        assert 130 == results[0].exit_code
        assert b"42\n" == session.execute("print(x * 7)").stdout
        assert b"1\n" == client.execute("print(1)").stdout
        session.interrupt()
        session.reset()
        assert "NameError" == session.execute("x").error.type  # type: ignore[union-attr]  # it raised
        session.execute("import os; os._exit(0)")
        with pytest.raises(SessionOver, match="exited"):
            session.execute("1")
        with client.session() as another, client.session() as third:  # beside this one: more than half of the workers
            assert [b"1\n"] * 2 == [each.execute("print(1)").stdout for each in (another, third)]
    with pytest.raises(DaemonAway):
        session.execute("1")
    daemon.idle()


def test_closing_from_another_thread_ends_the_job(daemon: LiveDaemon):
    with daemon.client() as client:
        session: Session = client.session()
        failed: list[BaseException] = []

        def wait() -> None:
            try:
                session.execute("import time; time.sleep(60)")
            except Cancelled as error:
                failed.append(error)
        job = threading.Thread(target=wait)
        job.start()
        daemon.until(lambda status: 1 == status["workers"]["busy"] and session._lock.locked())
        session.close()
        job.join(PATIENCE)
        assert [Cancelled] == [type(error) for error in failed]
    daemon.idle()


def test_the_asyncio_client(daemon: LiveDaemon):
    """Two sessions over one connection, one at a time each."""
    async def main() -> None:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            async with client.session() as one, client.session(output="1M") as two:
                await asyncio.gather(one.execute("x = 1"), two.execute("x = 2"))
                got = await asyncio.gather(one.execute("print(x)"), two.execute("print(x)"), client.execute("print(3)"))
                assert [b"1\n", b"2\n", b"3\n"] == [result.stdout for result in got]
                slow = asyncio.create_task(one.execute("import time; time.sleep(60)"))
                while not await one.interrupt():
                    pass  # it was quicker than the request: each is an answer of the daemon's
                both = await asyncio.gather(two.execute("import time; time.sleep(0.2)\nprint(1)"),
                                            two.execute("print(2)"))
                assert [b"1\n", b"2\n"] == [result.stdout for result in both]  # one after the other
                assert 130 == (await slow).exit_code
                await one.reset()
                assert "NameError" == (await one.execute("x")).error.type  # type: ignore[union-attr]  # it raised
                taken = asyncio.create_task(two.execute("import time; time.sleep(60)"))
                await asyncio.sleep(0)
                taken.cancel()
                await asyncio.gather(taken, return_exceptions=True)
                with pytest.raises(SessionOver):
                    await two.execute("1")
            assert 0 == (await client.status())["sessions"]
    asyncio.run(main())
    daemon.idle()


def test_a_client_that_vanishes_and_a_daemon_that_stops(tmp_path: Path):
    with LiveDaemon(tmp_path, "--pool-size", "4") as daemon:
        client = daemon.client()
        gone = client.session()
        gone.execute("import os\nif not os.fork():\n    while True: __import__('time').sleep(60)")
        gone._connection.close()
        daemon.until(lambda status: 0 == status["sessions"])
        daemon.idle()
        with client, client.session() as session:
            session.execute("x = 1")
            assert 0 == daemon.end()
            with pytest.raises((DaemonAway, ShuttingDown, SessionOver)):
                session.execute("x")
