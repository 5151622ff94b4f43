"""What a newborn runner may say, in which order, and what becomes of the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kit.reference_reactor import ReferenceReactor
from leeward.daemon.run import runner as births
from leeward.daemon.run.runner import Runner
from leeward.errors import LeewardError
from leeward.isolation.channel import Channel
from leeward.spec.limits import Limits
from leeward.wire import control

NUMBER = 7


class Denials:
    """A supervisor that takes listeners, and refuses one if it is told to."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.refuses = False

    def add(self, listener: int, job: int, *, checking: bool = False, of: int = 0) -> None:
        os.close(listener)
        if self.refuses:
            raise LeewardError("no room")
        self.taken.append(job)

    def remove(self, job: int) -> dict[str, int]:
        return {}


class Birth:
    """The daemon's side of a birth, and the runner's end of its channel."""

    def __init__(self) -> None:
        self.reactor = ReferenceReactor()
        here, self.there = Channel.pair()
        here.socket.setblocking(False)
        self.denials = Denials()
        leaf: Any = None
        denials: Any = self.denials
        self.runner = Runner(NUMBER, leaf, here, denials, lambda: 0, Limits().descriptors)
        self.told: list[object] = []
        births.attend(self.reactor, self.runner, lambda runner: self.told.append("born"),
                      lambda *failure: self.told.append(failure))
        self.reactor.turn(0.0)

    def say(self, message: control.Message, *fds: int) -> None:
        self.there.send(message, fds)
        self.reactor.turn(0.0)

    def close(self) -> None:
        births.stop_listening(self.reactor, self.runner)
        births.stop_listening(self.reactor, self.runner)  # harmless
        self.runner.dispose()
        self.reactor.close()
        if self.there.fileno() >= 0:
            self.there.close()


@pytest.fixture
def birth() -> Iterator[Birth]:
    made = Birth()
    yield made
    made.close()


@pytest.fixture
def descriptor() -> Iterator[Callable[[], int]]:
    """Makes one to be sent, and sees at the end that nobody else has it."""
    ends: list[int] = []

    def make() -> int:
        read, write = os.pipe()
        ends.append(read)
        return write

    yield make
    for read in ends:
        os.set_blocking(read, False)
        assert b"" == os.read(read, 1)  # EAGAIN where the other end is open somewhere
        os.close(read)


def sent(birth: Birth, message: control.Message, *fds: int) -> None:
    birth.say(message, *fds)
    for fd in fds:
        os.close(fd)


def test_locked_then_ready(birth: Birth, descriptor: Callable[[], int]) -> None:
    sent(birth, control.Locked(), descriptor())
    assert (True, False, []) == (birth.runner.locked, birth.runner.checked, birth.told)

    sent(birth, control.Ready({"landlock": "ABI 6"}))

    assert (["born"], {"landlock": "ABI 6"}, [NUMBER]) == (birth.told, birth.runner.report, birth.denials.taken)
    assert birth.runner.birth is None


def test_a_listener_and_the_jobs_tmpfs(birth: Birth, descriptor: Callable[[], int]) -> None:
    sent(birth, control.Locked(), descriptor(), descriptor())

    assert birth.runner.locked
    birth.runner.dispose()


def test_a_lock_has_no_more_than_its_listener(birth: Birth, descriptor: Callable[[], int]) -> None:
    sent(birth, control.Locked(), *(descriptor() for _ in range(3)))

    assert ([(NUMBER, "", "the runner says Locked")], False) == (birth.told, birth.runner.locked)


def test_a_lock_needs_its_listener(birth: Birth) -> None:
    """Where the daemon has no descriptor left the kernel cuts it off: the runner fails, and isn't to blame."""
    sent(birth, control.Locked())

    assert ([(NUMBER, "seccomp", "its listener did not arrive: no descriptor was left")], False, True) == (
        birth.told, birth.runner.locked, birth.runner.cut)


def test_ready_before_the_lock_is_a_failure(birth: Birth) -> None:
    sent(birth, control.Ready({}))

    assert ([(NUMBER, "", "the runner says Ready")], False) == (birth.told, birth.runner.checked)


def test_unexpected_descriptors_of_a_message_are_closed(birth: Birth, descriptor: Callable[[], int]) -> None:
    sent(birth, control.Locked(), descriptor())
    sent(birth, control.Ready({}), descriptor(), descriptor())

    assert ["born"] == birth.told


@pytest.mark.parametrize("locked", [False, True])
def test_a_failed_step_is_reported(birth: Birth, descriptor: Callable[[], int], locked: bool) -> None:
    if locked:
        sent(birth, control.Locked(), descriptor())

    sent(birth, control.Failed(-1, "rehearsal", "no"), descriptor())

    assert [(NUMBER, "rehearsal", "no")] == birth.told
    assert birth.runner.birth is None


def test_a_listener_that_the_supervisor_refuses_fails_the_birth(birth: Birth, descriptor: Callable[[], int]) -> None:
    birth.denials.refuses = True

    sent(birth, control.Locked(), descriptor())

    assert ([(NUMBER, "seccomp", "no room")], False) == (birth.told, birth.runner.locked)


@pytest.mark.parametrize("raw", [None, b"\xff" * 20], ids=["the end", "garbage"])
def test_a_runner_that_ends_or_breaks_the_protocol(birth: Birth, raw: bytes | None) -> None:
    if raw is not None:
        birth.there.socket.send(raw)
    else:
        birth.there.close()

    birth.reactor.turn(0.0)

    assert [(NUMBER, "", "the runner went before it was ready")] == birth.told


def test_no_message_is_reported_after_stop_listening(birth: Birth) -> None:
    births.stop_listening(birth.reactor, birth.runner)

    birth.reactor.turn(0.0)

    assert [] == birth.told
