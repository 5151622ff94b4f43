"""What a profile gives a pool, within the operator's bounds."""

from __future__ import annotations

from typing import Any

import pytest

from leeward.base.dataclass import names, replace
from leeward.daemon.config import Config, Environment
from leeward.daemon.plans import Plans
from leeward.daemon.pool.begin import Settings
from leeward.spec.limits import ADJUSTABLE, CEILINGS, MIB, Limits
from leeward.spec.pool_key import APPROVED, PoolKey
from leeward.spec.profiles import OURS, Profile

FEW = replace(CEILINGS, memory=300 * MIB, processes=40, time=40.0, output=20 * MIB)


def with_profile(name: str, **config: Any) -> Settings:
    return Plans._with_profile(Settings(), name, Config(ceilings=FEW, **config))


@pytest.mark.parametrize("name", OURS)
def test_no_built_in_profile_passes_the_operators_ceilings(name: str) -> None:
    """Each may be asked for without a word in the configuration."""
    limits = with_profile(name).limits
    assert [] == [each for each in ADJUSTABLE if getattr(limits, each) > getattr(FEW, each)]


def test_the_bound_on_sandboxes_is_the_key_that_sets_it() -> None:
    config = Config(profiles={"own": Profile()}, environments={"env": Environment()})
    plans = Plans(lambda: config, Settings())

    assert ["max_sessions", "`max` of [profiles.own]", "`max` of [profiles.agent]", "`max` of the profile 'shell'",
            "`max` of [environments.env]"] == [
        plans(key).bound for key in (PoolKey(), PoolKey("own"), PoolKey("agent"), PoolKey("shell"),
                                     PoolKey("own", "env"))]


def test_no_profile_of_the_operators_passes_the_ceilings_by_its_base() -> None:
    limits = with_profile("own", profiles={"own": Profile(base=APPROVED, limits={"time": 20.0})}).limits
    assert (300 * MIB, 40, 20.0, 512 * MIB) == (limits.memory, limits.processes, limits.time, limits.files)


@pytest.mark.parametrize("name", ["agent", "approved", "workdir"])
def test_with_guests_a_built_in_profile_has_no_more_than_the_configuration_gives(name: str) -> None:
    """
    Limits without a ceiling are those of [limits] then, and a terminal is the configuration's to give; a table of the
    operator's may say otherwise.
    """
    alone, shared = with_profile(name), with_profile(name, group="users")
    free = {each: most for each in names(Limits) if each not in ADJUSTABLE and (most := getattr(Limits(), each)) is not None}
    assert [] == [each for each, most in free.items() if getattr(shared.limits, each) > most]
    assert not shared.terminal
    assert shared.loopback is alone.loopback
    written = with_profile(name, group="users", profiles={name: OURS[name]})
    assert (alone.limits, alone.terminal) == (written.limits, written.terminal)
    if "workdir" != name:
        assert alone.limits.files > shared.limits.files  # control


def test_a_profile_with_a_home_is_built_in_or_based_on_one() -> None:
    own = {"own": Profile(base="agent"), "other": Profile(base="workdir")}
    assert [True, True, False, True, False] == [
        with_profile(name, profiles=own).with_home for name in ("agent", "approved", "workdir", "own", "other")]
