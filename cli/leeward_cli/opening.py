"""
`leeward sandbox new --json`: opens a sandbox for a program in another language that can't send descriptors.

The program opens the folders itself, with its own rights, and this child of its inherits the descriptors: mounts name
them as /proc/self/fd/N.

Trust:     the options are trusted as a command line is, since the parent has the same rights. They come on standard
           input and not as arguments, which every user of the host can read.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from leeward.client.mounts import Mount
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError, RequestRejected

#: The greatest number of bytes of the options. The environment of a process has less than a tenth of that.
MOST = 16 << 20
#: The options of `Sandbox` that are accepted. The socket is an option of the command.
KNOWN = frozenset(("profile", "environment", "packages", "egress", "allow_network", "policy", "fetch_policy",
                   "env", "idle", "lifetime", "metadata", "memory", "processes",
                   "timeout", "output", "overflow", "show_secrets", "workdir", "overlay", "mounts"))


def open_by_json(socket: str | None) -> int:
    """
    Open a sandbox with the options on standard input, one JSON object, and print one with its id or the reason of the
    failure.
    """
    try:
        print(json.dumps({"sandbox": Sandbox(socket=socket, **_options(sys.stdin.buffer.read(MOST + 1))).detach()}))
    except DaemonError as error:
        more = ("reason", "when", "limit", "retry_after")
        about = {name: value for name in more if (value := getattr(error, name, None))}
        print(json.dumps({"error": {"type": type(error).__name__, "message": str(error),
                                    "may_have_run": error.may_have_run, **about}}))
        return 1
    return 0


def _options(data: bytes) -> dict[str, Any]:
    """The options in *data*, JSON; RequestRejected if it isn't an object with options of KNOWN."""
    try:
        if len(data) > MOST:
            raise ValueError(f"more than {MOST} bytes")
        options = json.loads(data)
        if not isinstance(options, dict):
            raise ValueError("not a JSON object")
        for name in options.keys() - KNOWN:
            raise ValueError(f"there is no option {name!r:.40}; there are {', '.join(sorted(KNOWN))}")
        options["mounts"] = [Mount(**mount) for mount in options.get("mounts", [])]
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestRejected(f"the options on standard input are wrong: {error}") from None
    return options
