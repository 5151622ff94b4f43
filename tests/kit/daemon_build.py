"""
A daemon that is a test build: its points are filled before it starts.

    LEEWARD_TEST_BUILD='{"kit.stalling": {"seconds": 5.0}}' python -m kit.daemon_build daemon run ...

On a slow machine it waits longer for its own processes, as its tests do. Each module that is named is imported, and its
function `prepare` called with the options. LiveDaemon(build=...) starts such a daemon.

Runs in:   a process of its own. The product has no switch for any of it.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib import import_module

from kit import features, points


def _wait_longer() -> None:
    from kit.box import patience
    from leeward.daemon import early  # noqa: F401  # which has the point

    usual = points.original("daemon.settings")
    points.fill("daemon.settings", lambda config: replace(usual(config), patience=patience()))


if __name__ == "__main__":
    points.build()
    if features.SLOWER > 1:
        _wait_longer()
    for name, options in json.loads(os.environ.pop("LEEWARD_TEST_BUILD")).items():
        import_module(name).prepare(**options)

    from leeward_cli.main import main

    raise SystemExit(main())
