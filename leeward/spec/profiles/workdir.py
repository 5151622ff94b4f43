"""
The profile `workdir`: what WorkdirSandbox works in. It is `python`, with TCP and UDP among the sandbox's own processes.

Runs in:   the daemon; pure.

Who needs it: test suites, language servers and build tools that talk to themselves over 127.0.0.1. The network
namespace has `lo` and nothing else. An operator switches it off by `loopback = false` in [profiles.workdir].

A Node counts as eleven processes, and a second one may already wait for the next code. So 64 processes are allowed.
"""

from __future__ import annotations

from leeward.spec.profiles.profile import Profile

PROFILE = Profile(base="python", about="For WorkdirSandbox: as python, with a loopback network of its own.",
                  limits={"processes": 64}, loopback=True, max=16)
