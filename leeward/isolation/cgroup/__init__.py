"""Resource limits that the kernel holds for a whole job. The crossing only writes to descriptors that the daemon gave it."""
