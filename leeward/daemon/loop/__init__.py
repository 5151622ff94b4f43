"""
The event loop: descriptors, deadlines, connections' bytes, and the fast path of short jobs.

Runs in: the daemon, and `leeward run`. `reactor` has one thread and never waits for a peer. `native` does the same by
the shim (io_uring or epoll), and moves connections' bytes; `fast_path` lets the shim alone pass short jobs and their
answers.
"""
