"""What a failed call says about its job, and which calls are sent again: the same for all three clients."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.fake_daemon import PATIENCE, FakeDaemon, Rogue, request_of
from kit.features import ROOT
from leeward import errors
from leeward.client import retry
from leeward.spec.outcome import Outcome, Result
from leeward.wire.answers import encode_result
from leeward.wire.frames import FrameReader, decode, encode

#: leeward.h's code for each.
CODES = {errors.DaemonAway: -3, errors.NoAnswer: -4, errors.BadReply: -5, errors.Refused: -16, errors.Busy: -17,
         errors.QueueTimeout: -18, errors.ShuttingDown: -19, errors.VersionMismatch: -20, errors.RequestRejected: -21,
         errors.Cancelled: -22, errors.Forbidden: -23, errors.SessionOver: -16}

#: What each kind of refusal says of the job. Not session_over: the C library has no sessions.
KINDS = {"busy": False, "queue_timeout": False, "shutting_down": False, "version": False, "bad_request": False,
         "forbidden": False, "cancelled": True, "internal": True, "unheard_of": True}

End = tuple[str, Any]  # "done" and the output, or an error's code and whether the job may have run


class ByPython:
    """One call after the other by one of Python's clients."""

    def __init__(self, kind: type[Any], path: Path, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = kind(str(path), **options)

    def _awaited(self, made: Any) -> Any:
        async def wait() -> Any:
            return await made
        return self._runner.run(wait()) if inspect.isawaitable(made) else made

    def execute(self, code: bytes = b"1", **options: Any) -> End:
        try:
            return "done", self._awaited(self._client.execute(code, **options)).stdout
        except leeward.DaemonError as error:
            return str(CODES[type(error)]), error.may_have_run

    def close(self) -> None:
        self._awaited(self._client.close())
        self._runner.close()


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("before", ctypes.c_char * 128), ("deadline", ctypes.c_double),
                ("idempotent", ctypes.c_int32), ("no_retry", ctypes.c_int32)]


class ByC:
    """The same by libleeward."""

    def __init__(self, library: ctypes.CDLL, path: Path, **options: Any) -> None:
        self._library, self._path, self._handle = library, path, None
        self._no_retry = not options.get("retry", True)
        library.leeward_connect.restype = library.leeward_execute.restype = ctypes.c_void_p

    def execute(self, code: bytes = b"1", deadline: float = 0, idempotent: bool = False) -> End:
        if self._handle is None:
            self._handle = ctypes.c_void_p(self._library.leeward_connect(bytes(self._path)))
            if not self._handle:
                return self._failed()
        options = Options(ctypes.sizeof(Options), b"", deadline, idempotent, self._no_retry)
        result = self._library.leeward_execute(self._handle, code, ctypes.c_size_t(len(code)), ctypes.byref(options))
        if not result:
            return self._failed()
        at, length = ctypes.cast(result + 32, ctypes.POINTER(ctypes.c_size_t))[0:2]
        end = "done", ctypes.string_at(at, length)
        self._library.leeward_free_result(ctypes.c_void_p(result))
        return end

    def _failed(self) -> End:
        return str(self._library.leeward_last_error_code()), bool(self._library.leeward_last_error_may_have_run())

    def close(self) -> None:
        self._library.leeward_disconnect(self._handle)


@pytest.fixture(params=["Client", "AsyncClient", "C"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    with contextlib.ExitStack() as made:
        def make(**options: Any) -> Any:
            path = tmp_path / "s"
            one = ByC(request.getfixturevalue("c_inside"), path, **options) if "C" == request.param else \
                ByPython(getattr(leeward, request.param), path, **options)
            made.callback(one.close)
            return one
        yield make


class Scripted(Rogue):
    """
    A daemon that does to the requests of one connection after the other what is said here, the last of it again and
    again: refuse with a kind, hang up with "", or run it with "run".

    Attributes:
        seen: each request's operation.
    """

    def __init__(self, path: Path, *ends: str) -> None:
        self.seen: list[str] = []
        self._ends = ends
        super().__init__(path, self._next)

    def _next(self, sock: socket.socket) -> None:
        end = self._ends[min(len(self.seen), len(self._ends) - 1)]
        request = request_of(sock)
        self.seen.append(request["op"])
        if "run" == end:
            sock.sendall(encode_result(request["id"], Result(b"ran", b"", 0, Outcome.FINISHED)))
        elif end:
            number = 0 if end.startswith("0 ") else request["id"]
            sock.sendall(encode({"id": number, "error": {"kind": end.removeprefix("0 "), "message": "no"}}))


def code_of(kind: str) -> str:
    return str(CODES[errors.BY_KIND.get(kind, errors.Refused)])


def test_a_call_without_a_daemon_has_not_run(client: Callable[..., Any]) -> None:
    """Nothing was sent, and nothing is tried again."""
    one = client()  # for which the library may have to be compiled
    start = time.monotonic()

    assert ("-3", False) == one.execute()
    assert time.monotonic() - start < retry.RETRY_S / 2


def test_a_daemon_that_ended_between_two_calls(client: Callable[..., Any], tmp_path: Path) -> None:
    """It took no byte of the second one."""
    one = client()
    with FakeDaemon(tmp_path / "s"):
        assert ("done", b"1") == one.execute()

    assert ("-3", False) == one.execute()


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_call_has_not_run(client: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    """By its kind; not sent again by a client that was told not to."""
    with Scripted(tmp_path / "s", kind) as daemon:
        assert (code_of(kind), KINDS[kind]) == client(retry=False).execute()

    assert ["execute"] == daemon.seen


@pytest.mark.parametrize("kind", ["busy", "bad_request", "forbidden"])
def test_a_refusal_of_the_connection(client: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    """It is about the one request, or about its client."""
    with Scripted(tmp_path / "s", f"0 {kind}") as daemon:
        assert (code_of(kind), False) == client(retry=False).execute()

    assert ["execute"] == daemon.seen


def test_a_refusal_of_the_connection_as_busy_is_not_the_last_word(client: Callable[..., Any], tmp_path: Path) -> None:
    """Another connection is made until there is room."""
    with Scripted(tmp_path / "s", "0 busy", "0 busy", "run") as daemon:
        assert ("done", b"ran") == client().execute()

    assert ["execute"] * 3 == daemon.seen


def test_a_connection_that_is_lost_with_the_answer(client: Callable[..., Any], tmp_path: Path) -> None:
    """The job may have run: it isn't sent again, unless the caller says that it may run twice; four times at most."""
    with Scripted(tmp_path / "s", "") as daemon:
        assert ("-3", True) == client().execute()
        assert 1 == len(daemon.seen)
        assert ("-3", True) == client().execute(idempotent=True)
        assert 5 == len(daemon.seen)
    (tmp_path / "s").unlink()
    with Scripted(tmp_path / "s", "", "run") as daemon:
        assert ("done", b"ran") == client().execute(idempotent=True)
        assert 2 == len(daemon.seen)


def test_no_answer_before_the_deadline(client: Callable[..., Any], tmp_path: Path) -> None:
    """The request was sent."""
    with Rogue(tmp_path / "s", lambda sock: (request_of(sock), sock.recv(1))):
        assert ("-4", True) == client().execute(deadline=0.1)


def test_a_bad_reply(client: Callable[..., Any], tmp_path: Path) -> None:
    """Whatever it is, the request was read."""
    with Rogue(tmp_path / "s", lambda sock: (request_of(sock), sock.sendall(b"\0\0\0\1x"))):
        assert ("-5", True) == client().execute()


def test_a_large_job_whose_arena_was_asked_for(client: Callable[..., Any], tmp_path: Path) -> None:
    """The request for the arena is not the job."""
    with Rogue(tmp_path / "s", lambda sock: (request_of(sock), sock.sendall(b"\0\0\0\1x"))):
        assert ("-5", False) == client().execute(b"#" * (1 << 20))


def test_a_daemon_that_ends_refuses_and_the_next_one_runs_it(client: Callable[..., Any], tmp_path: Path) -> None:
    """Over a new connection, each time."""
    with Scripted(tmp_path / "s", "shutting_down", "shutting_down", "run") as daemon:
        assert ("done", b"ran") == client().execute()

    assert ["execute"] * 3 == daemon.seen


def test_a_daemon_that_ends_and_none_after_it(client: Callable[..., Any], tmp_path: Path) -> None:
    """That it ended is what the caller hears, before the deadline."""
    def refuse(sock: socket.socket) -> None:
        (tmp_path / "s").unlink(missing_ok=True)
        sock.sendall(encode({"id": request_of(sock)["id"], "error": {"kind": "shutting_down", "message": "no"}}))

    with Rogue(tmp_path / "s", refuse):
        assert ("-19", False) == client().execute()
    with Scripted(tmp_path / "s", "shutting_down") as daemon:
        start = time.monotonic()
        assert ("-19", False) == client().execute(deadline=2)
        assert time.monotonic() - start < PATIENCE / 2
    assert len(daemon.seen) > 1


def test_requests_in_a_row_of_which_no_byte_was_taken(tmp_path: Path) -> None:
    """Of many over one connection, those behind one that fills it: they go over the next connection, that one doesn't."""
    first: list[bool] = []

    def script(sock: socket.socket) -> None:
        if not first:
            first.append(True)
            sock.recv(1)
            return
        reader = FrameReader()
        while data := sock.recv(1 << 16):
            for payload in reader.feed(data):
                sock.sendall(encode_result(decode(payload)["id"], Result(b"ran", b"", 0, Outcome.FINISHED)))

    async def main() -> list[Any]:
        async with leeward.AsyncClient(str(tmp_path / "s")) as client:
            jobs = [client.execute(b"#" * (1 << 19)), *(client.execute(b"1") for _ in range(3))]
            return await asyncio.gather(*jobs, return_exceptions=True)

    with Rogue(tmp_path / "s", script):
        large, *small = asyncio.run(main())

    assert isinstance(large, leeward.DaemonAway)
    assert large.may_have_run
    assert [b"ran"] * 3 == [answer.stdout for answer in small]


def test_calls_go_on_while_an_ending_daemon_finishes_others(tmp_path: Path) -> None:
    """The connection that it has stays until what runs there is answered; new jobs go to the next daemon."""
    async def main() -> list[bytes]:
        slow: list[tuple[socket.socket, int]] = []

        def script(sock: socket.socket) -> None:
            """The first connection's first job runs until the other one is over."""
            reader = FrameReader()
            numbers = []
            while len(numbers) < 2:
                numbers += [decode(payload)["id"] for payload in reader.feed(sock.recv(1 << 16))]
            sock.sendall(encode({"id": numbers[1], "error": {"kind": "shutting_down", "message": "no"}}))
            slow.append((sock.dup(), numbers[0]))

        with Rogue(tmp_path / "s", script) as rogue:
            async with leeward.AsyncClient(rogue.path) as client:
                jobs = [asyncio.create_task(client.execute(b"1")) for _ in range(2)]
                while not slow:
                    await asyncio.sleep(0)
                rogue._script = lambda sock: sock.sendall(
                    encode_result(request_of(sock)["id"], Result(b"new", b"", 0, Outcome.FINISHED)))
                done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
                answers = [task.result().stdout for task in done]
                sock, number = slow[0]
                with sock:
                    sock.sendall(encode_result(number, Result(b"old", b"", 0, Outcome.FINISHED)))
                    answers += [task.result().stdout for task in (await asyncio.wait(jobs))[0] - done]
                    sock.settimeout(PATIENCE)
                    assert b"" == await asyncio.to_thread(sock.recv, 1)  # it was closed then
                return answers

    assert [b"new", b"old"] == asyncio.run(main())


def test_pauses_between_tries_double_up_to_a_bound() -> None:
    """Twice as long each time, up to a bound; by chance half of that; never beyond the deadline."""
    attempts, now, pauses = retry.Retry(True, False, 100.0), 0.0, []
    while (pause := attempts.pause(errors.ShuttingDown("no"), now)) is not None:
        pauses.append(pause)
        now += pause
    steps = [min(retry._FIRST_S * 2 ** number, retry._MOST_S) for number in range(len(pauses))]

    assert all(0.5 * step <= pause <= step for pause, step in zip(pauses, steps, strict=True))
    assert 100 - 2 * retry._MOST_S <= now < 100  # the last attempt has as much time for its answer as its pause took
    assert retry.Retry(True, False, None).pause(errors.Forbidden("no"), 0.0) is None


def test_the_pauses_of_a_busy_daemon() -> None:
    """
    Not before the time that it names, not all at that moment, and never beyond the deadline; without one for BUSY_S
    after the first refusal, and after the last job of the same client that was done.
    """
    busy = errors.Busy("no", retry_after=2.0)
    pauses = {retry.Retry(True, False, 100.0).pause(busy, 0.0) for _ in range(100)}
    assert all(pause is not None and 2.0 <= pause <= 3.1 for pause in pauses)
    assert len(pauses) > 10

    assert retry.Retry(True, False, 2.0).pause(busy, 0.0) is None
    assert retry.Retry(True, False, 100.0, busy=False).pause(busy, 0.0) is None
    assert retry.Retry(False, False, 100.0).pause(busy, 0.0) is None

    attempts = retry.Retry(True, False, None)
    assert attempts.pause(errors.Busy("no"), 0.0) is not None
    assert attempts.pause(errors.Busy("no"), retry.BUSY_S - 1) is not None
    assert attempts.pause(errors.Busy("no"), retry.BUSY_S) is None
    assert attempts.pause(errors.Busy("no"), retry.BUSY_S, progress=1.0) is not None

    late = errors.QueueTimeout("no")
    assert retry.Retry(True, False, None).pause(late, 0.0) is None
    assert retry.Retry(True, False, None).pause(late, 5.0, progress=1.0) is not None
    assert retry.Retry(True, False, None).pause(late, 0.0, beside=True) is not None


def test_the_c_library_has_the_same_figures() -> None:
    """As leeward/client/retry.py."""
    [source] = (ROOT / "leeward").glob("**/client.c")
    words = dict(line.split()[1:3] for line in source.read_text().splitlines() if line.startswith("#define RETRY_"))

    assert [retry.RETRY_S, retry._FIRST_S, retry._MOST_S, retry._MOST_LOST, retry.BUSY_S] == [
        float(words[f"RETRY_{name}"]) for name in ("S", "FIRST_S", "MOST_S", "LOST", "BUSY_S")]
