"""
What decides, in one object: the queue, the record, what is carried out, and the sandboxes that can ask.

Runs in:   a process of its own, `leeward approvals serve`, as the operator's user; a client of the daemon.
Threads:   any may call. Methods wait for disks, for the daemon and some for a sandbox, so an event loop calls them in
           threads. Subscribers are called by any thread and return soon.
Trust:     none in what a sandbox asks. Whoever serves this decides by the credential (`credentials`) and the route
           (`routes`) who may call what; this object asks nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leeward.approvals.apply import Project
from leeward.approvals.queue import ApprovalQueue
from leeward.approvals.requests import ApprovalRequest, Resolution
from leeward.audit.journal import Journal
from leeward.errors import Unsupported

#: Seconds that an approved command may run, unless its request says less.
EXEC_S = 300.0

#: Of a command's output as it comes: the request's id, "stdout" or "stderr", bytes.
OnOutput = Callable[[int, str, bytes], None]


class ApprovalService:
    """
    Args:
        queue: takes requests in and is decided about.
        journal: the record.
        project: the folder that requests about files are about where their sandbox has none of its own.
        until: when its time is over, in seconds since the epoch; None for no end.

    Attributes:
        queue, journal, project, until: as given. Routes decide by `queue` itself; what is approved is carried out by
            this object, which subscribes to it.
        started: seconds since the epoch.
    """

    def __init__(self, queue: ApprovalQueue, journal: Journal, project: Project | None = None,
                 until: float | None = None) -> None:
        self.queue, self.journal, self.project, self.until = queue, journal, project, until
        self.started = time.time()

    def status(self) -> dict[str, Any]:
        """
        `started` and `until` in seconds since the epoch, `uptime` and `remaining` in seconds (None without an end),
        `pending` requests, `lost` lines of the record and `trouble` with it.
        """
        now = time.time()
        return {"started": self.started, "uptime": now - self.started, "until": self.until,
                "remaining": None if self.until is None else max(0.0, self.until - now),
                "lost": self.journal.lost, "trouble": self.journal.trouble}

    # --- what is asked ----------------------------------------------------------------

    def ask(self, fields: Mapping[str, Any], sandbox: str = "") -> ApprovalRequest:
        """
        A request from the fields of a JSON object: `category`, then `host` and `port`; or `action` (write, edit,
        delete) with `path`, `content` or `old` and `new`; or `command`; or `branch`; or `action` alone (sandbox).
        `description`, `reason` and `asker` for all.

        Args:
            fields: a stranger's.
            sandbox: whose; "" for the operator's own.

        Raises:
            BadRequest, EditError: no request. The message says why.
            Busy: the sandbox has asked too much.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def submit_exec(self, command: str | Sequence[str], *, cwd: str = "", reason: str = "", timeout: float = EXEC_S,
                    profile: str = "", sandbox: str = "", asker: str = "") -> ApprovalRequest:
        """
        Ask for a command.

        Args:
            command: a line or arguments.
            cwd: the folder to start in.
            reason: of whoever asks.
            timeout: seconds.
            profile: of the sandbox that is opened for it; "" for the one that asks.
            sandbox: which asks.
            asker: who asks in it.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def submit_packages(self, command: str | Sequence[str], *, reason: str = "", sandbox: str = "",
                        asker: str = "") -> list[ApprovalRequest]:
        """
        Ask for packages, one request for each.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def propose_config(self, key: str, value: Any, *, reason: str = "", sandbox: str = "",
                       asker: str = "") -> ApprovalRequest:
        """
        Ask for a key of the configuration to be set. Rules and modes don't decide it, a person does.
        """
        raise Unsupported("asking", have="nothing", need="it")

    # --- the operator's ---------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """
        Each key with its value.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def set_config(self, key: str, value: Any) -> Resolution:
        """
        Raises:
            BadRequest: no key, or no value of it.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def approve_hunks(self, number: int, hunks: Sequence[int], by: str) -> Resolution:
        """
        Approve a part of a change of a file: a new request with these hunks alone takes the place of the old one.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def detail(self, number: int) -> dict[str, Any]:
        """
        What request *number* would carry out. Of a file: `path`, `before` and `after` (text, or None where it is none
        or too large), `hunks` (each `old_start`, `old`, `new_start`, `new`: lines), `stale`. Of a command: `command`,
        `cwd`, `timeout`, `profile`. Of a branch: `commits`, `diff`.

        Raises:
            BadRequest: there is no such request, or nothing to show any more.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def sandboxes(self) -> list[dict[str, Any]]:
        """
        Those that can ask: `sandbox`, `project`, `age`, `bridge` (whether it answers), `pending`, `refused`.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def open_sandbox(self, path: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """
        Open a sandbox of the profile `approved` over the project *path*: `sandbox`, and `env` for its commands.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def close_sandbox(self, sandbox: str) -> None:
        raise Unsupported("asking", have="nothing", need="it")

    def sync_files(self, sandbox: str) -> list[ApprovalRequest]:
        """
        Make a request of each file that *sandbox* has changed.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def sync_git(self, sandbox: str) -> list[ApprovalRequest]:
        """
        Make a request of each branch that was pushed to `origin` in *sandbox*.
        """
        raise Unsupported("asking", have="nothing", need="it")

    # --- commands that were approved --------------------------------------------------

    def runs(self) -> list[dict[str, Any]]:
        """
        The newest first, each as `run` has it, without output.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def run(self, number: int, wait: float = 0.0) -> dict[str, Any]:
        """
        The command of request *number*: `id`, `status` (pending, approved, denied, running, completed, failed),
        `exit_code`, `output` (both streams as text, the last 256 KiB), `truncated`, `note`.

        Args:
            number: the request's id.
            wait: seconds to wait for its end.

        Raises:
            BadRequest: there is no such command.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def subscribe_output(self, told: OnOutput) -> Callable[[], None]:
        """
        Returns:
            What ends it.
        """
        raise Unsupported("asking", have="nothing", need="it")

    def audit(self, limit: int = 100, sandbox: str = "") -> list[dict[str, Any]]:
        """
        Rows of the record as JSON has them, the newest first; a bad one has `bad`.
        """
        raise Unsupported("asking", have="nothing", need="it")
