"""
A daemon that is a test build: its points are filled before it starts.

    LEEWARD_TEST_BUILD='{"kit.stalling": {"seconds": 5.0}}' python -m kit.daemon_build daemon run ...

Each module that is named is imported, and its function `prepare` called with the options. LiveDaemon(build=...) starts
such a daemon.

Runs in:   a process of its own. The product has no switch for any of it.
"""

from __future__ import annotations

import json
import os
from importlib import import_module

from kit import points

if __name__ == "__main__":
    points.build()
    for name, options in json.loads(os.environ.pop("LEEWARD_TEST_BUILD")).items():
        import_module(name).prepare(**options)

    from leeward_cli.main import main

    raise SystemExit(main())
