"""
Resource limits that the kernel holds for a whole job: memory, processes, processor time.

Runs in:   the daemon; the crossing only writes to descriptors that the daemon has given it.
"""
