"""
The shim: system calls and loops in C, and their Python names. The only place with foreign functions.

Runs in:   the daemon, the zygote, keepers, inits and runners; a client that reads and writes folders of its machine.
"""

import sys

if sys.platform != "linux":
    raise ImportError("leeward: this is for Linux alone; another system has clients of a daemon elsewhere"
                      " (docs/other-systems.md)")
