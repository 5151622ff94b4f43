"""Which policy of egress an agent's sandbox may narrow."""

from __future__ import annotations

import os

import pytest

from leeward.daemon.config import Config
from leeward.daemon.serving import profiles
from leeward.errors import BadRequest, Forbidden
from leeward.spec.egress_policy import AGENT, NETWORK, parse_policy
from leeward.spec.folders import Folder
from leeward.spec.pool_key import PoolKey
from leeward.spec.profiles import Profile
from leeward.spec.profiles.agent import HomePlan
from leeward.wire.requests import Execute, SessionOpen
from leeward.wire.sandbox_requests import SandboxOpen

ME = os.geteuid()
AGENTS = SandboxOpen(1, profile="agent", egress="agent")


def test_the_daemons_own_user_has_a_home_without_a_configuration() -> None:
    assert AGENT == profiles.operators(AGENTS, ME, Config())["agent"]


def test_another_user_has_a_home_only_by_the_operator() -> None:
    with pytest.raises(Forbidden, match="allow_network"):
        profiles.operators(AGENTS, ME + 1, Config())


def test_another_user_gets_the_policy_of_allow_network_by_name() -> None:
    """No private addresses, none of the host's loopback, and not the pool's own policy, which has them."""
    asked = SandboxOpen(1, profile="agent", egress="agent", policy={"allow": ["127.0.0.1"]})
    assert NETWORK == profiles.operators(asked, ME + 1, Config(allow_network=True))["agent"]
    with pytest.raises(Forbidden, match="by a policy"):
        profiles.operators(AGENTS, ME + 1, Config(allow_network=True))
    fewer = parse_policy({"allow": ["a.example"]}, name="network")
    with pytest.raises(Forbidden, match="without"):
        profiles.operators(asked, ME + 1, Config(allow_network=True, egress={"network": fewer}))


def test_the_operators_images_are_others_by_the_operators_word_or_in_a_profile() -> None:
    asked = SandboxOpen(1, image="debian")
    for config, user in ((Config(), ME), (Config(images_shared=True), ME + 1)):
        assert PoolKey(image="debian") == profiles.sandbox_key(asked, user, config)
    with pytest.raises(Forbidden, match="images_shared"):
        profiles.sandbox_key(asked, ME + 1, Config())
    has = Config(profiles={"box": Profile(image="debian")})
    assert PoolKey("box", image="debian") == profiles.sandbox_key(SandboxOpen(1, profile="box"), ME + 1, has)


def test_an_agent_in_an_image_is_never_root() -> None:
    """Whatever the image's user is, and whatever the user of the sandbox is to be called."""
    asked = SandboxOpen(1, profile="agent", image="debian", home="/home/me", user="root")
    assert PoolKey("agent", image="debian", user="1000:1000") == profiles.sandbox_key(asked, ME, Config())
    approved = profiles.sandbox_key(SandboxOpen(1, profile="approved", image="debian", user="root"), ME, Config())
    assert "1000:1000" == approved.user


@pytest.mark.parametrize("request_", [Execute(1, code=b"", profile="agent", egress="agent"),
                                      SessionOpen(1, profile="agent", egress="agent")])
def test_jobs_and_sessions_have_no_more(request_: Execute | SessionOpen) -> None:
    assert AGENT == profiles.operators(request_, ME, Config())["agent"]
    with pytest.raises(Forbidden, match="allow_network"):
        profiles.operators(request_, ME + 1, Config())


def test_the_operators_own_takes_its_place() -> None:
    own = parse_policy({"allow": []}, name="agent")
    for user in (ME, ME + 1):
        assert own == profiles.operators(AGENTS, user, Config(egress={"agent": own}))["agent"]


@pytest.mark.parametrize("request_", [SandboxOpen(1, egress="agent"), SandboxOpen(1, profile="workdir", egress="agent"),
                                      SandboxOpen(1, profile="agent", egress="web")])
def test_the_agents_policy_is_for_its_profile_alone(request_: SandboxOpen) -> None:
    assert {} == profiles.operators(request_, ME, Config())


def test_the_agents_policy_is_for_profiles_with_a_home_as_well() -> None:
    own = Config(profiles={"own": Profile(base="agent")})
    for name in ("approved", "own"):
        asked = SandboxOpen(1, profile=name, egress="agent", policy={"allow": ["a.example"]})
        assert AGENT == profiles.operators(asked, ME, own)["agent"]
        with pytest.raises(Forbidden, match="allow_network"):
            profiles.operators(asked, ME + 1, own)


def test_a_home_is_asked_for() -> None:
    assert profiles.home_of(SandboxOpen(1, profile="approved"), None, Config()) is None


def test_fields_of_other_profiles() -> None:
    assert profiles.home_of(SandboxOpen(1), None, Config()) is None
    for request in (SandboxOpen(1, user="a"), SandboxOpen(1, hide=("/x",))):
        with pytest.raises(BadRequest, match="are of the profile 'agent'"):
            profiles.home_of(request, None, Config())


@pytest.mark.parametrize("profile", ["python", "workdir", "approved"])
def test_names_are_protected_without_a_home(profile: str) -> None:
    folder = Folder("/p", "/workspace", writable=True)
    found = profiles.home_of(SandboxOpen(1, profile=profile, mounts=(folder,), protect=("/workspace/a",),
                                        pin=("/workspace/b",)), None, Config())
    assert HomePlan("", (), (), ("/workspace/a",), ("/workspace/b",)) == found
    for name in ("/x", "/workspace/../x", "/"):
        with pytest.raises(BadRequest, match="lies in no mount"):
            profiles.home_of(SandboxOpen(1, profile=profile, mounts=(folder,), protect=(name,)), None, Config())


@pytest.mark.parametrize("request_", [SandboxOpen(1, egress="network", policy={"allow": []}),
                                      SandboxOpen(1, egress="network", fetch_policy={"allowed_domains": ["a.example"]})])
def test_a_policy_without_a_network_names_the_cure(request_: SandboxOpen) -> None:
    with pytest.raises(BadRequest, match=r"has: none; `allow_network = true` in its configuration lets"):
        profiles.narrowed(request_, {})
