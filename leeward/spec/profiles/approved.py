"""
The profile `approved`: what an agent works in whose changes, commands, packages and pushes a person approves. It is
`workdir`, with the time and the room that an agent needs.

Runs in:   the daemon; pure. `leeward approvals serve`, a client, decides; to the daemon this is a profile like any
           other.
"""

from __future__ import annotations

from leeward.spec.limits import GIB, MIB
from leeward.spec.profiles.profile import Profile

NAME = "approved"
PROFILE = Profile(base="workdir", about="For agents whose work a person approves: as workdir, 300 s and 1 GiB.",
                  limits={"time": 300.0, "memory": GIB, "files": 512 * MIB, "processes": 128}, loopback=True, max=16)
