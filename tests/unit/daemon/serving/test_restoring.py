"""Sandboxes of an earlier daemon: one that can't be used costs itself alone, and never the start."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kit.reference_reactor import ReferenceReactor
from leeward._native.memfd import memory_file
from leeward.base.dataclass import replace
from leeward.daemon.config import Config
from leeward.daemon.sandboxes.last_uses import LastUses
from leeward.daemon.sandboxes.sleep_folder import Asleep, SleepFolder
from leeward.daemon.sandboxes.terms import SandboxFacts
from leeward.daemon.serving.restoring import place_again, restore
from leeward.errors import BadRequest, Busy, Forbidden
from leeward.spec.limits import CEILINGS, GIB, MIB, Limits
from leeward.spec.pool_key import MAIN_POOL, PoolKey
from leeward.spec.profiles import Profile

NAMES = [letter * 26 for letter in "abcd"]


@pytest.mark.parametrize("record", [1, {}, {"made_on": 1}, {"made_on": {"kernel": "another"}}])
def test_what_cannot_be_used_is_removed(tmp_path: Path, record: Any) -> None:
    reactor, server = ReferenceReactor(), Mock()
    server.desk.last_uses = LastUses(reactor)
    server.reactor, server.config.sleep_size = reactor, 1 << 20
    tmp_path.chmod(0o700)
    restore(server, str(tmp_path / "sleep"), "/socket")
    folder: SleepFolder = server.desk.sleepers
    said: list[object] = []
    for name in NAMES:
        what = Asleep({}, memory_file("files"), 0)
        folder.put(name, 7, record, what, said.append)
        what.close()
    while len(said) < len(NAMES):
        reactor.turn(1.0)
    folder.close()
    restore(server, str(tmp_path / "sleep"), "/socket")
    folder = server.desk.sleepers
    server.desk.restore.assert_not_called()
    folder._writer.order(partial(os.listdir, folder._folder), said.append)  # after the removals
    while len(said) == len(NAMES):
        reactor.turn(1.0)
    assert ["lock"] == said[-1]
    folder.close()
    reactor.close()


def woken(config: Config, *, key: PoolKey = MAIN_POOL, most: int = 2, **limits: Any) -> Limits:
    """The limits with which a sandbox wakes, of a user who has another one awake."""
    server, facts = Mock(config=config), SandboxFacts(Limits(cuts_output=True, **limits), key=key)
    server.desk.of.return_value = [Mock(sandbox=Mock(seat=seat)) for seat in (None, 1)]
    server.quotas.of.return_value.sandboxes = most
    server.place.return_value.settings.limits, server.place.return_value.spec.seal = config.limits, None
    asleep = replace(facts.limits)
    try:
        place_again(server, 1 + os.geteuid(), Mock(facts=facts))
    except BaseException:
        assert asleep == facts.limits
        raise
    return facts.limits


def test_a_sandbox_wakes_with_what_it_could_be_opened_with_now() -> None:
    """Limits that nobody can ask for are of now."""
    assert Limits(memory=GIB, cuts_output=True) == woken(Config(), memory=GIB)
    today = replace(Limits(), cpu=50, cpu_time=1.0, time=20.0)
    assert replace(today, memory=32 * MIB, time=30.0, cuts_output=True) == woken(
        Config(limits=today), memory=32 * MIB, cpu=400)
    with pytest.raises(Busy, match="1 sandboxes of yours are awake"):
        woken(Config(), most=1)
    with pytest.raises(BadRequest, match="below the least"):
        woken(Config(), memory=0)


@pytest.mark.parametrize(("before", "now", "options", "error"), [
    (Config(), Config(ceilings=replace(CEILINGS, memory=GIB)), {"memory": GIB + MIB}, BadRequest),
    (Config(), Config(ceilings=replace(CEILINGS, time=60.0)), {"time": 61.0}, BadRequest),
    (Config(), Config(profiles={"mine": Profile(image="busybox")}), {"key": PoolKey("mine")}, BadRequest),
    (Config(egress={"agent": Mock()}), Config(), {"key": PoolKey("approved", egress="agent")}, Forbidden)])
def test_a_sandbox_sleeps_on_that_could_not_be_opened_now(before: Config, now: Config, options: dict[str, Any],
                                                         error: type[Exception]) -> None:
    woken(before, **options)
    with pytest.raises(error):
        woken(now, **options)
