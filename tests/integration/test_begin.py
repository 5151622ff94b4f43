"""
What a start does before it is decided what confines jobs: it makes no worker, and all of it can be taken back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from box import MISSING, PATIENCE_S, Box
from leeward.errors import LeewardError, Unsupported
from leeward.isolation.channel import Channel
from leeward.pool import engine as engine_module
from leeward.pool.begin import Begun, Settings, begin
from leeward.pool.engine import Engine
from leeward.wire import control
from leeward.worker.reactor import Reactor
from live_daemon import descendants

SETTINGS = Settings(pool_size=1, allow_degraded=MISSING)


@pytest.fixture
def begun() -> Iterator[Begun]:
    made = begin(SETTINGS)
    try:
        yield made
    finally:
        made.close()


def test_what_nobody_takes_is_given_back() -> None:
    """
    The zygote is killed and collected; a second time does nothing.
    """
    before = set(descendants(os.getpid()))
    made = begin(SETTINGS)
    assert 1 == len(set(descendants(os.getpid())) - before)  # control: there is one
    made.close()
    made.close()

    assert not set(descendants(os.getpid())) - before


def test_an_order_before_the_plan_makes_nothing(begun: Begun) -> None:
    """
    A zygote takes the first message for its workers' plan. It ends by one that isn't, as by an end of its channel.
    """
    hatched = begun.take()
    here, there = Channel.pair()
    try:
        hatched.channel.send(control.MakeKeeper(0, into=False, attach=0), [there.fileno()])
        hatched.channel.socket.settimeout(PATIENCE_S)
        answer = hatched.channel.receive()

        assert answer is None or isinstance(answer[0], control.Failed)
        assert hatched.process.wait(PATIENCE_S)
    finally:
        hatched.end()
        begun.driver.close()
        here.close()
        there.close()


def test_a_zygote_without_a_plan_ends_with_its_daemon(begun: Begun) -> None:
    """
    Its channel's end is enough.
    """
    hatched = begun.take()
    try:
        hatched.channel.close()

        assert 0 == hatched.process.wait(PATIENCE_S)
    finally:
        hatched.end()
        begun.driver.close()


def test_a_filter_that_cant_be_had_ends_the_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It has begun by then, and has made no worker.
    """
    def fails(**_host: object) -> None:
        raise Unsupported("seccomp", have="riscv64", need="x86_64")

    before = set(descendants(os.getpid()))
    monkeypatch.setattr(engine_module, "filters", SimpleNamespace(program=fails))
    reactor = Reactor()
    engine = Engine(reactor, SETTINGS, Box().log)
    with pytest.raises(LeewardError, match="seccomp: have riscv64"):
        engine.start()
    reactor.close()

    assert not hasattr(engine, "pool")
    assert not set(descendants(os.getpid())) - before


def test_an_engine_takes_what_was_begun(begun: Begun) -> None:
    """
    It is the same zygote that makes its workers, and closing what was begun no longer touches it.
    """
    process = begun._hatched.process if begun._hatched is not None else None
    reactor = Reactor()
    engine = Engine(reactor, SETTINGS, Box().log, begun=begun)
    engine.start()
    begun.close()
    try:
        assert process is not None
        assert process.poll() is None
        assert engine._zygote is not None
        assert process is engine._zygote.process
    finally:
        engine.close()
        reactor.close()
