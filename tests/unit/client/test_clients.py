"""
Both clients against a real server whose pool the test plays, and against rogues.

What holds for one client holds for the other: most tests run over both.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import leeward
from kit.fake_daemon import PATIENCE, FakeDaemon, Rogue, echo, finished, request_of
from leeward._native.memfd import SEALS
from leeward.client import aio_calls, aio_connection, connecting, connection
from leeward.client import calls as client_calls
from leeward.client.options import ArrivalOptions, Options, execute_fields
from leeward.daemon.run.report import Report
from leeward.daemon.serving.parcel import seal
from leeward.errors import (
    BadReply,
    Busy,
    Cancelled,
    DaemonAway,
    DaemonError,
    Forbidden,
    NoAnswer,
    RequestRejected,
)
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome, Result
from leeward.wire.frames import FrameReader, encode

Call = Callable[..., Any]


def blocking(path: str, *calls: tuple[str, tuple[Any, ...], dict[str, Any]]) -> list[Any]:
    with leeward.Client(path) as client:
        return [getattr(client, name)(*args, **kwargs) for name, args, kwargs in calls]


def asynchronous(path: str, *calls: tuple[str, tuple[Any, ...], dict[str, Any]]) -> list[Any]:
    async def main() -> list[Any]:
        async with leeward.AsyncClient(path) as client:
            return [await getattr(client, name)(*args, **kwargs) for name, args, kwargs in calls]

    return asyncio.run(main())


@pytest.fixture(params=[blocking, asynchronous], ids=["Client", "AsyncClient"])
def calls(request: pytest.FixtureRequest) -> Call:
    """Makes calls over one connection: calls(path, (method, arguments, keywords), ...)."""
    made: Call = request.param
    return made


def execute(code: str | bytes | None = "", **options: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return "execute", (code,), options


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leeward.sock"


def test_execute_ping_status(calls: Call, path: Path) -> None:
    """One connection, three calls."""
    with FakeDaemon(path):
        result, pong, status = calls(str(path), execute("print(1)"), ("ping", (), {}), ("status", (), {}))

    assert b"print(1)" == result.stdout
    assert (Outcome.FINISHED, 0) == (result.outcome, result.exit_code)
    assert 0 < pong < PATIENCE
    assert {"workers": {"total": 4}, "uptime": 1.5} == status


def test_the_time_of_a_short_call_begins_with_its_turn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that shares the client may keep it busy for long before."""
    order = []

    class Turn(contextlib.AbstractContextManager[None]):
        def __enter__(self) -> None:
            order.append("turn")

        def __exit__(self, *_: object) -> None:
            pass

    def clock() -> float:
        order.append("clock")
        return time.monotonic()

    with FakeDaemon(path), leeward.Client(path) as client:
        client._lock = Turn()  # type: ignore[assignment]  # one that tells
        monkeypatch.setattr(client_calls, "time", SimpleNamespace(monotonic=clock))
        client.ping(PATIENCE)
        assert ["turn", "clock"] == order


def test_every_option_arrives(calls: Call, path: Path) -> None:
    """As the pool sees it."""
    with FakeDaemon(path) as daemon:
        calls(str(path), execute("é", args=["a", "b"], env={"K": "v"}, files={"d/f": b"\x00"}, stdin=b"in",
                                 collect=["*.png"], timeout=1.5, memory="64M", processes=3, output=1000, name="me.py"))
        calls(str(path), execute(None, module="json.tool"))
        job, module = daemon.jobs.get(), daemon.jobs.get()

    assert ("é".encode(), ("a", "b"), {"K": "v"}, {"d/f": b"\x00"}) == (job.code, job.args, job.env, job.files)
    assert (b"in", ("*.png",), "me.py") == (job.stdin, job.collect, job.name)
    assert (1.5, 64 << 20, 3, 1000) == (job.limits.time, job.limits.memory, job.limits.processes, job.limits.output)
    assert (None, "json.tool") == (module.code, module.module)


def test_an_unknown_option_is_an_error(calls: Call, path: Path) -> None:
    """Before anything is sent; and type checkers know of every option that there is."""
    with pytest.raises(TypeError, match="'tiemout'"):
        calls(str(path), execute("1", tiemout=3))

    # The packages of a job become the name of its environment; what is called as output arrives isn't sent.
    own = {"packages", *ArrivalOptions.__annotations__}
    assert {*Options.__annotations__, "code"} - own == set(inspect.signature(execute_fields).parameters)


def test_a_failing_job_is_a_result(calls: Call, path: Path) -> None:
    """Never an exception."""
    ended = Result(b"", b"", 124, Outcome.TIMED_OUT, limit=leeward.Limit.TIME)
    with FakeDaemon(path, lambda job: Report(result=ended)):
        [result] = calls(str(path), execute())

    assert ended == result


def large(job: Job) -> Report:
    arena = seal([b"o" * (5 << 20), b"e" * 70_000])
    arena.stdout, arena.stderr = (0, 5 << 20), (5 << 20, 70_000)
    return Report(result=Result(b"", b"", 0, Outcome.FINISHED), arena=arena)


def test_large_results_are_mapped(calls: Call, path: Path) -> None:
    """One after the other, without a descriptor left behind."""
    before = len(os.listdir("/proc/self/fd"))
    with FakeDaemon(path, large):
        results = calls(str(path), *[execute() for _ in range(20)])
        assert all(b"o" * (5 << 20) == result.stdout_view for result in results)
        assert all(b"e" * 70_000 == result.stderr for result in results)
        del results

    assert before == len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("options", [
    {"timeout": -1}, {"timeout": float("nan")}, {"memory": "4 apples"}, {"memory": 1}, {"files": {"../x": b""}},
    {"args": "one string"}, {"collect": "*.png"}, {"args": ["\udc80"]}, {"env": {"A=": "b"}}, {"module": "json"},
    {"name": "\x1b[31m"}, {"memory": 1 << 60}, {"files": {"a": 5}}, {"files": ["a"]},
    {"stdin": 5}, {"args": 5}, {"args": [b"x"]}, {"env": 5}, {"env": {"A": 1}}, {"timeout": "1"},
])
def test_an_impossible_request_is_rejected_and_the_connection_lives(calls: Call, path: Path,
                                                                    options: dict[str, Any]) -> None:
    """The same error, whether the client or the daemon finds out."""
    with FakeDaemon(path) as daemon:
        with pytest.raises(RequestRejected):
            calls(str(path), execute("x", **options))
        assert b"x" == calls(str(path), execute("x"))[0].stdout
        assert 1 == daemon.jobs.qsize()


@pytest.mark.parametrize(("afters", "options"), [
    ([0.01, 0.01, 0.01, 10 * PATIENCE], {"deadline": PATIENCE}),  # until it would be too late
    ([60.0], {"deadline": 0.3}),
    ([60.0], {}),
])
def test_a_busy_daemon_is_asked_again(calls: Call, path: Path, afters: list[float], options: dict[str, Any]) -> None:
    """Over the same connection, as long as there is time. Then its reason is the error, and nothing has run."""
    asked = []

    def busy(sock: socket.socket) -> None:
        while True:
            number = request_of(sock)["id"]
            after = afters[len(asked)]
            asked.append(number)
            sock.sendall(encode({"id": number, "error": {"kind": "busy", "message": "full", "retry_after": after}}))

    with Rogue(path, busy), pytest.raises(Busy, match="full") as refusal:
        calls(str(path), execute(**options))

    assert len(afters) == len(asked)
    assert sorted(set(asked)) == asked
    assert (afters[-1], False) == (refusal.value.retry_after, refusal.value.may_have_run)


@pytest.mark.parametrize("options", [{"retry_busy": False}, {"retry": False}])
def test_a_client_may_be_told_not_to_ask_again(path: Path, options: dict[str, bool]) -> None:
    """Then it gets the first refusal."""
    def busy(sock: socket.socket) -> None:
        number = request_of(sock)["id"]
        sock.sendall(encode({"id": number, "error": {"kind": "busy", "message": "full", "retry_after": 0.001}}))

    async def main() -> None:
        async with leeward.AsyncClient(str(path), **options) as client:
            await client.execute("1", deadline=PATIENCE)

    with Rogue(path, busy):
        with pytest.raises(Busy, match="full"), leeward.Client(str(path), **options) as client:
            client.execute("1", deadline=PATIENCE)
        with pytest.raises(Busy, match="full"):
            asyncio.run(main())


def test_a_signal_that_comes_just_before_a_read_waits_is_served_soon(path: Path) -> None:
    """The kernel begins to wait all the same: no read waits for long, and a ping is sent after PATIENCE_S as ever."""
    asked, waits = [], set[bytes]()

    def silent(sock: socket.socket) -> None:
        asked.append(request_of(sock)["op"])
        assert b"" == sock.recv(1)  # no ping

    with Rogue(path, silent), leeward.Client(path) as client:
        receive = client._connection._receive

        def look() -> list[Any]:
            assert client._connection._socket is not None
            waits.add(client._connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
            if time.monotonic() > began + 0.7:
                raise KeyboardInterrupt  # as the handler does
            return receive()

        began = time.monotonic()
        client._connection._receive = look  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            client.execute("1")
    assert ["execute"] == asked
    assert {struct.pack("ll", 0, 500_000)} == waits


@pytest.mark.parametrize(("options", "said"), [
    ({"tiemout": 3}, "did you mean 'timeout'"), ({"memory_limit": 3}, "did you mean 'memory'"),
    ({"input": b""}, "did you mean 'stdin'"), ({"colect": []}, "did you mean 'collect'"),
    ({"weather": 1}, "there are allow_network, args, call_timeout, collect"),
    ({"idempotnt": True}, "did you mean 'idempotent'"),
])
def test_an_unknown_option_names_the_one_that_was_meant(calls: Call, path: Path, options: dict[str, Any],
                                                        said: str) -> None:
    """As a TypeError, as for any function."""
    with pytest.raises(TypeError, match=said):
        calls(str(path), execute("1", **options))


@pytest.mark.parametrize(("code", "options", "said"), [
    (lambda: 1, {}, "not the function <lambda>"), (calls, {}, "inspect.getsource"), (Path("a.py"), {}, "not a path"),
    (3, {}, "text or bytes, not int"), ("1", {"files": {"a": 3}}, "content of 'a' is bytes or text, not int"),
    ("1", {"files": {"a": Path("b")}}, "send what is in the file"), ("1", {"files": ["a"]}, "takes a dict, not list"),
    ("1", {"env": "A=b"}, "takes a dict, not str"), ("1", {"files": {"/etc/x": b""}}, "not with /workspace/"),
    ("1", {"files": {"../x": b""}}, "it has .. in it"), ("1", {"collect": ["/etc/*"]}, "not with /workspace/"),
])
def test_a_wrong_value_is_explained(calls: Call, path: Path, code: Any, options: dict[str, Any], said: str) -> None:
    """With what is needed in its place."""
    with FakeDaemon(path), pytest.raises(RequestRejected, match=said):
        calls(str(path), execute(code, **options))


def test_text_in_files_is_utf8(calls: Call, path: Path) -> None:
    """And names may be absolute."""
    with FakeDaemon(path) as daemon:
        calls(str(path), execute("1", files={"/workspace/a": "é", "b": b"\xff", "./c": bytearray(b"c")}))

        assert {"a": "é".encode(), "b": b"\xff", "c": b"c"} == daemon.jobs.get().files


def test_a_result_says_whether_it_is_well() -> None:
    """`ok` and `text`."""
    assert Result("é\n".encode(), b"", 0, Outcome.FINISHED).ok
    assert not Result(b"", b"", 1, Outcome.FINISHED).ok
    assert not Result(b"", b"", 0, Outcome.SIGNALLED).ok
    assert "é\n\ufffd" == Result("é\n".encode() + b"\xff", b"", 0, Outcome.FINISHED).text


def test_refusals_have_their_types(calls: Call, path: Path) -> None:
    """What the pool says, as an exception with its message."""
    full = Report(refusal=Busy("all workers are busy", retry_after=3600))  # longer than a client waits
    with FakeDaemon(path, lambda job: full), pytest.raises(Busy, match="all workers are busy"):
        calls(str(path), execute())


def test_a_missing_daemon_is_one_line_with_both_cures(calls: Call, path: Path) -> None:
    """One line with both cures."""
    with pytest.raises(DaemonAway) as away:
        calls(str(path), execute())
    text = str(away.value)

    assert "leeward daemon start" in text
    assert "leeward run" in text
    assert str(path) in text
    assert "\n" not in text


@pytest.mark.parametrize("where", ["", "a\0b", "/proc/self/mem/x", "x" * 5000, "/etc/passwd"])
def test_no_socket_there(calls: Call, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is given as a path: DaemonAway."""
    monkeypatch.setenv("LEEWARD_SOCKET", str(tmp_path / "none"))
    with pytest.raises(DaemonAway):
        calls(where, ("ping", (), {}))


def test_a_socket_without_a_daemon_is_an_error(calls: Call, path: Path) -> None:
    """Stale: bound by a process that is gone."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(DaemonAway, match="connection refused"):
        calls(str(path), execute())


def test_a_long_path(calls: Call, tmp_path: Path) -> None:
    """Longer than a sockaddr_un."""
    folder = tmp_path / ("d" * 150)
    folder.mkdir(mode=0o700)
    with FakeDaemon(folder / "s"):
        assert b"1" == calls(str(folder / "s"), execute("1"))[0].stdout


def test_the_socket_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument, then LEEWARD_SOCKET."""
    monkeypatch.setenv("LEEWARD_SOCKET", str(path))

    assert str(path) == leeward.Client().socket == leeward.AsyncClient().socket
    assert "/x" == leeward.Client("/x").socket == leeward.AsyncClient(Path("/x")).socket


# --- a daemon that goes away, or isn't ours -----------------------------------


def hang_up(sock: socket.socket) -> None:
    request_of(sock)


def hang_up_unread(sock: socket.socket) -> None:
    """Its end is all that it does."""


def half_an_answer(sock: socket.socket) -> None:
    sock.sendall(encode({"id": request_of(sock)["id"], "ok": {}})[:-1])


@pytest.mark.parametrize("script", [hang_up, hang_up_unread, half_an_answer])
def test_a_daemon_that_goes_away(calls: Call, path: Path, script: Callable[[socket.socket], None]) -> None:
    """Before, during or without an answer."""
    with Rogue(path, script), pytest.raises(DaemonAway):
        calls(str(path), execute())


def garbage(sock: socket.socket) -> None:
    request_of(sock)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def answer_to_another(sock: socket.socket) -> None:
    sock.sendall(encode({"id": request_of(sock)["id"] + 1, "ok": {}}))


def no_result(sock: socket.socket) -> None:
    sock.sendall(encode({"id": request_of(sock)["id"], "ok": {"stdout": b""}}))


def arena_script(make: Callable[[], int], size: int, count: int = 1) -> Callable[[socket.socket], None]:
    def script(sock: socket.socket) -> None:
        number = request_of(sock)["id"]
        fds = [make() for _ in range(count)]
        answer = {"outcome": "finished", "exit_code": 0, "limit": None, "duration": 0, "cpu_time": 0, "memory_peak": 0,
                  "denied": {}, "truncated": False, "degraded": [], "error": None, "stdout": [0, 0, size],
                  "stderr": b"", "arenas": [size]}
        socket.send_fds(sock, [encode({"id": number, "ok": answer})], fds)
        for fd in fds:
            os.close(fd)
        sock.recv(1)
    return script


def unsealed() -> int:
    fd = os.memfd_create("rogue", os.MFD_ALLOW_SEALING)
    os.write(fd, b"12345")
    return fd


def sealed() -> int:
    arena = seal([b"12345"])
    return arena.fd


ROGUES = {
    "garbage": garbage,
    "an answer to another request": answer_to_another,
    "an answer that is no result": no_result,
    "a memory file that isn't sealed": arena_script(unsealed, 5),
    "a memory file that is shorter": arena_script(sealed, 500_000),
    "a descriptor that is no memory file": arena_script(lambda: os.open("/dev/zero", os.O_RDWR), 5),
    "no descriptor": arena_script(sealed, 5, 0),
    "more descriptors than it can want": arena_script(sealed, 5, 100),
}


@pytest.mark.parametrize("name", ROGUES)
def test_c113_a_daemon_of_another_user_is_refused(calls: Call, path: Path, name: str) -> None:
    """BadReply, and no descriptor stays."""
    before = len(os.listdir("/proc/self/fd"))
    with Rogue(path, ROGUES[name]), pytest.raises(BadReply):
        calls(str(path), execute())

    assert before == len(os.listdir("/proc/self/fd"))


def test_a_sealed_arena_of_a_rogue_is_taken(calls: Call, path: Path) -> None:
    """Control of the above: only what is wrong is refused."""
    with Rogue(path, arena_script(sealed, 5)):
        [result] = calls(str(path), execute())

    assert b"12345" == result.stdout
    assert SEALS  # what `sealed` sets is what the daemon sets


def test_the_daemons_last_words_are_heard(calls: Call, path: Path) -> None:
    """A refusal of the connection, even one that came before the request was sent."""
    def turn_away(sock: socket.socket) -> None:
        sock.sendall(encode({"id": 0, "error": {"kind": "forbidden", "message": "not you"}}))

    with Rogue(path, turn_away), pytest.raises(Forbidden, match="not you"):
        calls(str(path), execute("x" * 5_000_000))


def test_a_deadline_of_the_call(calls: Call, path: Path) -> None:
    """The job ends with the call."""
    with FakeDaemon(path, lambda job: None) as daemon:
        start = time.monotonic()
        with pytest.raises(NoAnswer):
            calls(str(path), execute(deadline=0.2))
        assert 0.15 < time.monotonic() - start < PATIENCE
        assert daemon.cancelled.get(timeout=PATIENCE) is not None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.1)
    monkeypatch.setattr(connecting, "PATIENCE_S", 0.1)
    monkeypatch.setattr(aio_connection, "PATIENCE_S", 0.1)


def test_a_silent_daemon_is_given_up(calls: Call, path: Path, impatient: None) -> None:
    """It took the request, and a ping, and says nothing."""
    got: list[Any] = []

    def silent(sock: socket.socket) -> None:
        got.append(request_of(sock)["op"])
        got.append(request_of(sock)["op"])
        sock.recv(1)

    with Rogue(path, silent), pytest.raises(NoAnswer, match="answer pings"):
        calls(str(path), execute())
    assert ["execute", "ping"] == got


def test_a_daemon_that_lives_may_take_its_time(calls: Call, path: Path, impatient: None) -> None:
    """Control: it answers pings, and the job in the end."""
    def slow(sock: socket.socket) -> None:
        number = request_of(sock)["id"]
        for _ in range(4):
            sock.sendall(encode({"id": request_of(sock)["id"], "ok": {}}))
        sock.sendall(encode({"id": number, "error": {"kind": "cancelled", "message": "at last"}}))

    with Rogue(path, slow), pytest.raises(Cancelled, match="at last"):
        calls(str(path), execute())


def test_a_restarted_daemon_is_found_again(path: Path) -> None:
    """By the next call of the same client."""
    with leeward.Client(str(path)) as client:
        for _ in range(3):
            with FakeDaemon(path):
                assert b"1" == client.execute("1").stdout
        with pytest.raises(DaemonAway):
            client.execute("1")

    async def main() -> None:
        async with leeward.AsyncClient(str(path)) as other:
            for _ in range(3):
                with FakeDaemon(path):
                    assert b"1" == (await other.execute("1")).stdout
            with pytest.raises(DaemonAway):
                await other.execute("1")

    asyncio.run(main())


def test_a_request_that_was_sent_is_never_sent_twice(path: Path) -> None:
    """The daemon may have run it before it went."""
    seen: list[str] = []

    def once(sock: socket.socket) -> None:
        seen.append(request_of(sock)["op"])

    with Rogue(path, once), leeward.Client(str(path)) as client:
        with pytest.raises(DaemonAway):
            client.execute("1")
        assert ["execute"] == seen


# --- the blocking client alone ------------------------------------------------


def test_threads_take_turns(path: Path) -> None:
    """One client, many threads: everybody gets the own answer."""
    wrong: list[Any] = []

    def work(client: leeward.Client, name: str) -> None:
        for number in range(30):
            code = f"{name}{number}"
            if client.execute(code).stdout != code.encode():
                wrong.append(code)

    with FakeDaemon(path), leeward.Client(str(path)) as client:
        threads = [threading.Thread(target=work, args=(client, name)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)

    assert [] == wrong


def test_after_a_fork_each_has_a_connection(path: Path) -> None:
    """A child's answer never reaches the parent."""
    with FakeDaemon(path):
        program = f"""
import os, leeward
client = leeward.Client({str(path)!r})
assert client.execute("before").stdout == b"before"
pid = os.fork()
for number in range(50):
    code = f"{{pid == 0}} {{number}}"
    assert client.execute(code).stdout == code.encode()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""
        done = subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE * 3,
                              env={**os.environ, "PYTHONPATH": str(Path(leeward.__file__).parents[1])})

    assert 0 == done.returncode


def test_an_interrupted_call_ends_its_job(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt closes the connection; the next call has a new one."""
    def interrupt(*_: object) -> Any:
        raise KeyboardInterrupt

    waiting = FakeDaemon(path, lambda job: None if job.code == b"wait" else echo(job))
    with waiting as daemon, leeward.Client(str(path)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(connection.BlockingConnection, "_receive", interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.execute("wait")
        assert daemon.cancelled.get(timeout=PATIENCE) is not None
        assert b"next" == client.execute("next").stdout


# --- the asyncio client alone -------------------------------------------------


def test_many_at_once(path: Path) -> None:
    """A hundred over one connection, each its own answer; large ones too."""
    def answer(job: Job) -> Report | None:
        return large(job) if job.code == b"large" else finished(job.code or b"")

    async def main() -> list[Result]:
        async with leeward.AsyncClient(str(path)) as client:
            codes = ["large" if number % 10 == 0 else str(number) for number in range(100)]
            return await asyncio.gather(*(client.execute(code) for code in codes))

    with FakeDaemon(path, answer):
        results = asyncio.run(main())

    for number, result in enumerate(results):
        assert (b"o" * (5 << 20) if number % 10 == 0 else str(number).encode()) == result.stdout_view


def test_a_cancelled_task_ends_its_job_alone(path: Path) -> None:
    """The connection and its other jobs live on."""
    with FakeDaemon(path, lambda job: None if job.code == b"wait" else echo(job)) as daemon:
        async def main() -> None:
            async with leeward.AsyncClient(str(path)) as client:
                task = asyncio.create_task(client.execute("wait"))
                while daemon.jobs.empty():
                    await client.ping()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert b"next" == (await client.execute("next")).stdout
                assert b"wait" == daemon.cancelled.get(timeout=PATIENCE).code
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await client.execute("wait")
                assert b"next" == (await client.execute("next")).stdout

        asyncio.run(main())


def test_a_lost_connection_fails_every_call(path: Path) -> None:
    """Each with an error of its own, and none hangs."""
    count = 5

    def script(sock: socket.socket) -> None:
        reader = FrameReader()
        seen = 0
        while seen < count:
            seen += len(reader.feed(sock.recv(1 << 16)))

    async def main() -> list[Any]:
        async with leeward.AsyncClient(str(path)) as client:
            return await asyncio.gather(*(client.execute("x") for _ in range(count)), return_exceptions=True)

    with Rogue(path, script):
        errors = asyncio.run(main())

    assert [DaemonAway] * count == [type(error) for error in errors]
    assert count == len({id(error) for error in errors})


def test_closing_fails_waiting_calls(path: Path) -> None:
    """And ends its job."""
    with FakeDaemon(path, lambda job: None) as daemon:
        async def main() -> None:
            client = leeward.AsyncClient(str(path))
            task = asyncio.create_task(client.execute("wait"))
            while daemon.jobs.empty():
                await client.ping()
            await client.close()
            with pytest.raises(DaemonAway, match="closed"):
                await task

        asyncio.run(main())
        assert daemon.cancelled.get(timeout=PATIENCE) is not None


def test_a_full_backlog_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a bounded time."""
    monkeypatch.setattr(aio_calls, "CONNECT_S", 0.1)
    monkeypatch.setattr(connecting, "CONNECT_S", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(path))
            for calls in (blocking, asynchronous):
                with pytest.raises(DaemonAway, match="no program accepted"):
                    calls(str(path), execute())


def test_c104_a_strangers_socket_is_not_talked_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder in /tmp may be anybody's; the kernel says whose process listens."""
    with FakeDaemon(path):
        connected = connecting.connect(str(path))
        assert connected is not None  # control
        connected.close()
        own = os.geteuid()
        # In this module alone: the daemon beside this test unpacks as well.
        monkeypatch.setattr(connecting, "struct", SimpleNamespace(unpack=lambda *_: (1, own + 1, own), pack=struct.pack))
        monkeypatch.setattr("leeward.client.connecting.os.geteuid", lambda: own or 4711)
        for named in ("", str(own), f" {own + 1}", f"{own + 1},0", "nobody"):
            monkeypatch.setenv("LEEWARD_TRUSTED_UID", named)
            with pytest.raises(DaemonAway, match=f"user {own + 1}"):
                connecting.connect(str(path))

        monkeypatch.setenv("LEEWARD_TRUSTED_UID", str(own + 1))

        trusted = connecting.connect(str(path))
        assert trusted is not None
        trusted.close()


def test_all_errors_are_of_one_family() -> None:
    """So that `except leeward.DaemonError` catches what a client raises."""
    assert all(issubclass(error, DaemonError) for error in (BadReply, Busy, Cancelled, DaemonAway, NoAnswer))


def test_importing_leeward_is_cheap() -> None:
    """Nothing is imported until a name is used; then it is there."""
    program = "import sys, leeward; print([m for m in sys.modules if m.startswith(('leeward', 'msgpack', 'data'))])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(Path(leeward.__file__).parents[1])})

    assert "['leeward']\n" == done.stdout
    assert {"Client", "AsyncClient", "Result"} <= set(dir(leeward))
    assert all(getattr(leeward, name).__name__ == name for name in leeward.__all__)
    with pytest.raises(AttributeError):
        _ = leeward.Clinet
