"""
The home of a sandbox, with the names that it hides, protects or pins, and the egress policies that a request may
narrow.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from leeward.daemon.config import Config
from leeward.errors import BadRequest, Forbidden
from leeward.sandboxes.mounting import Mounts
from leeward.spec.profiles import AGENT, may_have_home
from leeward.spec.profiles.agent import HomePlan, home_plan, without_home
from leeward.spec.sandbox import SandboxSpec
from leeward.wire.requests import Execute, SessionOpen
from leeward.wire.sandbox_requests import SandboxOpen

# Imported in functions: what not every start needs; 4 ms of processor time for all of it.


def plan(request: SandboxOpen, spec: SandboxSpec | None, config: Config) -> HomePlan | None:
    """
    Return the home that *request* asks for, or None; BadRequest if the profile has none, or it can't be made. A request
    for `agent` always asks for one. With a profile without homes names can be protected and pinned. *spec* is the
    profile's.
    """
    if not may_have_home(request.profile, config.profiles):
        if request.user or request.hide:
            raise BadRequest(f"user and hide are of the profile {AGENT!r}, and of those with a home as it has")
        return without_home(request.protect, request.pin, request.mounts)
    if not (request.home or request.user or request.hide or request.profile == AGENT):
        return without_home(request.protect, request.pin, request.mounts)
    assert spec is not None, "a profile with a pool of its own"
    return home_plan(request.home, request.user, request.hide, request.protect, request.mounts, spec.view, spec.uid,
                     request.pin)


def operators(request: SandboxOpen | SessionOpen | Execute, user: int, config: Config) -> Mapping[str, Any]:
    """
    Return the policies of egress that *request* may narrow: the configuration's. For profiles with a home the daemon's
    own user may also narrow a policy `agent`, unless the configuration has one: without a sandbox this user reaches as
    much. For others `agent` stands for what `allow_network` gives to all, and they have to narrow it, as a sandbox
    without a policy of its own would get the pool's, meant for the daemon's user. Forbidden without these.
    """
    if request.egress != AGENT or AGENT in config.egress or not may_have_home(request.profile, config.profiles):
        return config.egress
    from leeward.spec.egress import AGENT as OWN
    from leeward.spec.egress import NETWORK

    if user == os.geteuid():
        return {**config.egress, AGENT: OWN}
    if not config.allow_network or config.egress.get(NETWORK.name, NETWORK) != NETWORK:
        raise Forbidden(f"this daemon runs as user {os.geteuid()}, and its operator lets the agents of others reach"
                        " nothing: that takes [egress.agent], or allow_network = true without [egress.network], in its"
                        " configuration")
    if not request.policy:
        raise Forbidden(f"this daemon runs as user {os.geteuid()}: others name the hosts of their agents, by a policy")
    return {**config.egress, AGENT: NETWORK}


def with_home(mounts: Mounts | None, home: HomePlan, user: tuple[int, int]) -> Mounts:
    made = mounts or Mounts((), [], user, [], 0, [])
    made.home = home
    return made
