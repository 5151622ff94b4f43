"""What a start does before it is decided what confines jobs: it makes no worker, and all of it can be taken back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kit.box import MISSING, PATIENCE_S, Box
from kit.live_daemon import descendants
from kit.reference_reactor import ReferenceReactor
from leeward.daemon.pool import confinement
from leeward.daemon.pool.begin import Bootstrap, Patience, Settings, begin
from leeward.daemon.pool.engine import Engine
from leeward.errors import LeewardError, Unsupported
from leeward.isolation.channel import Channel
from leeward.wire import control

SETTINGS = Settings(pool_size=1, allow_degraded=MISSING)


@pytest.fixture
def bootstrap() -> Iterator[Bootstrap]:
    made = begin(SETTINGS)
    try:
        yield made
    finally:
        made.close()


def test_a_zygote_that_is_not_taken_is_killed_and_reaped() -> None:
    """A second close has no effect."""
    before = set(descendants(os.getpid()))
    made = begin(SETTINGS)
    assert 1 == len(set(descendants(os.getpid())) - before)  # control: there is one
    made.close()
    made.close()

    assert not set(descendants(os.getpid())) - before


def test_an_order_before_the_plan_ends_the_zygote(bootstrap: Bootstrap) -> None:
    """
    A zygote takes the first message for its workers' plan. A message that isn't one ends it, as the end of its
    channel does.
    """
    hatched = bootstrap.take()
    here, there = Channel.pair()
    try:
        hatched.channel.send(control.MakeKeeper(0, into=False, attach=0), [there.fileno()])
        hatched.channel.socket.settimeout(PATIENCE_S)
        answer = hatched.channel.receive()
        while answer is not None and isinstance(answer[0], control.Importing):
            answer = hatched.channel.receive()

        assert answer is None or isinstance(answer[0], control.Failed)
        assert hatched.process.wait()
    finally:
        hatched.end()
        bootstrap.driver.close()
        here.close()
        there.close()


def test_a_zygote_without_a_plan_ends_with_its_daemon(bootstrap: Bootstrap) -> None:
    """Its channel's end is enough."""
    hatched = bootstrap.take()
    try:
        hatched.channel.close()

        assert 0 == hatched.process.wait()
    finally:
        hatched.end()
        bootstrap.driver.close()


def test_a_filter_that_cant_be_had_ends_the_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun by then, and has made no worker."""
    def fails(**_host: object) -> None:
        raise Unsupported("seccomp", have="riscv64", need="x86_64")

    before = set(descendants(os.getpid()))
    monkeypatch.setattr(confinement, "filters", SimpleNamespace(program=fails))
    reactor = ReferenceReactor()
    engine = Engine(reactor, SETTINGS, Box().log)
    with pytest.raises(LeewardError, match="seccomp: have riscv64"):
        engine.start()
    reactor.close()

    assert not hasattr(engine, "pool")
    assert not set(descendants(os.getpid())) - before


def test_an_engine_takes_the_zygote_that_was_begun(bootstrap: Bootstrap) -> None:
    """The same zygote makes the engine's workers, and closing the beginning no longer touches it."""
    process = bootstrap._hatched.process if bootstrap._hatched is not None else None
    reactor = ReferenceReactor()
    engine = Engine(reactor, SETTINGS, Box().log, bootstrap=bootstrap)
    engine.start()
    bootstrap.close()
    try:
        assert process is not None
        assert process.poll() is None
        assert engine.main.zygotes.current is not None
        assert process is engine.main.zygotes.current.process
    finally:
        engine.close()
        reactor.close()


def test_a_start_that_fails_has_closed_and_a_second_close_is_harmless() -> None:
    """Whoever has the engine closes it in any case. What is closed twice in C is an abort, or never ends."""
    before = set(descendants(os.getpid()))
    reactor = ReferenceReactor()
    engine = Engine(reactor, replace(SETTINGS, patience=Patience(start=0.0)), Silent())
    try:
        with pytest.raises(LeewardError, match="no worker was ready within 0 s"):
            engine.start()
        engine.close()
    finally:
        reactor.close()

    assert not set(descendants(os.getpid())) - before


class Silent:
    """A log that nobody reads."""

    details = False

    def debug(self, event: str, /, **fields: object) -> None:
        return

    info = warning = error = debug
