"""The system calls that the daemon makes for a request, and for many at once, over each transport."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from kit import features, reactors, skip_policy
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.waiting import poll_until
from leeward.wire.frames import FrameReader, encode

pytestmark = pytest.mark.needs("strace")


class Traced:
    """
    The calls of a daemon's main thread while something goes on; each waits twice
    for strace to get a processor, so on a busy machine a daemon that ends while it is traced takes minutes.
    """

    def __init__(self, daemon: LiveDaemon, file: Path) -> None:
        self._file = file
        # Attached when it says so; -yy names what each descriptor is.
        self._strace = subprocess.Popen(["strace", "-yy", "-o", file, "-p", str(daemon.process.pid)],
                                        stderr=subprocess.PIPE, text=True)
        assert self._strace.stderr is not None
        said = self._strace.stderr.readline()
        assert "attached" in said, said

    def __enter__(self) -> Traced:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._strace.send_signal(signal.SIGINT)
        self._strace.communicate(timeout=PATIENCE)

    def so_far(self) -> list[str]:
        """Whole lines: it writes out each as the call returns; all of them behind the block."""
        return self._file.read_text(errors="replace").rpartition("\n")[0].splitlines()


def names(calls: list[str]) -> Counter[str]:
    return Counter(found[1] for call in calls if (found := re.match(r"(\w+)\(", call)))


#: What the loop waits by.
WAITS = ("epoll_wait(", "io_uring_enter(")


@pytest.mark.needs("uring-transport")
def test_the_ring_does_all_of_a_connection(tmp_path: Path) -> None:
    """No wait, accept, receive or send of the daemon's own; its channels to keepers and runners are no connections."""
    with LiveDaemon(tmp_path, "--pool-size", "2", "--io=uring") as daemon:
        with daemon.client() as client:
            client.execute("print(1)")
        with Traced(daemon, tmp_path / "calls") as traced, daemon.client() as client:
            for _ in range(count := 10):
                assert b"1\n" == client.execute("print(1)").stdout
        calls = traced.so_far()

    seen = names(calls)
    assert seen["io_uring_enter"] > count
    assert not {"epoll_wait", "epoll_pwait", "accept", "accept4", "recvfrom", "sendto"} & set(seen)
    own = re.compile(r"(recvmsg|sendmsg|read|write|readv|writev)\(\d+<UNIX-STREAM")
    assert [] == [call for call in calls if own.match(call)]


@pytest.mark.parametrize("way", reactors.WAYS)
def test_calls_for_a_batch_of_questions(way: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """
    Thirty-two requests that came together: one call to hear of them. The ring's turn ends with all their answers
    handed in; a socket takes a call for each.
    """
    tmp_path = tmp_path_factory.mktemp("b")  # a socket's path has 107 bytes
    with (LiveDaemon(tmp_path, "--pool-size", "1", *reactors.OPTIONS[way]) as daemon,
          socket.socket(socket.AF_UNIX) as sock):
        sock.settimeout(PATIENCE)
        sock.connect(str(daemon.socket))
        daemon.idle()
        with Traced(daemon, tmp_path / "calls") as traced:
            sock.sendall(b"".join(encode({"v": 1, "id": number, "op": "ping"}) for number in range(1, 33)))
            reader, got = FrameReader(), []
            while len(got) < 32:
                got += reader.feed(sock.recv(1 << 16))
        if reactors.URING != way:
            poll_until(lambda: 32 <= names(traced.so_far())["sendmsg"], "strace tells of the last answer, too")
        calls = traced.so_far()

    if reactors.URING == way:
        # One hands in all answers; another may have asked for a timer's descriptor meanwhile.
        assert 1 <= len([call for call in calls if re.match(r"io_uring_enter\(.*\) += [1-9]", call)]) <= 2, calls
    else:
        moved = names([call for call in calls if re.match(r"(recvfrom|sendmsg)\(\d+<UNIX-STREAM.*\) = [1-9]", call)])
        assert {"recvfrom": 1, "sendmsg": 32} == moved, calls


def ways(calls: Sequence[str]) -> list[list[str]]:
    """
    What was called for each job that went by the fast path, from the wait in which its request came to its answer;
    without the looks at its pipes, of which there are the more the longer it takes.
    """
    found = []
    for at, call in enumerate(calls):
        if call.startswith("writev("):
            first = max((before for before in range(at) if calls[before].startswith(WAITS)), default=at)
            replied = next((after for after in range(at, len(calls)) if calls[after].startswith("read(")), len(calls))
            # The ring's answer goes out by the enter of the next wait, or by one of its own before that.
            last = next((after for after in range(replied, len(calls))
                         if calls[after].startswith(("sendto(", "io_uring_enter("))), None)
            if last is not None:
                found.append([*calls[first:at + 1], *until_reply(calls[at + 1:replied]), *calls[replied:last + 1]])
    return found


def until_reply(calls: Sequence[str]) -> list[str]:
    """Between a job and its reply: a wait that ended in a look at its pipes, and the next, are one."""
    kept: list[str] = []
    for call in calls:
        if "FIONREAD" not in call and not (call.startswith(WAITS) and kept and kept[-1].startswith(WAITS)):
            kept.append(call)
    return kept


@pytest.fixture
def fast_path_calls() -> None:
    """It reads what a job has used from control files; without controllers every job goes Python's way."""
    if not features.is_met("cgroup-v2-controllers"):
        skip_policy.require("cgroup-v1-controllers", "root")


#: Of a request on the fast path: to hear of it, pass it on and hear of the reply 3 or 4; to read the reply 1; to see
#: what waits in two pipes and stands in four control files 6; to read its output 1; and to answer 1.
FAST_PATH = {reactors.URING: 12, reactors.EPOLL: 13}

#: Beside the waits: of everything, its record, the end of its runner, and the arming of another included.
WHOLE = 90


@pytest.mark.usefixtures("fast_path_calls")
@pytest.mark.parametrize("way", reactors.WAYS)
def test_calls_for_a_request(way: str, tmp_path: Path) -> None:
    """
    One request at a time, when all that those before have left to do is done, and a runner on offer for each: the calls
    before its answer, for which the client waits, and all.
    """
    count = 8
    with (LiveDaemon(tmp_path, "--pool-size", str(count), "--spares=0", *reactors.OPTIONS[way]) as daemon,
          daemon.client() as client):
        daemon.idle()
        asked = 0
        with Traced(daemon, tmp_path / "calls") as traced:
            # One that takes longer than 5 ms is taken back, as happens on a host with other work: others are asked then.
            while asked < count or (len(ways(traced.so_far())) <= count // 2 and asked < 10 * count):
                assert b"1\n" == client.execute("print(1)").stdout
                asked += 1
                daemon.idle()
        calls = traced.so_far()

    short = [len(each) for each in ways(calls)]
    assert len(short) > count // 2, names(calls)
    # The least of them: the end of a connection that asked whether it is idle may come between.
    assert min(short) <= FAST_PATH[way], ways(calls)
    # Asking whether it is idle isn't counted; the answer has the daemon's number.
    asking = (*WAITS, "accept4(", "getpid(")
    own = [call for call in calls if not call.startswith(asking) and "<UNIX-STREAM" not in call]
    assert len(own) / asked <= WHOLE, names(own)


@pytest.mark.usefixtures("fast_path_calls")
@pytest.mark.parametrize("way", reactors.WAYS)
def test_calls_for_a_batch_of_jobs(way: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Thirty-two jobs that came together, and a runner on offer for each: heard of by one call, and each passed on by one."""
    many = 32
    tmp_path = tmp_path_factory.mktemp("j")  # a socket's path has 107 bytes
    with (LiveDaemon(tmp_path, "--pool-size", str(many), "--spares=0", *reactors.OPTIONS[way]) as daemon,
          socket.socket(socket.AF_UNIX) as sock):
        sock.settimeout(PATIENCE)
        sock.connect(str(daemon.socket))
        daemon.idle()
        with Traced(daemon, tmp_path / "calls") as traced:
            sock.sendall(b"".join(encode({"v": 1, "id": number, "op": "execute", "code": b"print(1)"})
                                  for number in range(1, many + 1)))
            reader, got = FrameReader(), []
            while len(got) < many:
                got += reader.feed(sock.recv(1 << 16))
        calls = traced.so_far()

    at = [number for number, call in enumerate(calls) if call.startswith("writev(")]
    assert many == len(at), names(calls)
    assert list(range(at[0], at[0] + many)) == at  # nothing else between the first and the last
    answers = names(calls)["sendto" if reactors.EPOLL == way else "io_uring_enter"]
    assert answers <= 3 * many, names(calls)
