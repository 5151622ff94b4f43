"""
Tells a person, while an agent works, which hosts it was denied: by the terminal's title, which no screen covers, or a
line on standard error; and all of them at the end, with what would allow them.

Trust:     none in the names, which jobs choose: they are shown escaped, and each once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from leeward.client.daemon_rows import decisions, target
from leeward.errors import LeewardError
from leeward_cli.messages import complain
from leeward_cli.terminal_rows import matches, plain

#: Hosts that are told while the agent works, hosts of the summary, and characters of a name, at most.
_TOLD, _SUMMED, _MOST_NAME = 100, 20, 100
#: Rows of other sandboxes before the first one that is read, at most: the agent may have begun.
_EARLIER = 200
#: What `allow` of the agents' settings changes.
_ALLOWABLE = ("domain not in allowlist", "port not allowed", "private IP blocked")


class DeniedHosts:
    """The hosts that the sandbox *box* of the daemon on *path* is denied."""

    def __init__(self, path: str, box: str) -> None:
        self._path, self._box = path, box
        self._lock = threading.Lock()
        self._tell: Callable[[str], None] = lambda _host: None
        self._last = 0
        self._reasons = dict[str, str]()  # by host

    def follow(self, tell: Callable[[str], None]) -> None:
        """Call *tell* with each new host, from a thread."""
        self._tell = tell
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        with contextlib.suppress(LeewardError, OSError):  # the daemon has ended, which the agent's end tells
            self._last = max(0, decisions(self._path).last() - _EARLIER)
            self._read(True)

    def _read(self, follow: bool) -> None:
        for page in decisions(self._path).pages(follow, self._last):
            for row in page:
                self._note(row)
                self._last = row["number"]

    def _note(self, row: Mapping[str, Any]) -> None:
        if row["verdict"] != "denied" or not matches(row, self._box):
            return
        # A query has no port, and HTTP and TLS need none in the settings.
        host = plain(target(row if row["port"] not in (80, 443) else {**row, "port": 0}))[:_MOST_NAME]
        with self._lock:
            if host in self._reasons or len(self._reasons) >= _TOLD:
                return
            self._reasons[host] = row["reason"]
        self._tell(host)

    def sum_up(self) -> None:
        """Say at the end which hosts were denied, and how they could be allowed."""
        self._tell = lambda _host: None
        with contextlib.suppress(LeewardError, OSError):
            self._read(False)
        with self._lock:
            found = [*self._reasons.items()][:_SUMMED]
            more = len(self._reasons) - len(found)
        if not found:
            return
        complain(f"the agent was denied {', '.join(host for host, _ in found)}" + (f" and {more} more" if more else "")
                 + "; `leeward agent logs --network` says why")
        allowable = [f'"{host}"' for host, reason in found if reason.partition(":")[0] in _ALLOWABLE]
        if allowable:
            complain(f"to allow {'it' if len(allowable) == 1 else 'them'}, below [network] in"
                     f" ~/.config/leeward/agents.toml: allow = [{', '.join(allowable)}]")
