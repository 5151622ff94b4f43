"""Changes of overlays and copies of them: one at a time in a sandbox, whatever becomes of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.daemon.sandboxes.mounting import LayerChange, Mounts, hide_names, keep
from leeward.daemon.sandboxes.sandbox import LiveSandbox
from leeward.daemon.sandboxes.terms import SandboxFacts
from leeward.errors import Busy, LeewardError
from leeward.spec.folders import Folder
from leeward.spec.limits import Limits


class Box:
    """A sandbox in which nothing runs, whose porters answer when a test says so."""

    running = present = porters = 0
    terms = SimpleNamespace(view=SimpleNamespace(root=None))
    facts = SimpleNamespace(limits=SimpleNamespace(memory=1 << 20))

    def __init__(self) -> None:
        self.asked: list[tuple[str, Callable[[Mapping[str, Any] | LeewardError, list[int]], None]]] = []
        self.fails = self.over = False

    def hold(self) -> None:
        return

    def release(self) -> None:
        return

    def lost(self, _why: str) -> None:
        self.over = True

    def carry(self, order: Mapping[str, Any], _fds: list[int], answered: Any, _seconds: float) -> Any:
        if self.fails:
            raise LeewardError("no process can be started")
        self.asked.append((order["order"], answered))


def answer(box: Box, what: Mapping[str, Any] | LeewardError) -> str:
    order, answered = box.asked.pop()
    answered(what, [])
    return order


@pytest.fixture
def mounts() -> Mounts:
    folders = tuple(Folder(path, path, overlay=True) for path in ("/a", "/b"))
    return Mounts(folders, [], (0, 0), [(0, 0)] * 2, 0, [-1, -1])


def change(box: Box, mounts: Mounts, told: list[object]) -> None:
    """Begin one; the porter is asked at once."""
    turn: list[Callable[[], None]] = []
    reactor: Any = SimpleNamespace(now=lambda: 1.0, after=lambda _seconds, call: turn.append(call))
    LayerChange(reactor, box, mounts, "/a", {"order": "discard", "paths": []}, told.append)
    turn.pop()()


@pytest.mark.parametrize("end", [{"ok": True}, LeewardError("it ended")])
def test_changes_of_a_layer_are_applied_one_at_a_time(mounts: Mounts, end: Mapping[str, Any] | LeewardError) -> None:
    """
    Two copies would have the same name while they are made, and one change would take the other's for its own. The
    same holds of another overlay: a change waits until no process is in the sandbox, and a porter is one.
    """
    told: list[object] = []
    box = Box()
    for begin in (lambda: keep(box, mounts, "/a", "", told.append), lambda: change(box, mounts, told)):
        begin()
        for target in ("/a", "/b"):
            with pytest.raises(Busy):
                keep(box, mounts, target, "other", told.append)
        with pytest.raises(Busy):
            change(box, mounts, told)
        answer(box, end)

    assert [end, end] == told
    assert [] == box.asked
    assert isinstance(end, LeewardError) == box.over
    assert "other" == keep(box, mounts, "/b", "other", told.append)


def test_a_change_that_could_not_begin_is_not_under_way(mounts: Mounts) -> None:
    told: list[object] = []
    box = Box()
    box.fails = True
    with pytest.raises(LeewardError, match="no process"):
        keep(box, mounts, "/a", "", told.append)
    change(box, mounts, told)
    assert "no process" in str(told.pop())
    box.fails = False
    keep(box, mounts, "/a", "", told.append)
    assert "keep" == answer(box, {"ok": True})
    assert ["1"] == mounts.kept["/a"]


def test_a_change_ends_what_commands_have_left_and_waits_for_porters(mounts: Mounts) -> None:
    """One may weigh the root just then, and a sandbox that can't be weighed is ended. None begins before the change ends."""
    now, turn, told = [1.0], list[Callable[[], None]](), list[object]()
    orders, ended = list[tuple[str, Callable[..., None]]](), list[str]()
    reactor: Any = SimpleNamespace(now=lambda: now[0], after=lambda _seconds, call: turn.append(call))
    place: Any = SimpleNamespace(
        withdraw=lambda: None, carry=lambda order, _fds, answered, _seconds: orders.append((order["order"], answered)),
        processes={name: SimpleNamespace(is_porter="porter" == name, kill=partial(ended.append, name))
                   for name in ("left", "porter")})
    sandbox = LiveSandbox(reactor, SandboxFacts(Limits(), {}, {}), Box.terms, lambda _reason, _why: None)  # type: ignore[arg-type]
    sandbox.begin(place)
    LayerChange(reactor, sandbox, mounts, "/a", {"order": "discard", "paths": []}, told.append)
    assert ["left"] == ended
    del place.processes["left"]
    now[0] += 30.0
    turn.pop()()
    assert ([], []) == (orders, told)
    place.processes.clear()
    turn.pop()()
    mounts.covers = 0
    for begin in (partial(sandbox.weigh, told.append), partial(hide_names, sandbox, mounts, ["/a/x"], told.append)):
        with pytest.raises(Busy):
            begin()
    [(_, answered)] = orders
    answered({"ok": True}, [])
    sandbox.weigh(told.append)
    assert ["discard", "weigh"] == [order for order, _ in orders]
    assert [{"ok": True}] == told
