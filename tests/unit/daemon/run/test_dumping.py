"""The daemon's part of a snapshot: what the kernel's child says, and the file that it gets."""

from __future__ import annotations

import _socket
import errno
import fcntl
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import msgpack
import pytest

from kit.reference_reactor import ReferenceReactor
from leeward._native.memfd import memory_file
from leeward.daemon.run import dumping
from leeward.daemon.run.dumping import Dump, KernelState, facts_of
from leeward.errors import Busy, PeerError, SnapshotFailed
from leeward.isolation.channel import Channel
from leeward.wire import job_frames as wire

PAGE = os.sysconf("SC_PAGESIZE")
FACTS = msgpack.packb({"python": "3.11", "packages": {"x": "1"}, "lost": ["descriptor 7: socket"]})
ALL_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Child:
    """The kernel's side: its door, and the descriptors that come by it."""

    def __init__(self) -> None:
        self.reactor = ReferenceReactor()
        self.admitted: list[int] = []
        self.most = 1 << 30
        self.done: list[KernelState | SnapshotFailed] = []
        self.dump = Dump(self.reactor, self._new_file, self.done.append)
        self.door, self.far = Channel.pair()
        self.dump.begin(SimpleNamespace(door=self.door, memory=None, dumped=print))  # type: ignore[arg-type]  # as far as it is used
        with socket.socket(fileno=os.dup(self.far.fileno())) as sock:
            _, (self.orders, self.answers), _, _ = socket.recv_fds(sock, 1, 4)
        self.closed = False

    def _new_file(self, size: int) -> int:
        if size > self.most:
            raise Busy("too much")
        self.admitted.append(size)
        return memory_file("state")

    def says(self, *what: bytes | int) -> None:
        os.write(self.answers, b"".join(struct.pack("q", each) if isinstance(each, int) else each for each in what))
        self.turn()

    def turn(self) -> None:
        for _ in range(8):
            self.reactor.turn(0)

    def file(self) -> int:
        with socket.socket(fileno=os.dup(self.orders)) as sock:
            _, (fd,), _, _ = socket.recv_fds(sock, 1, 1)
        return fd

    def ends(self) -> None:
        os.close(self.answers)
        self.answers = -1
        self.turn()

    def close(self) -> None:
        self.dump.give_up()
        for fd in (self.orders, self.answers):
            if fd >= 0:
                os.close(fd)
        self.door.close()
        self.far.close()
        assert not self.reactor.barrier.faults
        self.reactor.close()


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


def framed(body: bytes) -> bytes:
    return wire.HEADER.pack(len(body)) + body


@pytest.mark.parametrize("free", [0, 1 << 40])
def test_a_large_file_has_all_its_pages_whatever_they_are(child: Child, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Huge ones, which a thread makes, or small ones; and those behind the content go."""
    monkeypatch.setattr(dumping, "free_huge_pages", lambda: free)
    most, size = 20 << 20, (15 << 20) + PAGE
    child.says(framed(FACTS), most)
    while not child.dump._made:
        child.reactor.turn(1.0)
    file = child.file()
    assert most == os.fstat(file).st_size == os.fstat(file).st_blocks * 512
    os.pwrite(file, b"content" * (size // 7), 0)
    child.says(size)
    child.dump.answered("")
    (state,) = child.done
    assert isinstance(state, KernelState)
    assert (size, size) == (os.fstat(state.fd).st_size, os.fstat(state.fd).st_blocks * 512)
    assert b"contentcontent" == os.pread(state.fd, 14, 7 * 700_000)
    os.close(file)
    os.close(state.fd)


def test_a_dump_that_is_given_up_lets_its_thread_end(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has descriptors of its own."""
    waits, made = threading.Event(), threading.Event()
    monkeypatch.setattr(dumping, "free_huge_pages", lambda: 1 << 40)
    monkeypatch.setattr(dumping, "huge_pages", lambda *_: waits.wait() and not made.set())
    before = set(os.listdir("/proc/self/fd"))
    child.says(framed(FACTS), 20 << 20)
    assert 4 == len(set(os.listdir("/proc/self/fd")) - before)
    child.dump.give_up()
    waits.set()
    made.wait()
    for thread in threading.enumerate():
        if thread.name == "makes huge pages":
            thread.join()
    assert not set(os.listdir("/proc/self/fd")) - before


def test_a_state_is_sealed_at_its_size(child: Child) -> None:
    """Whoever answers first, the kernel or its child."""
    child.says(framed(FACTS), 3 * PAGE)
    file = child.file()
    assert 3 * PAGE == os.fstat(file).st_size == os.fstat(file).st_blocks * 512
    os.pwrite(file, b"content", 0)
    child.says(PAGE + 1)
    assert not child.done
    child.dump.answered("")
    (state,) = child.done
    assert isinstance(state, KernelState)
    assert (2 * PAGE, "3.11", {"x": "1"}, ("descriptor 7: socket",)) == (state.size, state.python, state.packages, state.lost)
    assert state.size == os.fstat(state.fd).st_size
    assert ALL_SEALS == ALL_SEALS & fcntl.fcntl(state.fd, fcntl.F_GET_SEALS)
    with pytest.raises(PermissionError):
        os.pwrite(file, b"late", 0)
    assert b"content" == os.pread(state.fd, 7, 0)
    os.close(file)
    os.close(state.fd)


@pytest.mark.parametrize("stays", [False, True])
def test_a_busy_file_is_sealed_a_moment_later(child: Child, stays: bool) -> None:
    """Such as one of which the system's kernel moves a page; one that stays mapped is refused."""
    child.says(framed(FACTS), PAGE)
    file = child.file()
    mapped = mmap.mmap(file, PAGE)
    child.dump.answered("")
    child.says(PAGE)
    assert not child.done
    if not stays:
        mapped.close()
    while not child.done:
        child.reactor.turn(1.0)
    assert isinstance(child.done[0], SnapshotFailed if stays else KernelState)
    mapped.close()
    os.close(file)
    if isinstance(child.done[0], KernelState):
        os.close(child.done[0].fd)


def test_bytes_may_come_in_pieces(child: Child) -> None:
    for each in framed(FACTS) + struct.pack("q", PAGE):
        child.says(bytes([each]))
    assert [PAGE + len(FACTS)] == child.admitted
    child.dump.answered("")
    os.close(child.file())
    child.says(-5, b"/a\x1b[31m\0".ljust(256, b"x"))
    (why,) = child.done
    assert "its memory can't be taken: Input/output error: /a\\x1b[31m" == str(why)


def test_the_kernels_reason_is_told(child: Child) -> None:
    """Not that its child has said nothing."""
    child.ends()
    assert not child.done
    child.dump.answered("CantTake: threads run")
    assert ["CantTake: threads run"] == list(map(str, child.done))


def test_a_child_that_ends_early_is_told(child: Child) -> None:
    child.says(framed(FACTS))
    child.dump.answered("")
    child.ends()
    assert "was killed" in str(child.done[0])


def test_what_is_too_much_is_refused(child: Child) -> None:
    """Before any memory is taken."""
    child.most = PAGE
    child.dump.answered("")
    child.says(framed(FACTS), 2 * PAGE)
    assert "too much" in str(child.done[0])


@pytest.mark.parametrize(("size", "why"), [(0, "more was written"), (2 * PAGE + 1, "more was written")])
def test_a_wrong_size_is_refused(child: Child, size: int, why: str) -> None:
    child.dump.answered("")
    child.says(framed(FACTS), 2 * PAGE)
    os.close(child.file())
    child.says(size)
    assert why in str(child.done[0])


def test_nobody_waits_for_ever(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that says nothing: after a time the dump is given up."""
    child.dump.answered("")
    (timer,) = child.dump._timers
    timer.call()
    assert "took more than" in str(child.done[0])


def test_a_large_file_is_made_in_pieces(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other callbacks have their turn meanwhile, and the child may begin, and even end, before all of it is there."""
    monkeypatch.setattr(dumping, "_PIECE", PAGE)
    soon: list[Callable[[], None]] = []
    monkeypatch.setattr(child.reactor, "soon", soon.append)
    child.dump.answered("")
    child.says(framed(FACTS), 3 * PAGE)
    file = child.file()
    assert (PAGE, 3 * PAGE) == (child.dump._made, os.fstat(file).st_size)
    child.says(PAGE)
    child.ends()
    assert not child.done
    while soon:
        soon.pop()()
    (made,) = child.done
    assert isinstance(made, KernelState)
    os.close(file)
    os.close(made.fd)


def test_a_size_comes_once(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumping, "_PIECE", PAGE)
    monkeypatch.setattr(child.reactor, "soon", lambda call: None)
    child.dump.answered("")
    child.says(framed(FACTS), 3 * PAGE)
    os.close(child.file())
    child.says(PAGE, PAGE)
    assert "twice" in str(child.done[0])


@pytest.mark.parametrize("size", [1 << 10, 1 << 30])
def test_a_files_pages_are_freed_elsewhere_if_they_are_many(size: int) -> None:
    """The loop doesn't wait for that."""
    fd, names = os.memfd_create("x"), []
    close, os_close = threading.Event(), os.close

    def closing(number: int) -> None:
        names.append(threading.current_thread().name)
        os_close(number)
        close.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "close", closing)
        dumping.close_file(fd, size)
        close.wait()
    assert [threading.current_thread().name if size < 1 << 20 else "closes a state"] == names


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xc1", msgpack.packb([]),
                                  msgpack.packb({"python": 1, "packages": {}, "lost": []}),
                                  msgpack.packb({"python": "", "packages": {"a": 1}, "lost": []}),
                                  msgpack.packb({"python": "", "packages": {}, "lost": [b"x"]}),
                                  msgpack.packb({"python": "", "packages": {}, "lost": [""] * 65})])
def test_facts_are_checked(body: bytes) -> None:
    with pytest.raises(PeerError):
        facts_of(body)


@pytest.mark.parametrize("short", ["pipe2", "socketpair"])
def test_without_descriptors_it_fails_and_leaves_none(monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    """By an error that the kernel's request is answered with."""
    reactor = ReferenceReactor()
    dump, before = Dump(reactor, lambda _size: memory_file("state"), print), set(os.listdir("/proc/self/fd"))
    near, far = Channel.pair()
    none = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    monkeypatch.setattr(os if short == "pipe2" else _socket, short, none)
    with pytest.raises(SnapshotFailed, match="too many open files"):
        dump.begin(SimpleNamespace(door=near, memory=None, dumped=print))  # type: ignore[arg-type]  # as far as it is used
    monkeypatch.undo()
    for each in (near, far):
        each.close()
    assert before == set(os.listdir("/proc/self/fd"))
    reactor.close()


def test_what_is_given_up_before_its_turn_is_not_begun() -> None:
    """Its file would be closed by nobody."""
    reactor = ReferenceReactor()
    near, far = Channel.pair()
    dump = Dump(reactor, lambda _size: memory_file("state"), print)
    dump.give_up()
    with pytest.raises(SnapshotFailed):
        dump.begin(SimpleNamespace(door=near, memory=None, dumped=print))  # type: ignore[arg-type]  # as far as it is used
    dump.answered("nobody waits for it any more")
    far.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        far.socket.recv(1)
    for each in (near, far):
        each.close()
    reactor.close()
