"""Checks who may have a sandbox of the profile `shell`, and adds the names of files that are hidden from it."""

from __future__ import annotations

import os

from leeward.daemon import owner
from leeward.daemon.config import Config
from leeward.errors import BadRequest, Forbidden
from leeward.sandboxes.mounting import Mounts
from leeward.spec.pool_key import DEFAULT_PROFILE, PoolKey
from leeward.spec.profiles import OURS, may_have_home, unknown_profile
from leeward.spec.profiles.shell import NAME, hidden
from leeward.wire.requests import Execute, SessionOpen
from leeward.wire.sandbox_requests import SandboxOpen


def check(request: SandboxOpen, user: int, config: Config) -> bool:
    """
    Whether *request* asks for a view of the host. Forbidden if the daemon has other rights than *user*, or the operator
    shows no secrets; BadRequest for fields that don't go with the profile.
    """
    if request.profile != NAME:
        if request.cwd or request.show_secrets:
            raise BadRequest(f"cwd and show_secrets are of the profile {NAME!r}")
        if request.home and not may_have_home(request.profile, config.profiles):
            if request.profile not in OURS and request.profile not in config.profiles:
                raise BadRequest(unknown_profile(request.profile, config.profiles))
            raise BadRequest(f"the profile {request.profile!r} has no home, and none for an agent: home is of the"
                             f" profiles {NAME!r}, 'agent' and 'approved', and of those that the configuration bases"
                             " on the last two (`base = \"agent\"`)")
        return False
    if user != os.geteuid():
        raise Forbidden(f"this daemon runs as user {os.geteuid()}: the profile {NAME!r} would show user {user} the"
                        " host with other rights than that user has. Start a daemon of your own")
    if request.show_secrets and not config.show_secrets:
        raise Forbidden("the operator of this daemon has set show_secrets = false")
    if request.environment or request.egress:
        raise BadRequest(f"the profile {NAME!r} is the host as it is: no environment, no egress")
    for folder in request.mounts:
        if (folder.path, folder.target, folder.writable, folder.overlay) != (request.cwd, request.cwd, False, False):
            raise BadRequest(f"the profile {NAME!r} shows the host, and takes no mount but that of cwd, to be read")
    return True


def key_of(request: Execute | SessionOpen) -> PoolKey:
    """Return the key of a job's or session's pool; BadRequest for `shell`, which hides secrets when a sandbox is opened."""
    if request.profile == NAME:
        raise BadRequest(f"the profile {NAME!r} is for live sandboxes: Sandbox(profile={NAME!r}), or"
                         f" leeward exec --profile {NAME} -- 'LINE'")
    return PoolKey(request.profile or DEFAULT_PROFILE, request.environment, request.egress)


def hiding(request: SandboxOpen, mounts: Mounts | None, user: tuple[int, int]) -> Mounts:
    """Return *mounts*, if there are any, with the names added that a sandbox of the profile `shell` hides."""
    made = mounts or Mounts((), [], user, [], 0, [])
    made.hides = () if request.show_secrets else hidden((owner.home(), request.home), request.cwd)
    return made
