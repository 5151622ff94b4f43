"""
Profiles: what each kind of sandbox sees, for a given host. This is the table of them.

Runs in:   the daemon; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leeward.base.dataclass import replace
from leeward.spec.limits import GIB, MIB
from leeward.spec.pool_key import AGENT, APPROVED, SHELL
from leeward.spec.profiles.agent import PROFILE as _AGENT
from leeward.spec.profiles.agent import agent
from leeward.spec.profiles.profile import END, IDLE, SLEEP, Profile, at_home, extended
from leeward.spec.profiles.python import PROFILE as PYTHON
from leeward.spec.profiles.python import WARM, HostPython, python
from leeward.spec.profiles.shell import PROFILE as _SHELL
from leeward.spec.profiles.shell import never_shown, shell

__all__ = ["AGENT", "APPROVED", "BASES", "END", "IDLE", "OURS", "SHELL", "SLEEP", "WARM", "HostPython", "Profile", "agent",
           "at_home", "extended", "may_have_home", "never_shown", "python", "shell", "unknown_profile", "with_base"]

#: What WorkdirSandbox works in. Its network namespace has `lo` and nothing else: test suites, language servers and build
#: tools talk to themselves over 127.0.0.1. A Node counts as eleven processes, and a second one may already wait for the
#: next code. So 64 processes are allowed.
_WORKDIR = Profile(base="python", about="For WorkdirSandbox: as python, with a loopback network of its own.",
                   limits={"processes": 64}, loopback=True, max=16)

#: `workdir`, with the time and the room that an agent needs. `leeward approvals serve`, a client, decides.
_APPROVED = Profile(base="workdir", about="For agents whose work a person approves: as workdir, 300 s and 1 GiB.",
                    limits={"time": 300.0, "memory": GIB, "files": 512 * MIB, "processes": 128}, loopback=True, max=16)

#: The built-in profiles, by name.
OURS: Mapping[str, Profile] = {"python": PYTHON, "workdir": _WORKDIR, SHELL: _SHELL, APPROVED: _APPROVED, AGENT: _AGENT}
#: The profiles that an operator's profile may be based on. The other built-in profile can't be a base, because clients
#: recognize it by its name: they send their current folder for such a sandbox.
BASES = tuple(name for name in OURS if name != SHELL)
#: The profiles whose sandboxes may have a home folder of their own, and names that are hidden or protected.
_WITH_HOME = (AGENT, APPROVED)


def unknown_profile(name: str, profiles: Iterable[str]) -> str:
    """The message for a request that names a profile which is neither built in nor among the configuration's *profiles*."""
    return (f"profile {name!r} is unknown; this daemon has: {', '.join(dict.fromkeys((*OURS, *profiles)))};"
            " `base = \"python\"` below [profiles.NAME] of its configuration makes one")


def may_have_home(name: str, operators: Mapping[str, Profile]) -> bool:
    """Whether a sandbox of the profile *name*, perhaps one of the configuration's *operators*, may have a home of its own."""
    own = operators.get(name)
    return name in _WITH_HOME or (own is not None and own.base in _WITH_HOME)


def with_base(profile: Profile) -> Profile:
    """Return *profile* with the settings of its base, except those that *profile* sets itself."""
    base = OURS.get(profile.base, PYTHON)
    return replace(profile, show=tuple(dict.fromkeys((*base.show, *profile.show))),
                   variables={**base.variables, **profile.variables}, limits={**base.limits, **profile.limits},
                   loopback=base.loopback if profile.loopback is None else profile.loopback,
                   terminal=base.terminal if profile.terminal is None else profile.terminal,
                   home=profile.home or base.home, idle=profile.idle or base.idle)
