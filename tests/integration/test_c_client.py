"""
libleeward: what leeward.h promises, over a real daemon and over hostile ones.

The promises themselves are in tests/native/client_checks.c, which runs plain, under valgrind,
and with the library under ASan and UBSan.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import reactors
from kit.c_client import CLIENT, LANGUAGE, VALGRIND, checked
from kit.fake_daemon import FakeDaemon, Rogue, finished
from kit.features import ROOT, clang
from kit.live_daemon import PATIENCE, LiveDaemon, environment
from leeward import Client
from leeward.daemon.run.report import Report
from leeward.daemon.serving.parcel import seal
from leeward.errors import Busy
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome, Result
from leeward.wire.answers import encode_ok, encode_result
from leeward.wire.frames import FrameReader, decode, encode

#: The bytes are the same by socket and by ring, their pieces and when they come are not.
DAEMON, REACTORS = ("--pool-size", "2"), reactors.WAYS

pytestmark = pytest.mark.needs("compiler")

CHECKS = ROOT / "tests" / "native" / "client_checks.c"
AWAY, NO_ANSWER, BAD_REPLY, REFUSED, BUSY, SHUTTING_DOWN = -3, -4, -5, -16, -17, -19


def one(program: Path, path: Path | str, *more: str) -> tuple[int, str]:
    """One job: the code and what came with it."""
    done = subprocess.run([program, "one", str(path), *more], capture_output=True, text=True, check=False, timeout=60)

    assert (0, "") == (done.returncode, done.stderr)
    code, _, text = done.stdout.partition(" ")
    return int(code), text.rstrip("\n")


@pytest.mark.parametrize("what", ["good", "nonsense"])
def test_every_promise_holds(daemon: LiveDaemon, plain: Path, what: str) -> None:
    """Jobs of every kind, and arguments of none."""
    checked(plain, what, daemon.socket)


@pytest.mark.parametrize("what", ["good", "nonsense"])
def test_every_promise_holds_without_a_fault(any_daemon: LiveDaemon, sanitized: Path, what: str) -> None:
    """The same under ASan and UBSan."""
    checked(sanitized, what, any_daemon.socket)


@pytest.mark.needs("valgrind")
@pytest.mark.parametrize("what", ["good", "nonsense"])
def test_valgrind_reports_no_error(any_daemon: LiveDaemon, plain: Path, what: str) -> None:
    """No byte is lost, none is read unset."""
    checked(*VALGRIND, plain, what, any_daemon.socket)


def test_the_default_socket_is_found(plain: Path, tmp_path: Path) -> None:
    """As the Python client finds it: LEEWARD_SOCKET, then the user's runtime folder."""
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    if 0 != os.geteuid():
        (tmp_path / "leeward").mkdir(mode=0o700)
        with FakeDaemon(tmp_path / "leeward" / "leeward.sock"):
            assert "0 x\n" == subprocess.run([plain, "one", ""], env=environ, capture_output=True, text=True,
                                             check=True).stdout
    with FakeDaemon(tmp_path / "other"):
        assert "0 x\n" == subprocess.run([plain, "one", ""], env={**environ, "LEEWARD_SOCKET": str(tmp_path / "other")},
                                         capture_output=True, text=True, check=True).stdout


def test_a_daemon_on_another_machine_is_refused(plain: Path, tmp_path: Path) -> None:
    """Else a program that was pointed at one would run its code here."""
    with FakeDaemon(tmp_path / "s"):
        environ = {"LEEWARD_SOCKET": str(tmp_path / "s"), "LEEWARD_HOST": "https://lw.example"}
        for path, env in (("", environ), ("ssh://lw.example", {})):
            done = subprocess.run([plain, "one", path], env=env, capture_output=True, text=True, check=True)
            assert "another machine" in done.stdout
        assert (0, "x") == one(plain, tmp_path / "s")


def test_a_long_path(sanitized: Path, tmp_path: Path) -> None:
    """Longer than a sockaddr_un."""
    folder = tmp_path / ("d" * 150)
    folder.mkdir(mode=0o700)
    with FakeDaemon(folder / "s"):
        assert (0, "x") == one(sanitized, folder / "s")
    assert AWAY == one(sanitized, "x" * 5000)[0]


def test_a_refusal_has_its_code_and_the_daemons_message(sanitized: Path, tmp_path: Path) -> None:
    """By code, with the daemon's message."""
    with FakeDaemon(tmp_path / "s", lambda job: Report(refusal=Busy("all workers are busy"))):
        assert (BUSY, "all workers are busy") == one(sanitized, tmp_path / "s")


def test_a_busy_daemon_is_asked_again(sanitized: Path, tmp_path: Path) -> None:
    """As long as the time that it names is before the deadline."""
    asked: list[float] = []

    def room(job: Job) -> Report:
        asked.append(time.monotonic())
        return finished(b"x") if len(asked) > 3 else Report(refusal=Busy("full", retry_after=0.05))

    with FakeDaemon(tmp_path / "s", room):
        assert (0, "x") == one(sanitized, tmp_path / "s", str(PATIENCE))
    assert 4 == len(asked)
    assert all(later - earlier >= 0.05 for earlier, later in itertools.pairwise(asked))

    with FakeDaemon(tmp_path / "t", lambda job: Report(refusal=Busy("full", retry_after=2 * PATIENCE))):
        start = time.monotonic()
        assert (BUSY, "full") == one(sanitized, tmp_path / "t", str(PATIENCE))
    assert time.monotonic() - start < PATIENCE


def test_large_results_are_mapped(sanitized: Path, tmp_path: Path) -> None:
    """Both streams in one memory file."""
    def large(job: Job) -> Report:
        arena = seal([b"o" * 100_000, b"e" * 70_000])
        arena.stdout, arena.stderr = (0, 100_000), (100_000, 70_000)
        return Report(result=Result(b"", b"", 0, Outcome.FINISHED), arena=arena)

    with FakeDaemon(tmp_path / "s", large):
        assert (0, "o" * 100_000) == one(sanitized, tmp_path / "s")


# --- hostile daemons -----------------------------------------------------------


def request_of(sock: socket.socket) -> int:
    reader = FrameReader()
    payloads: list[bytes] = []
    while not payloads:
        payloads = reader.feed(sock.recv(1 << 16))
    number: int = decode(payloads[0])["id"]
    return number


def result_frame(number: int, *, places: bool = False) -> bytes:
    if not places:
        return encode_result(number, Result(b"fine", b"", 0, Outcome.FINISHED))
    return encode_result(number, Result(b"", b"", 0, Outcome.FINISHED), stdout=(0, 0, 4096), arenas=(4096,))


def with_file(fd: int, *copies: None) -> Callable[[socket.socket], None]:
    def script(sock: socket.socket) -> None:
        frame = result_frame(request_of(sock), places=True)
        socket.send_fds(sock, [frame], [fd] * (1 + len(copies)))
        os.close(fd)
    return script


def memory_file(size: int, *seals: int) -> int:
    import fcntl

    fd = os.memfd_create("leeward_results", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, sum(seals))
    return fd


def answers(make: Callable[[int], bytes]) -> Callable[[socket.socket], None]:
    return lambda sock: sock.sendall(make(request_of(sock)))


def plus(frame: bytes, **changes: object) -> bytes:
    message = decode(frame[4:])
    message["ok"].update(changes)
    return encode(message)


SHRINK, GROW, WRITE = 2, 4, 8

HOSTILE: dict[str, Callable[[], Callable[[socket.socket], None]]] = {
    "another protocol": lambda: lambda sock: sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n"),
    "a frame too large": lambda: lambda sock: sock.sendall(struct.pack(">I", (16 << 20) + 1)),
    "no map": lambda: answers(lambda number: b"\0\0\0\x01\x07"),
    "somebody else's answer": lambda: answers(lambda number: result_frame(number + 1)),
    "the same answer twice": lambda: answers(lambda number: result_frame(number + 7) + result_frame(number)),
    "an answer to nobody": lambda: answers(lambda number: encode({"id": 0, "ok": {}})),
    "no fields": lambda: answers(lambda number: encode({"id": number, "ok": {}})),
    "an exit code out of range": lambda: answers(lambda number: plus(result_frame(number), exit_code=256)),
    "a time that is none": lambda: answers(lambda number: plus(result_frame(number), duration=float("nan"))),
    "a limit that is none": lambda: answers(lambda number: plus(result_frame(number), limit="disk")),
    "a place without a file": lambda: answers(lambda number: plus(result_frame(number), stdout=[0, 0, 1])),
    "a name with a way out": lambda: answers(lambda number: plus(result_frame(number), files={"../x": b""})),
    "a file that didn't come": lambda: answers(lambda number: result_frame(number, places=True)),
    "a place outside": lambda: answers(lambda number: plus(result_frame(number, places=True), stdout=[0, 1, 4096])),
    "a place that overflows": lambda: answers(
        lambda number: plus(result_frame(number, places=True), stdout=[0, 2**63 - 1, 2**63 - 1])),
    "a pipe": lambda: with_file(os.open("/dev/null", os.O_RDONLY)),
    "no seals": lambda: with_file(memory_file(4096)),
    "it may shrink": lambda: with_file(memory_file(4096, GROW, WRITE)),
    "it may grow": lambda: with_file(memory_file(4096, SHRINK, WRITE)),
    "it may be written": lambda: with_file(memory_file(4096, SHRINK, GROW)),
    "another size": lambda: with_file(memory_file(8192, SHRINK, GROW, WRITE)),
    "more files than a read takes": lambda: with_file(memory_file(4096, SHRINK, GROW, WRITE), *[None] * 30),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_c113_a_hostile_daemon(sanitized: Path, tmp_path: Path, what: str) -> None:
    """An error of one line; nothing is read that wasn't checked."""
    with Rogue(tmp_path / "s", HOSTILE[what]()):
        code, text = one(sanitized, tmp_path / "s", "10")

    assert BAD_REPLY == code, text
    assert text.isprintable()


@pytest.mark.parametrize(("answer", "given"), [
    ({"json": '{"workers": {"total": 4}}'}, b'{"workers": {"total": 4}}'),
    ({}, None), ({"json": {}}, None), ({"json": b"{}"}, None), ({"json": ""}, None), ({"json": "[]"}, None),
    ({"json": "{\0}"}, None), ({"json": "{\n}"}, None), ({"json": '{"\u00e9": 1}'}, None), ({"json": "{\x7f}"}, None),
])
def test_c113_a_status_is_one_line_of_ascii(c_build: Path, tmp_path: Path, answer: dict[str, object],
                                            given: bytes | None) -> None:
    """The daemon writes it; what a program would cut at a NUL, or print to a terminal, is refused."""
    library = ctypes.CDLL(str(c_build / "libleeward.so"))
    library.leeward_connect.restype = ctypes.c_void_p
    library.leeward_status.restype = ctypes.c_char_p
    with Rogue(tmp_path / "s", answers(lambda number: encode_ok(number, answer))):
        handle = ctypes.c_void_p(library.leeward_connect(str(tmp_path / "s").encode()))
        status = library.leeward_status(handle, ctypes.c_double(5))
        library.leeward_disconnect(handle)

    assert given == status
    assert given is not None or BAD_REPLY == library.leeward_last_error_code()


def test_c113_the_control_is_taken(sanitized: Path, tmp_path: Path) -> None:
    """The same daemon with a result that is right."""
    with Rogue(tmp_path / "s", answers(result_frame)):
        assert (0, "fine") == one(sanitized, tmp_path / "s")
    with Rogue(tmp_path / "s2", with_file(memory_file(4096, SHRINK, GROW, WRITE))):
        assert 0 == one(sanitized, tmp_path / "s2")[0]


def test_a_reply_in_pieces(sanitized: Path, tmp_path: Path) -> None:
    """Byte by byte."""
    def script(sock: socket.socket) -> None:
        for byte in result_frame(request_of(sock)):
            sock.send(bytes([byte]))

    with Rogue(tmp_path / "s", script):
        assert (0, "fine") == one(sanitized, tmp_path / "s")


def test_a_daemon_that_goes_away(sanitized: Path, tmp_path: Path) -> None:
    """Before, in and instead of an answer."""
    for script in (lambda sock: None, lambda sock: sock.sendall(result_frame(request_of(sock))[:50]),
                   lambda sock: request_of(sock) and None):
        with Rogue(tmp_path / "s", script):
            assert AWAY == one(sanitized, tmp_path / "s")[0]
        (tmp_path / "s").unlink()


def test_a_last_message_of_the_daemon_reaches_the_caller(sanitized: Path, tmp_path: Path) -> None:
    """A refusal of the whole connection; a message of an unknown kind."""
    for kind, code in (("shutting_down", SHUTTING_DOWN), ("mood", REFUSED)):
        last = encode({"id": 0, "error": {"kind": kind, "message": "not today"}})
        with Rogue(tmp_path / "s", lambda sock, last=last: sock.sendall(last)):  # type: ignore[misc]  # a default binds it
            assert (code, "not today") == one(sanitized, tmp_path / "s", "1")
        (tmp_path / "s").unlink()


@pytest.mark.parametrize(("message", "shown"), [
    ("", "the daemon refused without a reason"), ("\0hidden", r"\x00hidden"),
    ("two\nlines\tand \x1b[31mred\u009b", r"two lines and \x1b[31mred\x9b"), ("é" * 4096, "é" * 2303),
])
def test_a_reason_is_one_line_for_any_terminal(sanitized: Path, tmp_path: Path, message: str, shown: str) -> None:
    """Whatever the daemon makes of it."""
    def script(sock: socket.socket) -> None:
        sock.sendall(encode({"id": request_of(sock), "error": {"kind": "busy", "message": message}}))

    with Rogue(tmp_path / "s", script):
        assert (BUSY, shown) == one(sanitized, tmp_path / "s")


def test_a_silent_daemon_meets_the_deadline(sanitized: Path, tmp_path: Path) -> None:
    """One that reads and never answers, and one that doesn't read a large request."""
    def silent(sock: socket.socket) -> None:
        while sock.recv(1 << 16):
            pass

    with Rogue(tmp_path / "s", silent):
        start = time.monotonic()
        code, text = one(sanitized, tmp_path / "s", "0.2")

    assert NO_ANSWER == code
    assert "before the deadline" in text
    assert time.monotonic() - start < 10


def test_the_library_connects_again_to_a_restarted_daemon(c_build: Path, tmp_path: Path) -> None:
    """A daemon that was started anew between two calls, by the shared library."""
    library = ctypes.CDLL(str(c_build / "libleeward.so"))
    library.leeward_connect.restype = ctypes.c_void_p
    with FakeDaemon(tmp_path / "s", lambda job: finished()):
        handle = ctypes.c_void_p(library.leeward_connect(str(tmp_path / "s").encode()))
        assert 0 == library.leeward_ping(handle, ctypes.c_double(0))
    assert AWAY == library.leeward_ping(handle, ctypes.c_double(0))
    with FakeDaemon(tmp_path / "s", lambda job: finished()):
        assert 0 == library.leeward_ping(handle, ctypes.c_double(0))
    with FakeDaemon(tmp_path / "s2"):
        pass
    library.leeward_disconnect(handle)


def test_a_loop_in_c_costs_no_more_than_the_bench_shows(any_daemon: LiveDaemon, plain: Path) -> None:
    """Calls as `leeward bench` makes them, by both clients in turn: the median of all rounds' ratios is below 1.3."""
    rounds = 45
    with (subprocess.Popen([plain, "loop", any_daemon.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                           bufsize=1) as looping, any_daemon.client() as client):
        ratios = [_ratio(looping, client) for _ in range(rounds)]
        assert looping.stdin is not None
        looping.stdin.close()

    assert 0 == looping.returncode
    assert statistics.median(ratios) < 1.3, ratios


def _ratio(looping: subprocess.Popen[str], client: Client) -> float:
    """What some calls in C cost of what as many in Python do."""
    assert looping.stdin is not None
    assert looping.stdout is not None
    calls, python = 10, []
    for _ in range(calls):
        time.sleep(0.005)  # time itself is measured: the bench has this gap between calls, and no event ends it
        start = time.perf_counter()
        client.execute("print('hello')")
        python.append((time.perf_counter() - start) * 1e6)
    print(calls, file=looping.stdin, flush=True)
    ours = [float(word) for word in looping.stdout.readline().split()]
    assert calls == len(ours)
    return statistics.median(ours) / statistics.median(python)


# --- the library as a file -----------------------------------------------------


def test_the_libraries_export_the_headers_names_only(c_build: Path) -> None:
    """Those of the header, with their version; the archive has no others either."""
    header = (CLIENT / "leeward.h").read_text()
    declared = set(re.findall(r"^LEEWARD_API .*?\b(leeward_\w+)\(", header, re.MULTILINE))
    shared = subprocess.run(["nm", "-D", "--defined-only", c_build / "libleeward.so.0"], capture_output=True, text=True,
                            check=True).stdout
    archive = subprocess.run(["nm", "-g", "--defined-only", c_build / "libleeward.a"], capture_output=True, text=True,
                             check=True).stdout
    needed = subprocess.run(["readelf", "-d", c_build / "libleeward.so.0"], capture_output=True, text=True,
                            check=True).stdout

    blocks = dict(re.findall(r"(leeward_\w+);(?=[^}]*\} LEEWARD_0\.(\d))", (CLIENT / "leeward.map").read_text()))

    wanted = {f"{name}@@LEEWARD_0.{int(blocks.get(name, '0')) + 1}" for name in declared}
    assert wanted == set(re.findall(r" T (\S+)", shared))
    assert declared == set(re.findall(r" T (\S+)", archive))
    assert "Library soname: [libleeward.so.0]" in needed
    libraries = re.findall(r"Shared library: \[(\w+)[^\]]*\]", needed)
    assert {"libc", "ld"} >= set(libraries)  # all of them libc's


@pytest.mark.parametrize("compiler", ["gcc", pytest.param("clang", marks=pytest.mark.needs("clang"))])
@pytest.mark.needs("c++")
def test_the_header_is_cxx(tmp_path: Path, c_build: Path, compiler: str) -> None:
    """C++17, without a warning; and C11 that is pedantic."""
    plain = clang() if "clang" == compiler else compiler
    assert plain is not None
    for name, command in (("a.cpp", (plain, "-x", "c++", "-std=c++17")), ("a.c", (plain, "-std=c11"))):
        (tmp_path / name).write_text('#include "leeward.h"\nint main(void) { return leeward_version() == 0; }\n')
        subprocess.run([*command, "-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror", f"-I{c_build}", "-o",
                        tmp_path / "made", tmp_path / name, f"-L{c_build}", "-lleeward", f"-Wl,-rpath,{c_build}"],
                       check=True)
        subprocess.run([tmp_path / "made"], check=True)


def test_the_library_installs_under_a_prefix(tmp_path: Path, plain: Path) -> None:
    """By one command; what leeward.pc says is enough for a compiler."""
    subprocess.run([sys.executable, ROOT / "build_client.py", "--prefix", tmp_path / "p"], check=True)
    written = (tmp_path / "p/lib/pkgconfig/leeward.pc").read_text()
    prefix = re.search(r"^prefix=(.*)$", written, re.MULTILINE)

    assert prefix is not None
    assert str(tmp_path / "p") == prefix[1]
    assert {"leeward.h"} == set(os.listdir(tmp_path / "p/include"))
    assert {"libleeward.a", "libleeward.so", "libleeward.so.0", "pkgconfig"} == set(os.listdir(tmp_path / "p/lib"))
    subprocess.run(["gcc", *LANGUAGE, f"-I{tmp_path}/p/include", "-o", tmp_path / "made", CHECKS, f"-L{tmp_path}/p/lib",
                    "-lleeward", "-pthread"], check=True)


@pytest.mark.needs("libfuzzer")
def test_c113_no_bytes_do_harm(tmp_path: Path) -> None:
    """300,000 inputs under ASan and UBSan; LEEWARD_LONG=1 feeds ten million."""
    runs = 10_000_000 if os.environ.get("LEEWARD_LONG") else 300_000
    done = subprocess.run([sys.executable, ROOT / "tests" / "fuzz", "--c", str(runs)], capture_output=True, text=True,
                          check=False)

    assert 0 == done.returncode, done.stdout + done.stderr[-4000:]
    assert runs == sum(map(int, re.findall(r"^Done (\d+) runs", done.stderr, re.MULTILINE)))


def test_an_answer_after_the_daemon_reads_no_more(c_build: Path, tmp_path: Path) -> None:
    """
    A daemon that hands over to the next one shuts its receiving side, and answers what it has read. The request for
    live output, which fails then, doesn't end the call.
    """
    path = tmp_path / "leeward.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(PATIENCE)
        program = subprocess.Popen([c_build / "leeward", "exec", "print(1)"], env=environment(path),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        peer, _ = listener.accept()
        with peer:
            reader = FrameReader()
            while not (requests := reader.feed(peer.recv(1 << 16))):
                pass
            peer.shutdown(socket.SHUT_RD)
            watch = select.poll()
            watch.register(peer, select.POLLHUP)
            assert not watch.poll(1000), "the client has hung up"  # it asks for output after 50 ms
            result = {"outcome": "finished", "exit_code": 0, "limit": None, "duration": 0.1, "cpu_time": 0.1,
                      "memory_peak": 1, "denied": {}, "truncated": False, "degraded": [], "error": None,
                      "stdout": b"late\n", "stderr": b""}
            peer.sendall(encode({"id": decode(requests[0])["id"], "ok": result}))
        said, wrong = program.communicate(timeout=PATIENCE)

    assert ("late\n", "", 0) == (said, wrong, program.returncode)
