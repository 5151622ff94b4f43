"""
What a request may have by its profile: a view of the host, a home, names hidden or protected, and policies of egress.

What a client says of its folders only makes more names hidden; a home and the names in it are in the sandbox's own
mounts. Policies that clients send are put within the operator's (decision 0061).
"""

from __future__ import annotations

import functools
import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leeward.daemon.config import Config
from leeward.daemon.pool.ways_out import unsourced
from leeward.daemon.sandboxes.mounting import Mounts
from leeward.errors import BadRequest, Forbidden
from leeward.spec.folders import Folder
from leeward.spec.limits import Limits
from leeward.spec.pool_key import DEFAULT_PROFILE, SHELL, PoolKey
from leeward.spec.profiles import AGENT, OURS, SLEEP, may_have_home, unknown_profile
from leeward.spec.profiles.agent import HomePlan, home_plan, without_home
from leeward.spec.profiles.shell import hidden
from leeward.spec.sandbox import SandboxSpec
from leeward.wire.frames import pack
from leeward.wire.requests import Execute, SessionOpen
from leeward.wire.sandbox_requests import SandboxOpen

if TYPE_CHECKING:
    from leeward.daemon.pool.pool import Pool
    from leeward.daemon.serving.server import Server
    from leeward.spec.egress_policy import Policy

# Imported in functions: what not every start needs; 10 ms of processor time for all of it.


def check_view(request: SandboxOpen, user: int, config: Config) -> bool:
    """
    Whether *request* asks for a view of the host. Forbidden if the daemon has other rights than *user*, or the operator
    shows no secrets; BadRequest for fields that don't go with the profile.
    """
    if request.profile != SHELL:
        if request.cwd or request.show_secrets:
            raise BadRequest(f"cwd and show_secrets are of the profile {SHELL!r}")
        if request.home and not may_have_home(request.profile, config.profiles):
            if request.profile not in OURS and request.profile not in config.profiles:
                raise BadRequest(unknown_profile(request.profile, config.profiles))
            raise BadRequest(f"the profile {request.profile!r} has no home, and none for an agent: home is of the"
                             f" profiles {SHELL!r}, 'agent' and 'approved', and of those that the configuration bases"
                             " on the last two (`base = \"agent\"`)")
        return False
    if user != os.geteuid():
        raise Forbidden(f"this daemon runs as user {os.geteuid()}: the profile {SHELL!r} would show user {user} the"
                        " host with other rights than that user has. Start a daemon of your own")
    if request.show_secrets and not config.show_secrets:
        raise Forbidden("the operator of this daemon has set show_secrets = false")
    if request.environment or request.egress:
        raise BadRequest(f"the profile {SHELL!r} is the host as it is: no environment, no egress")
    for folder in request.mounts:
        if (folder.path, folder.target, folder.writable, folder.overlay) != (request.cwd, request.cwd, False, False):
            raise BadRequest(f"the profile {SHELL!r} shows the host, and takes no mount but that of cwd, to be read")
    return True


@functools.cache
def owners_home() -> str:
    """Return the daemon's user's home, "" if the host has none. First called before the loop: a name service may be slow."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def key_of(request: Execute | SessionOpen) -> PoolKey:
    """Return the key of a job's or session's pool; BadRequest for `shell`, which hides secrets when a sandbox is opened."""
    if request.profile == SHELL:
        raise BadRequest(f"the profile {SHELL!r} is for live sandboxes: Sandbox(profile={SHELL!r}), or"
                         f" leeward exec --profile {SHELL} -- 'LINE'")
    return PoolKey(request.profile or DEFAULT_PROFILE, request.environment, request.egress)


def image_of(profile: str, config: Config) -> str:
    """The image that *profile* has by the configuration; "" for none."""
    own = config.profiles.get(profile)
    return "" if own is None else own.image


def sleeps(profile: str, config: Config) -> bool:
    """Whether sandboxes of *profile* sleep in place of their end when nobody uses them, as the operator wants it."""
    own = config.profiles.get(profile)
    return ((own and own.idle) or config.idle) == SLEEP


def sandbox_key(request: SandboxOpen, user: int, config: Config) -> PoolKey:
    """
    Return the key of a sandbox's pool; BadRequest for what doesn't go with an image, Forbidden for one that the operator
    doesn't share with *user*.
    """
    image = request.image or image_of(request.profile, config)
    if not image:
        return PoolKey(request.profile, request.environment, request.egress)
    if image != image_of(request.profile, config) and user not in (0, os.geteuid()) and not config.images_shared:
        raise Forbidden(f"this daemon runs as user {os.geteuid()}, whose images others don't name: that takes images_shared"
                        " = true in its configuration, or a profile that has the image")
    for what, asked in (("environment", request.environment), (f"the profile {SHELL!r}", request.profile == SHELL)):
        if asked:
            raise BadRequest(f"{what} and image don't go together yet")
    # With a home the user is a name for that; root writes to no folder of the host, and an agent has some.
    who = _AGENTS if may_have_home(request.profile, config.profiles) else request.user
    return PoolKey(request.profile, "", request.egress, image, who)


def check_mounts(folders: Sequence[Folder], spec: SandboxSpec | None) -> None:
    """BadRequest for folders that root of an image could write: it may set set-id bits, which would be the host's."""
    if spec is not None and spec.plays_root and any(folder.writable for folder in folders):
        raise BadRequest("as root in an image a folder of the host is shown as a copy (overlay=True) or read-only; the"
                         " image's other users may write to it: user=\"nobody\", for instance")


def in_image(key: PoolKey, what: str) -> None:
    """BadRequest if a sandbox of *key* has an image's root, for *what* would run by the host's interpreter."""
    if key.image:
        raise BadRequest(f"{what} in an image aren't there yet; its sandboxes run code and kernels by the image's own"
                         " interpreter")


def hiding(request: SandboxOpen, mounts: Mounts | None, user: tuple[int, int]) -> Mounts:
    """Return *mounts*, if there are any, with the names added that a sandbox of the profile `shell` hides."""
    made = mounts or Mounts(user=user)
    made.cwd = "" if os.geteuid() else request.cwd
    made.hides = () if request.show_secrets else hidden((owners_home(), request.home), request.cwd)
    return made


def home_of(request: SandboxOpen, spec: SandboxSpec | None, config: Config) -> HomePlan | None:
    """
    Return the home that *request* asks for, or None; BadRequest if the profile has none, or it can't be made. A request
    for `agent` always asks for one. With a profile without homes names can be protected and pinned. *spec* is the
    profile's.
    """
    if not may_have_home(request.profile, config.profiles):
        if (request.user and not (request.image or image_of(request.profile, config))) or request.hide:
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
    from leeward.spec.egress_policy import AGENT as OWN
    from leeward.spec.egress_policy import NETWORK

    if user == os.geteuid():
        return {**config.egress, AGENT: OWN}
    if not config.allow_network or config.egress.get(NETWORK.name, NETWORK) != NETWORK:
        raise Forbidden(f"this daemon runs as user {os.geteuid()}, and its operator lets the agents of others reach"
                        " nothing: that takes [egress.agent], or allow_network = true without [egress.network], in its"
                        " configuration")
    if not request.policy:
        raise Forbidden(f"this daemon runs as user {os.geteuid()}: others name the hosts of their agents, by a policy")
    return {**config.egress, AGENT: NETWORK}


#: The user of an image who has an agent's home.
_AGENTS = "1000:1000"
#: Bytes of both policies together in the form for the broker, at most: less than one of its messages may have.
_MOST = 160 << 10
#: What in a policy is the operator's alone.
_OPERATORS = {"within", "authorities", "proxy"}


def narrowed(request: SandboxOpen, operators: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """
    Return the policies under which a sandbox runs and fetches, as `policy_map` makes them; None if the client sends
    none, and the operator's holds. BadRequest if one is invalid, has a secret beyond the operator's, or nothing to
    narrow.
    """
    return _narrowed(request.egress, request.policy, request.fetch_policy, operators)


def narrowed_anew(key: PoolKey, policy: Mapping[str, Any], user: int, config: Config) -> tuple[
        dict[str, Any], dict[str, Any]] | None:
    """As `narrowed`, of another *policy* for an open sandbox of *key*."""
    asked = SandboxOpen(1, profile=key.profile, environment=key.environment, egress=key.egress, policy=policy)
    return narrowed(asked, operators(asked, user, config))


def narrowed_again(key: PoolKey, kept: Sequence[Mapping[str, Any]] | None, user: int, config: Config) -> tuple[
        dict[str, Any], dict[str, Any]] | None:
    """
    As `narrowed`, of the policies that were *kept* of a sandbox of *key* while it slept: within what the operator's are now,
    and not what they were. BadRequest if they are none; as for `sandbox_key` and `operators` where it couldn't be opened now.
    """
    policy, fetch = ({name: value for name, value in each.items() if name not in _OPERATORS} for each in kept or ({}, {}))
    asked = SandboxOpen(1, profile=key.profile, environment=key.environment, egress=key.egress, policy=policy,
                        fetch_policy=fetch)
    if sandbox_key(asked, user, config) != key:
        raise BadRequest(f"the profile {key.profile!r} has an image by now: the sandbox can't wake")
    return narrowed(asked, operators(asked, user, config))


def place_of(server: Server, request: Execute | SessionOpen, user: int) -> tuple[Pool, Limits, dict[str, Any] | None]:
    """Return the pool of a job or a session, its limits, and the policy under which it runs, as `narrowed`."""
    config = server.config
    if not (request.environment or request.egress or request.profile or request.policy):
        return server.jobs, config.limits, None
    policy = _narrowed(request.egress, request.policy, {}, operators(request, user, config))
    in_image(replace(key_of(request), image=image_of(request.profile, config)), "jobs and sessions")
    place = server.place(key_of(request))
    return place.pool, place.settings.limits, None if policy is None else policy[0]


def _narrowed(egress: str, policy: Mapping[str, Any], fetch_policy: Mapping[str, Any],
              operators: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    if not (policy or fetch_policy):
        return None
    if not egress:
        raise BadRequest("policy and fetch_policy narrow a policy of the operator's: name it by egress, or ask for"
                         " allow_network")
    operator = _operators(egress, operators)
    from leeward.egress.short_form import is_short_form
    from leeward.spec.egress_policy import narrow, parse_policy, policy_map

    if not _OPERATORS.isdisjoint(policy):
        raise BadRequest("policy: within, authorities and proxy are the operator's")
    narrower = operator
    if policy:
        narrower = narrow(operator, _short(policy, "policy", operator) if is_short_form(policy)
                          else parse_policy(policy, "policy"))
    fetch: dict[str, Any] = {}
    if fetch_policy:
        fetch = policy_map(unsourced(narrow(narrower, _short(fetch_policy, "fetch_policy", narrower))))
    made = policy_map(unsourced(narrower))
    if len(pack({"policy": made, "fetch": fetch})) > _MOST:
        raise BadRequest(f"policy and fetch_policy have more than {_MOST} bytes together with the operator's")
    return made, fetch


def _short(given: Mapping[str, Any], place: str, operator: Policy) -> Policy:
    """Make a policy from its short form, with the ports and secrets of the *operator*'s policy."""
    from leeward.egress.short_form import parse_short_form
    from leeward.spec.egress_policy import ports_of

    return replace(parse_short_form(given, place), ports=ports_of(operator), secrets=operator.secrets)


def _operators(name: str, operators: Mapping[str, Any]) -> Policy:
    from leeward.spec.egress_policy import Policy

    found = operators.get(name)
    if found is None:
        raise unknown_egress(name, operators)
    assert isinstance(found, Policy)
    return found


#: The policy that `allow_network` stands for.
_NETWORK = "network"


def unknown_egress(name: str, operators: Mapping[str, Any]) -> BadRequest:
    cure = ("; `allow_network = true` in its configuration lets requests have all public names" if name == _NETWORK else
            '; `allow = ["example.org"]` below [egress.NAME] of its configuration makes one')
    return BadRequest(f"egress {name!r} is unknown; this daemon has: {', '.join(operators) or 'none'}{cure}")
