"""Which process is at the other end of a Unix socket."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leeward.spec.peers import _is_below, credentials, is_outside, said_of_peer, shares_namespaces


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def below() -> Iterator[int]:
    """A process two generations below this one, whose name looks like the fields behind it."""
    made = subprocess.Popen([sys.executable, "-c", """
import os, sys
if os.fork():
    os.wait()
else:
    open("/proc/self/comm", "w").write("a) S 1 (b")
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with made:
        yield int(made.stdout.readline())
        made.stdin.close()


def test_a_peer_is_known_by_its_process(pair):
    assert (os.getpid(), os.geteuid(), os.getegid()) == credentials(pair[0])
    assert said_of_peer(pair[0], os.getpid(), is_outside)
    assert not said_of_peer(pair[0], os.getpid(), lambda pid: False)


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, ValueError])
def test_a_peer_of_which_nothing_can_be_found_out_is_refused(pair, error):
    def about(pid: int) -> bool:
        raise error

    assert not said_of_peer(pair[0], os.getpid(), about)


def test_a_peer_isnt_judged_without_a_descriptor(pair):
    """The caller says that it may come again."""
    def about(pid: int) -> bool:
        raise OSError(errno.EMFILE, "too many open files")

    with pytest.raises(OSError, match="too many"):
        said_of_peer(pair[0], os.getpid(), about)


def test_a_peer_that_has_ended_is_refused(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        subprocess.run([sys.executable, "-c", connect, tmp_path / "s"], check=True)
        connected, _ = listening.accept()
    with connected:
        assert not said_of_peer(connected, credentials(connected)[0], lambda pid: True)


def test_a_process_is_below_those_that_made_it(below):
    assert _is_below(below, os.getpid())
    assert _is_below(below, os.getppid())
    assert not _is_below(os.getpid(), below)
    assert not _is_below(1, os.getpid())
    assert shares_namespaces(below, "pid", "net")
    assert is_outside(below)  # it is no sandbox: it has no pid namespace of its own
