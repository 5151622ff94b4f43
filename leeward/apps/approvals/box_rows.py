"""
Rows of the record about sandboxes: those that can ask, those that the service opens for a command, and those of the
profile `approved` that another program of this user has opened; their ends, and decisions about their connections.

Trust:     none in the texts that a sandbox chooses. BoundedJournal bounds their length and the number of rows.
Threads:   any may call, but OtherBoxes is for one.
Leaves:    what a sandbox of another program does while no service runs, and sandboxes of a profile that is based on
           `approved` under another name. The daemon remembers a few hundred ends; of one that it has forgotten the
           record has the counts of the last `sandbox_info`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from leeward.apps.audit.record import BoundedJournal
from leeward.apps.audit.record_lines import AuditRow
from leeward.client.connection import BlockingConnection
from leeward.client.sandbox import Sandbox
from leeward.client.sandbox_calls import listed
from leeward.errors import BadReply, LeewardError, SandboxOver
from leeward.spec.paths import client_socket
from leeward.spec.pool_key import APPROVED as PROFILE

#: Seconds until the daemon has answered.
_ANSWER_S = 5.0

#: What the daemon says that a sandbox had used and was refused: numbers, bytes, and seconds.
_COUNTS = ("denied", "oom_kills", "forks_refused", "memory_peak", "cpu_time")

#: Counts of limits that were reached without ending the sandbox: the limit, and what happened to the process.
_LIMITS = {"oom_kills": ("memory", "killed"), "forks_refused": ("processes", "refused")}

#: Ids of ended sandboxes that are kept.
_MOST_OVER = 4096

#: The limit that has ended a sandbox, by the daemon's reason for the end.
_LIMIT_OF = {"memory": "memory", "lifetime": "time", "files": "files"}

#: Pages of rows that one `pull` takes: sandboxes may make rows as fast as they are read.
_MOST_ANSWERS = 50

#: Seconds between two looks for other programs' sandboxes. Each one lists all sandboxes of the user.
LOOK_S = 10.0


def last_counts(socket: str | None, sandbox: str) -> Mapping[str, Any]:
    """The _COUNTS of a sandbox when it ended; {} if the daemon (None: the default one) is away or has forgotten it."""
    connection = BlockingConnection(client_socket(socket))
    try:
        rows = (_asked(connection, "recall", {"after": 0, "wait": 0.0}).ok or {}).get("events")
    except LeewardError:
        return {}
    finally:
        connection.close()
    return counts_in(rows, sandbox)


def _asked(connection: BlockingConnection, op: str, fields: dict[str, Any]) -> Any:
    return connection.call(op, fields, time.monotonic() + _ANSWER_S)[0]


def last_info(box: Sandbox) -> tuple[dict[str, Any], SandboxOver | None]:
    """The `sandbox_info` of a sandbox that is about to be ended, and why it has ended already; {} if that isn't known."""
    try:
        return box.info(), None
    except SandboxOver as error:
        return {}, error
    except LeewardError:
        return {}, None  # the daemon is away


def counts_in(rows: Any, sandbox: str) -> dict[str, Any]:
    """The counts of *sandbox* in *rows*, the daemon's events; {} if none is of it."""
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and ("sandbox", sandbox) == (row.get("kind"), row.get("sandbox")):
            return {name: row[name] for name in _COUNTS if name in row}
    return {}


def _grown(counts: Mapping[Any, Any], before: dict[str, int]) -> list[tuple[str, int]]:
    """The counts that have grown since *before*, and by how much; *before* is updated."""
    found = list[tuple[str, int]]()
    for name, count in counts.items():
        more = count - before.get(name, 0) if isinstance(name, str) and type(count) is int else 0
        if more > 0:
            before[name] = count
            found.append((name, more))
    return found


class SandboxRows:
    """
    Writes a row for each sandbox's start and end, and for what it was refused in between. *last* returns the last
    counts of one that has ended by itself.
    """

    def __init__(self, rows: BoundedJournal, egress: EgressRows, last: Callable[[str], Mapping[str, Any]]) -> None:
        self._rows, self._egress, self._last, self._lock = rows, egress, last, threading.Lock()
        self._before = dict[str, tuple[float, dict[str, int], dict[str, int]]]()
        self._strangers = set[str]()  # those of `_before` that another program has opened
        self._over = deque[str](maxlen=_MOST_OVER)
        self._opening = 0

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Held while the service opens a sandbox: the daemon lists it before `begin`, and it isn't another program's."""
        with self._lock:
            self._opening += 1
        try:
            yield
        finally:
            with self._lock:
                self._opening -= 1

    def begin(self, sandbox: str, **metadata: Any) -> None:
        """Write the row for a sandbox that was opened, with why: its `project`, or `profile` and `request`."""
        with self._lock:
            self._strangers.discard(sandbox)  # the service attaches to one that another program has opened
            self._before.setdefault(sandbox, (time.time(), {}, {}))
        self._started(sandbox, **metadata)

    def _started(self, sandbox: str, **metadata: Any) -> None:
        self._rows.write(AuditRow(time.time(), "sandbox", "open", "started", sandbox=sandbox, metadata=metadata))

    def others(self, opened: Sequence[Mapping[str, Any]], ended: Sequence[Mapping[str, Any]]) -> bool:
        """
        Write rows about other programs' sandboxes: *opened* is all that are open, the service's own among them, *ended*
        the daemon's events since the last call. False, and nothing is written, while the service opens one itself.
        """
        with self._lock:
            if self._opening:
                return False
            known, over = set(self._before), set(self._over)
        for info in opened:
            name = info["sandbox"]
            if name not in known and name not in over:
                self._begin_stranger(name, info.get("age"))
            if name in self._strangers:
                self.look(name, info)
        for info in ended:
            name = info["sandbox"]
            if name not in known and name not in over and name not in self._strangers:
                self._begin_stranger(name, 0.0)
            if name in self._strangers:
                reason = str(info.get("reason", "unknown"))
                self.pull()
                self._write_end(name, info, SandboxOver("", reason, limit=_LIMIT_OF.get(reason)))
        return True

    def _begin_stranger(self, sandbox: str, age: Any) -> None:
        with self._lock:
            self._strangers.add(sandbox)
            self._before[sandbox] = time.time() - (age if isinstance(age, (int, float)) else 0.0), {}, {}
        self._started(sandbox, by="another program")

    def pull(self) -> None:
        """Write what egress policies have decided about open sandboxes since the last call."""
        try:
            rows = self._egress.pull()
        except LeewardError:
            return  # the daemon is away; the next call tries again
        for made in map(egress_row, rows):
            if made is not None and made.sandbox in self._before:
                self._rows.write(made)

    def look(self, sandbox: str, info: Mapping[str, Any]) -> None:
        """Write what an open sandbox was refused since the last call; *info* is of `sandbox_info`."""
        denied = info.get("denied")
        with self._lock:
            known = self._before.get(sandbox)
            if known is None:
                return
            calls = _grown(denied if isinstance(denied, Mapping) else {}, known[1])
            limits = _grown({name: info[name] for name in _LIMITS if name in info}, known[2])
        for name, more in calls:
            self._rows.write(AuditRow(time.time(), "syscall", name, "denied", by="policy", sandbox=sandbox,
                                      metadata={"count": more}))
        for name, more in limits:
            limit, decision = _LIMITS[name]
            self._rows.write(AuditRow(time.time(), "sandbox", "limit", decision, by="policy", sandbox=sandbox,
                                      metadata={"limit": limit, "count": more}))

    def end(self, sandbox: str, info: Mapping[str, Any], why: SandboxOver | None) -> None:
        """Write the last rows of a sandbox: *info* is its last `sandbox_info`, *why* None if the service has ended it."""
        self.pull()
        if why is not None:  # the counts may have grown since the last `sandbox_info`
            info = {**info, **self._last(sandbox)}
        self._write_end(sandbox, info, why)

    def _write_end(self, sandbox: str, info: Mapping[str, Any], why: SandboxOver | None) -> None:
        self.look(sandbox, info)
        with self._lock:
            known = self._before.pop(sandbox, None)
            self._strangers.discard(sandbox)
            self._over.append(sandbox)
        if known is None:
            return
        self._rows.end(sandbox)
        limit = "" if why is None else why.limit or ""
        used = {name: info[name] for name in ("memory_peak", "cpu_time") if isinstance(info.get(name), (int, float))}
        metadata = {"reason": "closed" if why is None else why.reason, "limit": limit, **used}
        self._rows.write(AuditRow(time.time(), "sandbox", "limit" if limit else "end", "ended", sandbox=sandbox,
                                  duration=time.time() - known[0], metadata=metadata))


class EgressRows:
    """Reads the record of decisions by egress policies of the daemon at *socket* (None: the default one)."""

    def __init__(self, socket: str | None) -> None:
        self._connection, self._lock = BlockingConnection(client_socket(socket)), threading.Lock()
        self._after = -1

    def pull(self) -> list[Mapping[str, Any]]:
        """
        The rows since the last call, _MOST_ANSWERS pages of them at most. The first call returns none: older rows may
        be in the record already. LeewardError if the daemon is away or answers with something else.
        """
        found = list[Mapping[str, Any]]()
        with self._lock:
            is_first, after = self._after < 0, max(0, self._after)
            for _ in range(_MOST_ANSWERS):
                answer = _asked(self._connection, "egress_log", {"after": after, "wait": 0.0}).ok or {}
                rows, last = answer.get("events"), answer.get("last")
                if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                    raise BadReply("the daemon's record of egress isn't a list of rows")
                if not rows and type(last) is int and last < after:
                    after = 0  # another daemon, which counts from 1 again
                    continue
                if not rows:
                    break
                after = rows[-1].get("number", after + len(rows))
                found += [] if is_first else rows
            self._after = after
        return found

    def skip(self) -> None:
        """Leave out the rows that the daemon has now."""
        try:
            self.pull()
        except LeewardError:
            self._after = max(self._after, 0)  # the record of a daemon that starts later is new as a whole

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def egress_row(row: Mapping[str, Any]) -> AuditRow | None:
    """The row of the record for *row* of the daemon's; None if that is neither allowed nor denied."""
    decision = {"allowed": "approved", "denied": "denied"}.get(str(row.get("verdict")))
    when = row.get("time")
    if decision is None or not isinstance(when, float):
        return None
    metadata = {name: row.get(name) for name in ("policy", "name", "address", "port", "rule", "reason")}
    return AuditRow(when, "network", "egress", decision, by="policy", sandbox=str(row.get("sandbox") or ""),
                    metadata=metadata)


class OtherBoxes:
    """Looks for other programs' sandboxes and their ends; *life* writes the rows. For one thread."""

    def __init__(self, socket: str | None, life: SandboxRows) -> None:
        self._socket, self._connection, self._life = client_socket(socket), BlockingConnection(client_socket(socket)), life
        self._after: int | None = None
        self._next = 0.0

    def look(self) -> None:
        """Write the rows since the last look, if that was LOOK_S ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_S
            self._look()

    def metadata(self, sandbox: str) -> dict[str, str]:
        """The texts in the metadata of one of this user's sandboxes; for any thread. {} if it isn't known."""
        with contextlib.suppress(LeewardError):
            for row in Sandbox.list(socket=self._socket):
                if row["sandbox"] == sandbox:
                    return {name: each for name, each in row["metadata"].items() if isinstance(each, str)}
        return {}

    def close(self) -> None:
        """Look for the last time."""
        self._look()
        self._connection.close()

    def _look(self) -> None:
        try:
            opened = listed(lambda after: _asked(self._connection, "sandbox_list", after))
            ends = _asked(self._connection, "recall", {"after": self._after or 0, "wait": 0.0}).ok or {}
        except LeewardError:
            return  # the daemon is away; the next look tries again
        last, events = ends.get("last"), ends.get("events")
        if type(last) is not int or not isinstance(events, list):
            return
        # Sandboxes that ended before the first look may be in the record already.
        fresh = [] if self._after is None or last < self._after else events
        if self._life.others(list(filter(_is_ours, opened)), list(filter(_is_ours, fresh))):
            self._after = last


def _is_ours(row: Any) -> bool:
    """Whether a row of the daemon is about a sandbox of the profile `approved`."""
    return isinstance(row, Mapping) and row.get("profile") == PROFILE and isinstance(row.get("sandbox"), str)
