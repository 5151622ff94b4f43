"""A process that was killed and doesn't end, as the kernel keeps one that waits for a file system which never answers."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kit import reactors
from leeward.daemon.run import live_process as live
from leeward.daemon.run.beside import Interpreter
from leeward.daemon.run.launch import Exit
from leeward.daemon.run.live_process import LiveProcess
from leeward.daemon.run.runner_states import ProcessState
from leeward.isolation.cgroup import descent
from leeward.wire import control


class Stand:
    """A process whose group is killed in vain until `answers`, and its house."""

    def __init__(self) -> None:
        self.reactor = reactors.reactor(reactors.REFERENCE)
        self.child, self.killed, self.gone = os.fork(), 0, 0
        if not self.child:
            signal.pause()
            os._exit(0)
        self.answers = False
        self.ends: list[Exit] = []
        group: Any = SimpleNamespace(kill=self._kill, remove=lambda: self.answers and bool(self.killed))
        runner: Any = SimpleNamespace(pid=1, number=1)
        self.process = LiveProcess(self.reactor, 7, self, runner, group, self._denials(), None, (-1, -1, -1),
                                   on_output=None, on_exit=self.ends.append)

    def _denials(self) -> Any:
        return SimpleNamespace(counts=lambda number: {}, remove=lambda number: None)

    def _kill(self) -> None:
        self.killed += 1

    def process_gone(self, process: LiveProcess) -> None:
        self.gone += 1

    def escaped(self, process: LiveProcess) -> None:
        raise AssertionError("nobody walks here")

    def starts(self) -> None:
        self.process.started(control.Started(7, self.child, 3), os.pidfd_open(self.child))

    def close(self) -> None:
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        self.reactor.close()


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setattr(live, "STUCK_S", 0.05)
    stand = Stand()
    yield stand
    stand.close()


def test_c351_a_process_that_can_not_be_killed_is_reported_all_the_same(stand: Stand) -> None:
    """Once; what the keeper says later about it is taken, and it is left until its group is empty."""
    stand.starts()
    stand.process.kill()
    assert (1, []) == (stand.killed, stand.ends)
    stand.reactor.run(lambda: bool(stand.ends))

    [end] = stand.ends
    assert (None, True) == (end.status, end.stuck)
    assert "a file system that doesn't answer" in end.reason
    assert stand.process.state is ProcessState.LEFT
    stand.process.exited(control.Exited(7, 9))
    assert not stand.gone
    stand.answers = True
    stand.process.kill()
    stand.reactor.run(lambda: bool(stand.gone))
    assert [end] == stand.ends


def test_c351_a_process_that_its_keeper_never_reports_is_reported_all_the_same(stand: Stand) -> None:
    """
    Its folder is in such a file system. It is killed when the keeper reports it after all, and its group isn't given
    up before.
    """
    stand.process.kill()
    stand.reactor.run(lambda: bool(stand.ends))
    assert stand.ends[0].stuck
    stand.answers = True
    stand.process.kill()
    for _ in range(3):
        stand.reactor.turn(0.1)
    assert not stand.gone

    before = stand.killed
    stand.starts()
    assert stand.killed > before
    stand.reactor.run(lambda: bool(stand.gone))
    assert 1 == len(stand.ends)


def test_a_process_that_ends_when_it_is_killed_is_reported_as_the_kernel_says(stand: Stand) -> None:
    """The timer doesn't speak then."""
    stand.starts()
    stand.process.kill()
    stand.process.exited(control.Exited(7, 9))
    stand.answers = True
    stand.reactor.run(lambda: bool(stand.gone))

    assert [(9, False)] == [(end.status, end.stuck) for end in stand.ends]


def test_a_process_that_ends_its_children_is_reported_when_none_is_left(stand: Stand) -> None:
    """They are killed, once."""
    stand.process.ends_children = True
    stand.starts()
    stand.process.exited(control.Exited(7, 0))
    assert (1, []) == (stand.killed, stand.ends)
    stand.answers = True
    stand.reactor.run(lambda: bool(stand.ends))
    assert ([0], 1, 1) == ([end.status for end in stand.ends], stand.killed, stand.gone)


@pytest.mark.parametrize("left", [True, False])
def test_a_process_whose_children_do_not_end_is_reported_all_the_same(stand: Stand, left: bool) -> None:
    """And at once if there are none: then nothing is killed."""
    stand.process.ends_children = True
    stand.starts()
    stand.answers, stand.killed = not left, int(not left)
    stand.process.exited(control.Exited(7, 0))
    assert left is not bool(stand.ends)
    stand.reactor.run(lambda: bool(stand.ends))

    assert ([0], 1) == ([end.status for end in stand.ends], stand.killed)
    stand.answers = True
    stand.process.kill()
    stand.reactor.run(lambda: bool(stand.gone))


def test_a_process_without_a_group_is_killed_once_there_are_descriptors_to_look_for_it(
        stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is stuck meanwhile is reported then."""
    there, tries = descent.key_of, iter(range(3))

    def short(pid: int) -> tuple[int, int]:
        if next(tries, None) is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return there(pid)

    monkeypatch.setattr(descent, "key_of", short)
    monkeypatch.setattr(live, "_AGAIN_S", 0.01)
    leaf = SimpleNamespace(joined=lambda pid: None)
    runner: Any = SimpleNamespace(pid=os.getpid(), number=1, leaf=leaf)
    stand.process.group, stand.process.runner = None, runner
    stand.starts()
    watched = os.pidfd_open(stand.child)
    stand.process.kill()
    stand.process._stuck()
    assert not stand.ends
    stand.reactor.run(lambda: bool(stand.ends))
    assert (stand.child, there(stand.child)[1]) == stand.process.root
    stand.reactor.run(lambda: descent.has_ended(watched))
    os.close(watched)


def test_c351_whoever_has_a_stuck_interpreter_does_not_wait_for_its_group() -> None:
    """As for a job that is past its time, which is answered then; and it is told once."""
    told: list[tuple[int | None, str]] = []
    runner: Any = SimpleNamespace(birth=None, number=7, dispose=lambda: None, listening=False, locked=False)
    leaf: Any = SimpleNamespace(count_end=lambda spent: None)
    loop: Any = reactors.reactor(reactors.REFERENCE)
    terms: Any = None
    interpreter = Interpreter(loop, runner, leaf, terms, lambda runner: None, lambda layer, why: None)
    tenant: Any = SimpleNamespace(emptied=lambda status, reason: told.append((status, reason)))
    interpreter.tenant = tenant
    interpreter.exited(Exit(9))
    assert not told
    interpreter.exited(Exit(None, reason="stuck", stuck=True))

    assert [(None, "stuck")] == told
    interpreter.emptied()
    assert 1 == len(told)
    loop.close()
