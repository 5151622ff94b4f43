"""
The processes between the daemon and a job: zygote, keeper, and the runner until its last lock.

Runs in:   processes of its own, started by exec; never imported by the daemon.
           Everything imported here is in memory that a job can read.
"""
