"""What becomes of a sandbox with copies of folders whose program has gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

import pytest

from kit.reference_reactor import ReferenceReactor
from kit.unclosed import close_garbage
from leeward.daemon.sandboxes import parting
from leeward.daemon.sandboxes.mounting import Mounts
from leeward.daemon.sandboxes.parting import Parting
from leeward.daemon.sandboxes.registry import State
from leeward.daemon.sandboxes.sandbox import LiveSandbox
from leeward.errors import LeewardError
from leeward.spec.folders import Folder


class Copy:
    """A sandbox with two overlays, whose porter answers with the next of *answers*; one that is an error can't start."""

    def __init__(self, *answers: int | LeewardError, present: int = 0) -> None:
        self.state, self._answers, self._present = State.OPEN, [*answers], present
        self.told = list[str | bool]()

    @property
    def present(self) -> int:
        self._present -= 1
        return max(0, self._present + 1)

    def end_processes(self) -> None:
        self.told.append("end")

    def carry(self, order: dict[str, Any], fds: list[int], answered: Callable[..., None], seconds: float) -> None:
        os.fstat(fds[1])
        self.told.append(f"ask {order['number']}")
        what = self._answers.pop(0)
        if isinstance(what, LeewardError):
            raise what
        answered({"rows": what} if what >= 0 else LeewardError("it has ended"), [])


def parted(copy: Copy) -> list[str | bool]:
    close_garbage()
    reactor, before = ReferenceReactor(), len(os.listdir("/proc/self/fd"))
    folders = tuple(Folder(path="/", target=target, overlay=True) for target in ("/a", "/b"))
    mounts = Mounts(folders, [], (0, 0), [(1, 1)] * 2, 0, [-1, -1])
    Parting(reactor, cast("LiveSandbox", copy), mounts, copy.told.append)
    reactor.after(0.2, lambda: copy.told.append("late"))
    reactor.run(lambda: not isinstance(copy.told[-1], str) or copy.told[-1] == "late")
    reactor.close()
    assert len(os.listdir("/proc/self/fd")) < before
    return copy.told


@pytest.mark.parametrize(("answers", "told"), [
    ((0, 0), ["end", "ask 1", "ask 0", False]), ((0, 3), ["end", "ask 1", "ask 0", True]), ((1,), ["end", "ask 1", True]),
    ((-1,), ["end", "ask 1", True]), ((LeewardError("no room"),), ["end", "ask 1", True])])
def test_a_copy_stays_unless_it_is_known_to_have_no_changes(answers: tuple[int | LeewardError, ...],
                                                            told: list[str | bool]) -> None:
    assert told == parted(Copy(*answers))


def test_processes_are_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parting, "SETTLE_S", 0.1)
    assert ["end", "ask 1", True] == parted(Copy(1, present=1 << 30))


def test_nothing_is_decided_about_one_that_is_over() -> None:
    class Over(Copy):
        def carry(self, *given: Any) -> None:
            self.state = State.OVER
            super().carry(*given)

    assert ["end", "ask 1", "late"] == parted(Over(1))
