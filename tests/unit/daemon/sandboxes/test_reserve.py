"""The end of sandboxes whose writable folders' file systems have too little space left, or don't answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from kit.reference_reactor import ReferenceReactor
from leeward.daemon.sandboxes import reserve
from leeward.daemon.sandboxes.mounting import Mounts
from leeward.daemon.sandboxes.reserve import MOST, OFTEN, SELDOM, Reserve, WeighedRoot
from leeward.errors import Busy, LeewardError
from leeward.spec.folders import Folder

LEAST = 1000


class Stand:
    """A Reserve, and a file system whose free space the test sets; None is one that doesn't answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reactor = ReferenceReactor()
        self.free: int | None = 5000
        self.ended = dict[str, str]()
        self.waits, self.asked = threading.Event(), list[int]()
        self.reserve = Reserve(self.reactor, lambda user: LEAST + user % 1000, self._end)
        monkeypatch.setattr(os, "fstatvfs", self._asked)

    def _asked(self, fd: int) -> SimpleNamespace:
        os.fstat(fd)
        self.asked.append(fd)
        if self.free is None:
            self.waits.wait()
        free = (self.free or 0) // 10
        return SimpleNamespace(f_bavail=free, f_bfree=free, f_frsize=10, f_ffree=0, f_blocks=0)

    def _end(self, name: str, why: str) -> None:
        self.ended[name] = why
        self.reserve.forget(name)

    def watch(self, name: str, *folders: Folder, user: int = 1000, device: int = 7) -> None:
        trees = [os.open("/", os.O_PATH) for _ in folders]
        mounts = Mounts(folders, trees, (user, user), [(device, 1)] * len(folders), 0, [])
        try:
            self.reserve.watch(name, user, mounts)
        finally:
            mounts.close()

    def until(self, condition: Callable[[], bool]) -> None:
        self.reactor.run(condition)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    made = Stand(monkeypatch)
    yield made
    made.waits.set()
    made.reserve.close()
    made.reactor.close()
    for thread in threads():
        thread.join()


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if "free space" == each.name]


def writable(target: str = "/p") -> Folder:
    return Folder(path="/", target=target, writable=True)


def test_all_that_can_write_to_a_full_file_system_end(stand: Stand) -> None:
    """Others go on: those of another file system, with an overlay, and with a folder that can't be written."""
    stand.watch("one", writable())
    stand.watch("two", Folder(path="/", target="/q"), writable())
    stand.watch("read", Folder(path="/", target="/p"))
    stand.watch("copy", Folder(path="/", target="/p", overlay=True))
    stand.until(lambda: len(stand.asked) > 2)
    assert {} == stand.ended

    stand.free = LEAST - 10
    stand.until(lambda: bool(stand.ended))

    assert dict.fromkeys(("one", "two"), f"990 bytes are free, of {LEAST}") == stand.ended


def test_each_user_has_a_reserve(stand: Stand) -> None:
    """The sandboxes of those who leave more end, and others go on."""
    stand.watch("guest", writable(), user=1200)
    stand.watch("owner", writable())
    stand.free = LEAST + 100
    stand.until(lambda: bool(stand.ended))
    asked = len(stand.asked)
    stand.until(lambda: len(stand.asked) > asked + 2)

    assert {"guest": f"1100 bytes are free, of {LEAST + 200}"} == stand.ended


def test_a_file_system_that_does_not_answer_is_full_and_stops_nothing(stand: Stand,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "LATE_S", 0.2)
    stand.watch("one", writable())
    stand.free = None
    stand.until(lambda: bool(stand.ended))

    assert {"one": "it doesn't answer"} == stand.ended


def test_an_error_is_a_full_file_system(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_fd: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fstatvfs", fails)
    stand.watch("one", writable())
    stand.until(lambda: bool(stand.ended))

    assert ["one"] == list(stand.ended)


def test_a_thread_ends_with_the_last_sandbox_and_closes_its_descriptor(stand: Stand) -> None:
    stand.watch("one", writable())
    stand.watch("two", writable())
    thread, = threads()
    stand.until(lambda: bool(stand.asked))
    fd = stand.asked[0]

    stand.reserve.forget("one")
    assert thread.is_alive()
    stand.reserve.forget("two")
    thread.join()

    with pytest.raises(OSError):
        os.fstat(fd)


def test_one_user_cannot_take_all_threads(stand: Stand) -> None:
    """Also not by file systems that never answer, whose sandboxes are over. Root may have more."""
    stand.free = None
    for device in range(MOST):
        stand.watch(f"s{device}", writable(), device=device)
        stand.reserve.forget(f"s{device}")
    with pytest.raises(Busy):
        stand.watch("more", writable(), device=MOST)
    for user in (0, 1001):
        stand.watch(f"of {user}", writable(), user=user, device=MOST)
    for device in range(MOST + 1):
        stand.watch("root's", writable(), user=0, device=device)


def test_without_a_reserve_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch)
    stand.reserve = Reserve(stand.reactor, lambda user: 0, stand._end)
    stand.watch("one", writable())

    assert [] == threads()


def test_a_root_is_weighed_when_half_of_what_it_may_still_write_has_gone() -> None:
    """Once at a time; again at once where that couldn't begin; and it ends beyond its bound, or when it can't be weighed."""
    mib, asked, ended = 1 << 20, list[Callable[[int | LeewardError], None]](), list[str]()
    root = WeighedRoot(8 * mib, asked.append, ended.append)
    for room in (100 * mib, 97 * mib):
        root.look(room)
    assert [] == asked
    for room in (96 * mib, 50 * mib):
        root.look(room)
    assert 1 == len(asked)
    asked.pop()(7 * mib)
    root.look(95 * mib + 1)
    assert [] == asked
    root.look(95 * mib)
    asked.pop()(8 * mib)
    assert [] == ended
    root.look(94 * mib)
    asked.pop()(8 * mib + 1)
    assert ["it has written 8388609 bytes to its root, of 8388608"] == ended

    root = WeighedRoot(8 * mib, asked.append, ended.append)
    for room in (100 * mib, 200 * mib, 196 * mib):  # others free as much as it writes
        root.look(room)
    asked.pop()

    def refuse(_weighed: object) -> None:
        asked.append(print)
        raise LeewardError("no descriptor")

    root = WeighedRoot(8 * mib, refuse, ended.append)
    for room in (100 * mib, 90 * mib, 90 * mib):
        root.look(room)
    assert 2 == len(asked)
    root = WeighedRoot(8 * mib, lambda weighed: weighed(LeewardError("too deep")), ended.append)
    for room in (100 * mib, 90 * mib):
        root.look(room)
    assert ended.pop().endswith("too deep")


def test_a_root_is_weighed_where_others_free_what_it_writes() -> None:
    """Less and less often while it weighs the same, and as often as at first when it has changed."""
    asked, ended = list[Callable[[int | LeewardError], None]](), list[str]()
    root = WeighedRoot(8 << 20, asked.append, ended.append)

    def looks(weighs: int) -> int:
        """How many until it is weighed, as *weighs* bytes."""
        for number in range(1, 2 * SELDOM):
            root.look(100 << 20)
            if asked:
                asked.pop()(weighs)
                return number
        return 0

    assert [OFTEN, 2 * OFTEN, 4 * OFTEN] == [looks(0) for _ in range(3)]
    assert SELDOM == max(looks(0) for _ in range(5))
    looks(5)
    assert OFTEN == looks(8 << 20)
    assert [] == ended
    looks((8 << 20) + 1)
    assert 1 == len(ended)


def test_a_root_that_cannot_be_weighed_ends_for_want_of_space_alone() -> None:
    """However slowly it takes that: failures by time end nobody, and forgive nothing."""
    asked, ended = list[Callable[[int | LeewardError], None]](), list[str]()
    root = WeighedRoot(8 << 20, asked.append, ended.append)

    def waits(room: int) -> None:
        for _ in range(2 * OFTEN):
            root.look(room)
            if asked:
                asked.pop()(LeewardError("its weigher has ended"))

    for _ in range(5):
        waits(100 << 20)
    waits(98 << 20)
    assert [] == ended
    waits(96 << 20)
    assert ended
