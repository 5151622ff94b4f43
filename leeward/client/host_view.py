"""
What a client tells about itself when it opens a sandbox: for the profile `shell` its folder, home and environment
variables; for a sandbox with a home of its own the home's path and the user's name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from leeward.client.mounts import Mount
from leeward.errors import RequestRejected
from leeward.spec.pool_key import AGENT, SHELL

# Imported in functions: what not every start needs; 3 ms of processor time for all of it.


def add_host_view(fields: Mapping[str, Any], mounts: tuple[Mount, ...]) -> tuple[dict[str, Any], tuple[Mount, ...]]:
    """The fields of a sandbox_open request and the mounts, with what the profile needs; for `shell` there mustn't be any."""
    fields = dict(fields)
    if fields.pop("own_home", False) or fields.get("profile") == AGENT:
        user = _user_fields()
        own = {"HOME": user["home"], **({"USER": user["user"], "LOGNAME": user["user"]} if "user" in user else {})}
        return {**user, **fields, "env": {**own, **fields.get("env", {})}}, mounts
    if fields.get("profile") != SHELL:
        return fields, mounts
    if mounts:
        raise RequestRejected(f"the profile {SHELL!r} shows the host's folders already: no workdir, no mounts")
    from leeward.spec.profiles.shell import needs_mount, passed  # here, since it imports all profiles

    try:
        cwd = os.getcwd()
        cwd.encode()
    except (OSError, UnicodeError) as error:
        raise RequestRejected(f"the current folder can't be named: {error}") from None
    home = os.path.realpath(os.environ.get("HOME") or "/")
    own = {name: value for name, value in passed(os.environ).items() if _is_text(value)}
    more = {"cwd": cwd, **({"home": home} if _is_text(home) else {})}
    return ({**fields, **more, "env": {**own, **fields.get("env", {})}},
            (Mount(cwd, cwd),) if needs_mount(cwd) else ())


def _user_fields() -> dict[str, Any]:
    """The fields `home` and `user`: the home folder and the name of this process's user, for the sandbox."""
    import pwd

    try:
        found = pwd.getpwuid(os.geteuid())
        name, home = found.pw_name, found.pw_dir
    except KeyError:
        name, home = "", "/home/user"
    home = os.path.realpath(os.environ.get("HOME") or home)
    return {"home": home if _is_text(home) else "/home/user", **({"user": name} if name else {})}


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeError:
        return False
    return True
