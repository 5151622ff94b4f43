"""
Profiles: what each kind of sandbox sees, for a given host. One file each; this is the table of them.

Runs in:   the daemon; pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from leeward.dataclass import replace
from leeward.spec.profiles.profile import Profile, extended
from leeward.spec.profiles.python import PROFILE as PYTHON
from leeward.spec.profiles.python import WARM, HostPython, python
from leeward.spec.profiles.workdir import PROFILE as WORKDIR

__all__ = ["OURS", "WARM", "HostPython", "Profile", "extended", "python", "with_base"]

#: Ours, by name. An operator's are based on one of these.
OURS: Mapping[str, Profile] = {"python": PYTHON, "workdir": WORKDIR}


def with_base(profile: Profile) -> Profile:
    """
    *profile* with what its base has beside `python`, where *profile* itself says nothing else.
    """
    base = OURS.get(profile.base, PYTHON)
    return replace(profile, show=tuple(dict.fromkeys((*base.show, *profile.show))),
                   variables={**base.variables, **profile.variables}, limits={**base.limits, **profile.limits},
                   loopback=base.loopback if profile.loopback is None else profile.loopback,
                   terminal=base.terminal if profile.terminal is None else profile.terminal)
