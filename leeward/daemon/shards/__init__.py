"""
More than one process for fresh jobs: the configuration's `shards`; docs/decisions/0139-shards-serve-fresh-jobs.md.

Runs in: the daemon, and its shards.

A *shard* is a process of the daemon with an event loop, a zygote and a part of the pool. It serves connections that ask
for fresh jobs alone. The daemon accepts every connection, deals those to its shards and to itself, and serves all other
requests.
"""
