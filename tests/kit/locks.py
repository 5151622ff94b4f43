"""
The locks that a test can take out of a sandbox, by name.

Runs in:   tests and their zygotes; imports nothing, so that the lists are the same for both.
"""

from __future__ import annotations

#: The locks of a job's process, which halfway.py takes out in the zygote. `Box(locks=...)` keeps those that it names.
#: The user namespace isn't among them, because without it no sandbox can be made.
LOCKS = frozenset({
    "namespaces", "mounts", "rlimits", "privileges", "landlock", "seccomp",
    "descriptors",  # what was open before a job is closed
    "environment",  # it has its own variables and none of the daemon's
    "randomness",   # generators with a state are seeded anew for each job
    "job-pipe",     # the pipe by which its code comes is closed before the code runs
    "hard-limit",   # its hard limit on descriptors is lowered to the soft one before the code runs
    "late-limit",   # its limit on descriptors is set when its listener has got out
})

#: The locks of the daemon. A box without any lock of the job still has them, unless `Box(lacks=...)` names them
#: (loosened.py).
DAEMONS = frozenset({
    "sealing",  # a result's file is sealed before anybody else has it
    "turns",    # a worker's next job is sent when the one before has no process left
    "limits",   # a cgroup driver holds memory, tasks and processors
    "backstage",  # zygotes import modules in namespaces of their own; it belongs to a box's start
    "sockets",  # a worker whose job left sockets in its network namespace retires
})

#: The locks that no sandbox can lack; their control runs outside any sandbox.
INHERENT = frozenset({
    "pipes",    # a job's streams, its code and its reply are pipes of its own
})

BUILT_IN = DAEMONS | INHERENT
