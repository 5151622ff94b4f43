"""
`leeward sandbox new --json`: a sandbox opened for another program, in whatever language.

Runs in:   the CLI, by click. A program that can't send descriptors starts it as a child: it opens the folders itself,
           with its own rights, and the child inherits them; then they are /proc/self/fd/N here.
Trust:     as in the command line: the parent has the same rights. Options come on standard input and not as arguments,
           which every user of the host can read.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from leeward.client.mounts import Mount
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError, RequestRejected

#: Bytes of the options, at most: an environment has less than a tenth of that.
MOST = 16 << 20
#: Options of `Sandbox`; `socket` is the command's own.
KNOWN = frozenset(("profile", "environment", "packages", "egress", "allow_network", "policy", "fetch_policy",
                   "env", "idle", "lifetime", "metadata", "memory", "processes",
                   "timeout", "output", "show_secrets", "workdir", "overlay", "mounts"))


def open_by_json(socket: str | None) -> int:
    """
    Read the options of `Sandbox` as one JSON object, and print one: the sandbox's id, or the reason of a failure.
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
    """
    Raises:
        RequestRejected: *data* isn't such an object.
    """
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
