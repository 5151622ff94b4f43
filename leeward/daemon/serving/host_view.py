"""
Checks who may have a sandbox of the profile `shell`, and adds the names of files that are hidden from it.

Runs in:   the daemon; pure but for the daemon's own user.
Trust:     none in a client. What it says of its folders only makes more names hidden.
"""

from __future__ import annotations

import os

from leeward.daemon import owner
from leeward.daemon.config import Config
from leeward.errors import BadRequest, Forbidden
from leeward.sandboxes.mounting import Mounts
from leeward.spec.pool_key import DEFAULT_PROFILE, SHELL, PoolKey
from leeward.spec.profiles import OURS, may_have_home, unknown_profile
from leeward.spec.profiles.shell import hidden
from leeward.wire.requests import Execute, SessionOpen
from leeward.wire.sandbox_requests import SandboxOpen


def check(request: SandboxOpen, user: int, config: Config) -> bool:
    """
    Whether *request* of *user* asks for a view of the host.

    Raises:
        Forbidden: the daemon has other rights than the user, or the operator shows no secrets.
        BadRequest: a field that the profile doesn't have, or that only this profile has.
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


def key_of(request: Execute | SessionOpen) -> PoolKey:
    """
    Return the key of the pool for a job or a session.

    Raises:
        BadRequest: the profile `shell`, which needs a live sandbox, because secrets are hidden when one is opened.
    """
    if request.profile == SHELL:
        raise BadRequest(f"the profile {SHELL!r} is for live sandboxes: Sandbox(profile={SHELL!r}), or"
                         f" leeward exec --profile {SHELL} -- 'LINE'")
    return PoolKey(request.profile or DEFAULT_PROFILE, request.environment, request.egress)


def hiding(request: SandboxOpen, mounts: Mounts | None, user: tuple[int, int]) -> Mounts:
    """Return *mounts*, if there are any, with the names added that a sandbox of the profile `shell` hides."""
    made = mounts or Mounts((), [], user, [], 0, [])
    made.hides = () if request.show_secrets else hidden((owner.home(), request.home), request.cwd)
    return made
