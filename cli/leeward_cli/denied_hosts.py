"""
Tells a person, while an agent works, which hosts it was denied, or waits for a decision about: by the terminal's title,
which no screen covers, or a line on standard error; and all that it was denied at the end, with what would allow them.

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
#: Seconds between two looks at what waits for a decision.
_LOOK_S = 1.0

#: Gets "denied" or "asks about", and a host.
Tell = Callable[[str, str], None]


class DeniedHosts:
    """The hosts that the sandbox *box* of the daemon on *path* is denied, and about which it *asks*."""

    def __init__(self, path: str, box: str, asks: bool = False) -> None:
        self._path, self._box, self._asks = path, box, asks
        self._lock, self._over = threading.Lock(), threading.Event()
        self._tell: Tell = lambda _what, _host: None
        self._last = 0
        self._reasons = dict[str, str]()  # by host

    def follow(self, tell: Tell) -> None:
        """Call *tell* with each new host, from a thread."""
        self._tell = tell
        for follow in (self._follow, *([self._follow_asks] if self._asks else [])):
            threading.Thread(target=follow, daemon=True).start()

    def _follow_asks(self) -> None:
        """Look at what waits. A client that waits for that would count as one that answers."""
        from leeward.client.blocking import Client  # who asks nobody needs none

        told, last = set[str](), 0
        with contextlib.suppress(LeewardError, OSError), Client(socket=self._path, retry=False) as client:
            while not self._over.wait(_LOOK_S):
                for ask in client.egress_asks(last):
                    last = ask.id
                    host = _shown({"name": ask.name, "address": ask.address, "port": ask.port})
                    if ask.sandbox == self._box and host not in told and len(told) < _TOLD:
                        told.add(host)
                        self._tell("asks about", host)

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
        host = _shown(row)
        with self._lock:
            if host in self._reasons or len(self._reasons) >= _TOLD:
                return
            self._reasons[host] = row["reason"]
        self._tell("denied", host)

    def sum_up(self) -> None:
        """Say at the end which hosts were denied, and how they could be allowed."""
        self._tell = lambda _what, _host: None
        self._over.set()
        with contextlib.suppress(LeewardError, OSError):
            self._read(False)
        with self._lock:
            found = [*self._reasons.items()][:_SUMMED]
            more = len(self._reasons) - len(found)
        if not found:
            return
        complain(f"the agent was denied {', '.join(host for host, _ in found)}" + (f" and {more} more" if more else "")
                 + "; `leeward agent logs --network` says why")
        allowable = [f'"{host}"' for host, reason in found
                     if reason.partition(":")[0] in _ALLOWABLE or " waits for approval, and " in reason]
        if allowable:
            complain(f"to allow {'it' if len(allowable) == 1 else 'them'}, below [network] in"
                     f" ~/.config/leeward/agents.toml: allow = [{', '.join(allowable)}]")


def _shown(row: Mapping[str, Any]) -> str:
    """A row's host. A query has no port, and HTTP and TLS need none in the settings."""
    return plain(target(row if row["port"] not in (80, 443) else {**row, "port": 0}))[:_MOST_NAME]
