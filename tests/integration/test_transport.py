"""The daemon over each of its transports: the same answers, and what it does where the kernel refuses io_uring."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import leeward
from kit import reactors
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from leeward.wire.frames import FrameReader, decode, encode

DAEMON, REACTORS = ("--pool-size", "2"), [reactors.REFERENCE, *reactors.WAYS]
TRANSPORTS = [reactors.REFERENCE, *reactors.WAYS]


def test_status_tells_which(daemon: LiveDaemon, request: pytest.FixtureRequest) -> None:
    wanted = "uring" if request.node.callspec.params["daemon"] == reactors.URING else "socket"

    with daemon.client() as client:
        assert wanted == client.status()["transport"]
    assert wanted == next(event["transport"] for event in daemon.log if event["event"] == "ready")


def test_every_kind_of_end(daemon: LiveDaemon) -> None:
    """The fast path, and what is handed over at each point of it."""
    with daemon.client() as client:
        hello = client.execute("print('hello')")
        raised = client.execute("1 / 0")
        left = client.execute("raise SystemExit(7)")
        gone = client.execute("import os; print('x', flush=True); os._exit(3)")
        killed = client.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        denied = client.execute("import os\ntry: os.chroot('/')\nexcept PermissionError: print('no')")
        much = client.execute("print('x' * 100_000)")
        flood = client.execute("while True: print('x' * 100_000)")
        slow = client.execute("import time; time.sleep(0.05); print('slow')")
        late = client.execute("while True: pass", timeout=0.2)
        closed = client.execute("import os; os.closerange(3, 100); print('closed')")
        silent = client.execute("import os; os.close(1); os.close(2)")
        after = client.execute("print('hello')")

    assert (b"hello\n", b"", 0, "finished") == (hello.stdout, hello.stderr, hello.exit_code, hello.outcome)
    assert 0 <= hello.cpu_time < 5  # a watch without controllers counts in hundredths of a second
    assert 0 < hello.duration < 5
    assert ("ZeroDivisionError", 1) == (raised.error and raised.error.type, raised.exit_code)
    assert (7, 3) == (left.exit_code, gone.exit_code)
    assert b"x\n" == gone.stdout
    assert (128 + signal.SIGKILL, "signalled") == (killed.exit_code, killed.outcome)
    assert (b"no\n", {"chroot": 1}) == (denied.stdout, denied.denied)
    assert (100_001, "finished") == (len(much.stdout), much.outcome)
    assert ("output_limit", "slow\n", "timed_out") == (flood.outcome, slow.stdout_text, late.outcome)
    assert b"closed\n" == closed.stdout
    assert b"" == silent.stdout
    assert b"hello\n" == after.stdout


def test_many_at_once_on_one_connection(daemon: LiveDaemon) -> None:
    """Forty requests in one piece, each answered once; the queue's limit refuses none of them."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(str(daemon.socket))
        sock.sendall(b"".join(encode({"v": 1, "id": number, "op": "execute", "code": f"print({number})".encode()})
                              for number in range(1, 41)))
        reader, got = FrameReader(), {}
        while len(got) < 40:
            for payload in reader.feed(sock.recv(1 << 16)):
                reply = decode(payload)
                assert reply["id"] not in got
                got[reply["id"]] = reply["ok"]["stdout"]

    assert {number: f"{number}\n".encode() for number in range(1, 41)} == got


def test_a_job_on_the_fast_path_can_be_cancelled(daemon: LiveDaemon) -> None:
    """A job on the fast path is cancelled like any other, and its worker serves on."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(str(daemon.socket))
        sock.sendall(encode({"v": 1, "id": 1, "op": "execute", "code": b"while True: pass"}))
        daemon.until(lambda status: status["workers"]["busy"] == 1)
        sock.sendall(encode({"v": 1, "id": 2, "op": "cancel", "target": 1}))
        reader, got = FrameReader(), []
        while len(got) < 2:
            got += [decode(payload) for payload in reader.feed(sock.recv(1 << 16))]

    assert ["cancelled", {"cancelled": True}] == [got[0]["error"]["kind"], got[1]["ok"]]
    with daemon.client() as client:
        assert ["a\n", "a\n", "a\n"] == [client.execute("print('a')").stdout_text for _ in range(3)]


REFUSING = """
import os, sys
import pyseccomp as seccomp
filter = seccomp.SyscallFilter(seccomp.ALLOW)
filter.add_rule(seccomp.ERRNO(int(sys.argv[1])), "io_uring_setup")
filter.load()
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.needs("uring-transport")
@pytest.mark.parametrize("error", [1, 38], ids=["EPERM", "ENOSYS"])
def test_a_kernel_that_refuses_the_ring(tmp_path: Path, error: int) -> None:
    """A container's filter, say: by itself the daemon takes the socket; told to take the ring it says why it can't."""
    where = str(tmp_path / "s")

    def refused(*options: str) -> list[str]:
        return [sys.executable, "-c", REFUSING, str(error), *command("daemon", "run", "--socket", where, *options)]

    told = subprocess.run(refused("--io=uring"), env=environment(), capture_output=True, text=True, check=False,
                          timeout=60, stdin=subprocess.DEVNULL)
    process = subprocess.Popen(refused("--io=auto", "--log-json"), env=environment(), stderr=subprocess.PIPE, text=True,
                               stdin=subprocess.DEVNULL)
    assert process.stderr is not None
    said = why = ""
    while '"ready"' not in said:
        why, said = said, process.stderr.readline()
        assert said
    with leeward.Client(where) as client:
        got = client.execute("print('here')").stdout_text
    process.terminate()
    process.communicate(timeout=PATIENCE)

    assert (1, 1) == (told.returncode, told.stderr.count("\n"))
    assert "io_uring" in told.stderr
    assert "--io=socket" in told.stderr
    assert '"transport": "socket"' in said
    assert f"io_uring_setup(the loop): {errno.errorcode[error]}" in why
    assert "here\n" == got
    assert 0 == process.returncode
    assert not os.path.exists(where)


#: Runs until the ring has failed.
HELD = "hold()\nopen('answer', 'w').write('42')\nprint('done')"

#: A daemon whose kernel refuses calls from SIGUSR1 on: those before "--".
FAILING = """
import errno, signal, sys
import pyseccomp as seccomp
from leeward_cli.main import main
def fail(*_):
    filter = seccomp.SyscallFilter(seccomp.ALLOW)
    for call in calls:
        filter.add_rule(seccomp.ERRNO(errno.EBADF), call)
    filter.load()
end = sys.argv.index("--")
calls, sys.argv[1:] = sys.argv[1:end], sys.argv[end + 1:]
signal.signal(signal.SIGUSR1, fail)
sys.exit(main())
"""


@contextlib.contextmanager
def failing(where: str, *calls: str) -> Iterator[subprocess.Popen[str]]:
    """A daemon that is ready, and whose kernel refuses *calls* from SIGUSR1 on."""
    daemon = subprocess.Popen([sys.executable, "-c", FAILING, *calls, "--", "daemon", "run", "--io=uring", "--log-json",
                               "--socket", where, "--pool-size", "2"], env=environment(), stderr=subprocess.PIPE,
                              text=True, stdin=subprocess.DEVNULL)
    assert daemon.stderr is not None
    try:
        while '"ready"' not in daemon.stderr.readline():
            assert daemon.poll() is None
        yield daemon
    finally:
        daemon.terminate()
        left = daemon.communicate(timeout=PATIENCE)[1]
    assert 0 == daemon.returncode, left


def fail(daemon: subprocess.Popen[str]) -> None:
    daemon.send_signal(signal.SIGUSR1)
    assert daemon.stderr is not None
    told = daemon.stderr.readline()
    assert "io_uring fails: clients are served by epoll from now on" in told
    assert "io_uring_enter(the loop): EBADF" in told


@pytest.mark.needs("uring-transport")
def test_a_ring_that_fails_costs_no_job(tmp_path: Path) -> None:
    """The daemon goes on by epoll: what runs is answered, connections stay, and new ones are taken."""
    where = str(tmp_path / "s")
    with failing(where, "io_uring_enter") as daemon, leeward.Client(where) as idle, leeward.Client(where) as client, \
            leeward.Client(where) as other, ThreadPoolExecutor() as threads:
        assert "uring" == client.status()["transport"]
        assert b"1\n" == idle.execute("print(1)").stdout
        begun, failed = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            assert failed.wait(PATIENCE)

        running = threads.submit(client.execute, HELD, collect=["*"], functions={"hold": hold}, timeout=60.0)
        assert begun.wait(PATIENCE)
        session = other.session()
        session.execute("kept = 5")
        fail(daemon)
        failed.set()
        after = [idle.execute(f"print({number})").stdout_text for number in range(20)]
        with leeward.Client(where) as new:
            assert "socket" == new.status()["transport"]
            assert 3_000_001 == len(new.execute("print('x' * 3_000_000)").stdout)
        kept = session.execute("print(kept)").stdout
        session.close()
        result = running.result(PATIENCE)

    assert [f"{number}\n" for number in range(20)] == after
    assert b"5\n" == kept
    assert (b"done\n", {"answer": b"42"}) == (result.stdout, result.files)


@pytest.mark.needs("uring-transport")
def test_a_ring_that_cannot_even_be_cancelled_costs_the_connections_in_it(tmp_path: Path) -> None:
    """Nobody knows what the kernel still does with them, so they are shut down; the daemon serves on."""
    where = str(tmp_path / "s")
    with failing(where, "io_uring_enter", "io_uring_register") as daemon, leeward.Client(where) as client, \
            ThreadPoolExecutor() as threads:
        running = threads.submit(client.execute, "import time; time.sleep(60)")
        with leeward.Client(where) as other:
            while not other.status()["workers"]["busy"]:
                pass
        fail(daemon)
        with pytest.raises((leeward.DaemonAway, leeward.NoAnswer)) as lost:
            running.result(PATIENCE)
        with leeward.Client(where) as new:
            assert b"1\n" == new.execute("print(1)").stdout

    assert lost.value.may_have_run


#: Enough that a descriptor for each would show.
JOBS = 10_000 if os.environ.get("LEEWARD_LONG") else 300


def test_the_fast_path_does_not_leak(daemon: LiveDaemon) -> None:
    """Descriptors, and memory beyond what recycled workers and caches explain, after many jobs as after some."""
    def held() -> tuple[int, int]:
        daemon.idle()
        folder = f"/proc/{daemon.process.pid}"
        pages = int(Path(folder, "statm").read_text().split()[1])
        return len(os.listdir(f"{folder}/fd")), pages * os.sysconf("SC_PAGESIZE")

    with daemon.client() as client:
        for _ in range(30):
            client.execute("print('x')")
        descriptors, memory = held()
        for number in range(JOBS):
            # Every tenth has something to tell, and is handed over.
            client.execute("print('x')" if number % 10 else "raise SystemExit(3)")
        after = held()

    # On version 1 hierarchies a worker keeps up to three groups for later jobs, 14 descriptors each; a leak would be
    # one for every job.
    assert after[0] - descriptors < 100
    assert after[1] - memory < 4 << 20
