"""
Profiles: what each kind of sandbox sees, for a given host. One file each; this is the table of them.

Runs in:   the daemon; pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from leeward.spec.profiles.profile import Profile, extended
from leeward.spec.profiles.python import PROFILE as PYTHON
from leeward.spec.profiles.python import WARM, HostPython, python

__all__ = ["OURS", "WARM", "HostPython", "Profile", "extended", "python"]

#: Ours, by name. An operator's are based on one of these.
OURS: Mapping[str, Profile] = {"python": PYTHON}
