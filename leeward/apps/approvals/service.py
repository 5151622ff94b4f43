"""
The service as one object: the queue, the record, the carrying out of orders, and the sandboxes that can ask.

Runs in:   a process of its own, `leeward approvals serve`, as the operator's user; a client of the daemon.
Threads:   any may call. Methods block on disks, on the daemon and some on a sandbox, so an event loop calls them in
           threads. Subscribers are called by any thread and have to return soon.
Trust:     none in a sandbox's requests. The code that serves this object decides by the credential (`gate`) and the
           route (`routes`) who may call what; this object doesn't check that.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from leeward.apps.approvals.box_rows import EgressRows, OtherBoxes, SandboxRows, last_counts
from leeward.apps.approvals.bridge.boxes import AGENT, AskingBox, AskingBoxes
from leeward.apps.approvals.bridge.bridge import Answering
from leeward.apps.approvals.bridge.pushes import ask_for_pushes, needed_commits
from leeward.apps.approvals.carrying.apply import OpenProjects, Project, in_project
from leeward.apps.approvals.carrying.asking import (
    command_request,
    config_request,
    package_requests,
    parse_request,
    text_field,
)
from leeward.apps.approvals.carrying.carrying import OnOutput, OrderCarrier, RunBook, run_before
from leeward.apps.approvals.carrying.detail import command_in, content_of, detail_of, part_of, pushed_of
from leeward.apps.approvals.carrying.orders import EXEC_S, command_order, unpacked
from leeward.apps.approvals.carrying.settings import ServiceSettings
from leeward.apps.approvals.daemon_view import DaemonView
from leeward.apps.approvals.git.git_host import GitStore
from leeward.apps.approvals.git.pushed_changes import PushedChanges
from leeward.apps.approvals.queue.approval_request import ApprovalRequest, Resolution
from leeward.apps.approvals.queue.asks import EgressQuestions
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import subject_title
from leeward.apps.approvals.recording import newest_rows, record
from leeward.apps.approvals.sync.changes import CollectedChanges, SyncOutcome, ask_for_changes, collect_changes
from leeward.apps.approvals.sync.live_sync import begin_sync
from leeward.apps.approvals.sync.syncing import sync_option
from leeward.apps.audit.record import AuditRecord, BoundedJournal
from leeward.apps.audit.record_lines import AuditRow
from leeward.errors import BadRequest

#: Seconds that `sync_files` waits for the live sync.
_FLUSH_S = 10.0
#: Sandboxes that are adopted at once.
_ADOPTERS = 8



class ApprovalService:
    """
    Of the queue, which routes call to decide, it carries out what is approved. *folder* is the queue's, for the
    settings and what was pushed, *project* for the operator's own requests about files, *until* the end of the
    service's time in seconds since the epoch.

    Attributes:
        started: seconds since the epoch.
        ends: *until* in seconds of `time.monotonic`, which changes of the clock don't move; None for no end.
        port: of the page on 127.0.0.1; None for no page.
        daemon: what the page shows of the daemon.
        answering: returns the answering function of a sandbox's bridge, by the sandbox's id; set by `serving` before
            the first sandbox is opened.
    """

    def __init__(self, queue: ApprovalQueue, journal: AuditRecord, folder: str, project: Project | None = None,
                 until: float | None = None, socket: str | None = None) -> None:
        self.queue, self.journal, self.project, self.until = queue, journal, project, until
        self.started = time.time()
        self.ends = None if until is None else time.monotonic() + until - self.started
        self.port: int | None = None
        self.daemon = DaemonView(socket)
        self.answering: Callable[[str], Answering] | None = None
        self._at_stop = list[Callable[[], None]]()
        self._runs, self._settings = RunBook(), ServiceSettings(folder, queue)
        self._rows = BoundedJournal(journal)
        record(queue, self._rows)
        self._projects = OpenProjects(project)
        self._egress = EgressRows(socket)
        self._life = SandboxRows(self._rows, self._egress, functools.partial(last_counts, socket))
        self._others = OtherBoxes(socket, self._life)
        self._carrier = OrderCarrier(queue, self._runs, self._settings, self._projects, socket, self._life)
        self._asks = EgressQuestions(queue, socket, self._about)
        self._boxes = AskingBoxes(socket, folder, self.ends, self._looked,
                                  lambda box, info, why: self._life.end(box.box.id, info, why))
        self._git = GitStore(folder, functools.partial(needed_commits, queue), self._boxes.ids)

    def start(self) -> None:
        """Start the threads, and carry out what was approved or begun when the service ended the last time."""
        self.changed("", "serve", "started", port=self.port, until=self.until, project=self._home(""))
        self._carrier.start()
        self._git.start()
        self._asks.start()
        self._egress.skip()
        with ThreadPoolExecutor(_ADOPTERS, "adopting") as pool:
            for sandbox, path in self._boxes.adoptable().items():
                pool.submit(self._adopt, sandbox, path)

    def _adopt(self, sandbox: str, path: str) -> None:
        """Take over a sandbox that the last service has left."""
        if self.answering is None:
            return
        try:
            with self._life.opening():
                self._boxes.adopt(self._projects.open(path), sandbox, self.answering)
                self._life.begin(sandbox, project=path, adopted=True)
        except Exception as error:  # it costs this sandbox, which the operator finds by its id
            self.changed("", "serve", "not adopted", sandbox=sandbox, why=type(error).__name__)

    def stop(self) -> None:
        """
        Make the last pass of live syncs, deny what is pending, call the subscribers of the stop, end all sandboxes, and
        wait for writes and pushes. The queue and the record stay open.
        """
        self._boxes.end_syncs()
        self.queue.shut_down()
        for subscriber in list(self._at_stop):
            subscriber()
        self._asks.close()
        self._boxes.close_all()
        self._carrier.close()
        self._git.close()
        self._egress.close()
        self._others.close()
        self._projects.close()
        self.changed("", "serve", "ended")

    def subscribe_stop(self, subscriber: Callable[[], None]) -> Callable[[], None]:
        """
        Call *subscriber* once, by any thread, when the service stops, after the pending requests were denied. Returns
        what ends the subscription.
        """
        self._at_stop.append(subscriber)
        return lambda: self._at_stop.remove(subscriber)

    def status(self) -> dict[str, Any]:
        """
        `started` and `until` in seconds since the epoch, `uptime` and `remaining` in seconds (None without an end),
        `pending` and `sandboxes` (numbers), `pending_by_category`, `lost` (lines of the record that weren't written),
        `trouble` (why not, or ""), `asks` (why no asks of egress arrive, or "").
        """
        now, counts = time.time(), self.queue.counts()
        return {"started": self.started, "port": self.port, "uptime": now - self.started, "until": self.until,
                "remaining": None if self.ends is None else max(0.0, self.ends - time.monotonic()),
                "pending": sum(counts.values()), "pending_by_category": counts,
                "sandboxes": len(self._boxes.rows()), "lost": self.journal.lost,
                "trouble": self.journal.trouble, "asks": self._asks.trouble}

    # --- requests ---------------------------------------------------------------------

    def _project_for(self, sandbox: str) -> Project | None:
        """The project of a sandbox, or of the operator by ""; None for none, and for a sandbox that has just ended."""
        try:
            return self._boxes.get(sandbox).project if sandbox else self.project
        except BadRequest:
            return None

    def _home(self, sandbox: str) -> str:
        """The path of that project; "" for none."""
        project = self._project_for(sandbox)
        return "" if project is None else project.path

    def _agent(self, sandbox: str) -> str:
        """The name of the agent that works in a sandbox; "" if none is known."""
        try:
            return self._boxes.get(sandbox).agent if sandbox else ""
        except BadRequest:
            return ""

    def _about(self, sandbox: str) -> tuple[str, str]:
        """The path of a sandbox's project, and its agent, as the program of this user that opened it has said; or ""."""
        said = self._others.metadata(sandbox)
        return self._home(sandbox) or said.get("project", ""), said.get(AGENT, "")

    def ask(self, fields: Mapping[str, Any], sandbox: str = "") -> ApprovalRequest:
        """
        Make a request of the operator's or of *sandbox* from the fields of a JSON object, which aren't trusted:
        `category`, then `host` and `port`; or `action` (write, edit, delete) with `path`, `content` or `old` and `new`;
        or `command`; or `branch`; or `action` alone (sandbox). `description`, `reason` and `asker` for all. BadRequest
        or EditError says why it is none.
        """
        if fields.get("category") == "exec":
            texts = {name: text_field(fields, name, "") for name in ("cwd", "reason", "profile", "asker")}
            return self.submit_exec(fields.get("command", ""), timeout=fields.get("timeout", EXEC_S), sandbox=sandbox,
                                    **texts)
        asker = text_field(fields, "asker", "") or self._agent(sandbox)
        return self.queue.submit(parse_request({**fields, "asker": asker}, self._project_for(sandbox), sandbox))

    def submit_exec(self, command: Any, *, cwd: str = "", reason: str = "", timeout: Any = EXEC_S, profile: str = "",
                    sandbox: str = "", asker: str = "") -> ApprovalRequest:
        """
        Request that a command, a line or arguments, is run, for the seconds of the key `exec.timeout` at most; errors
        as for `ask`.

        *profile* is of a sandbox that is opened for the command; "" for the key `exec.profile`, or without it the
        requesting sandbox. Only the operator may set it, since a rule allows a command in any profile, and has to
        without a sandbox.
        """
        if sandbox and profile:
            raise BadRequest("a sandbox can't choose the profile of a command; the operator sets the key exec.profile")
        settings = self._settings.all()
        order = command_order(command, cwd=cwd, timeout=timeout, profile=profile or str(settings["exec.profile"]))
        order = replace(order, timeout=min(order.timeout, float(settings["exec.timeout"])))
        if not order.profile and not sandbox:
            raise BadRequest("a command of no sandbox needs a profile")
        return self.queue.submit(command_request(order, reason=reason, sandbox=sandbox, asker=asker or self._agent(sandbox),
                                                 project=self._home(sandbox)))

    def submit_packages(self, command: str | Sequence[str], *, reason: str = "", sandbox: str = "",
                        asker: str = "") -> list[ApprovalRequest]:
        """Make a request for each package of a command; it is added or removed in the requesting sandbox."""
        news = package_requests(command, timeout=float(self._settings.all()["exec.timeout"]), reason=reason,
                                sandbox=sandbox, asker=asker or self._agent(sandbox), project=self._home(sandbox))
        return [self.queue.submit(new) for new in news]

    def propose_config(self, key: str, value: Any, *, reason: str = "", sandbox: str = "",
                       asker: str = "") -> ApprovalRequest:
        """Request a new value for a key of the configuration. It is set if a person approves, not if a rule does."""
        return self.queue.submit(config_request(key, value, reason=reason, sandbox=sandbox,
                                                asker=asker or self._agent(sandbox), project=self._home(sandbox)))

    # --- the operator's ---------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """Each key of the configuration with its value."""
        return dict(self._settings.all())

    def set_config(self, key: str, value: Any) -> dict[str, Any]:
        """Set a key of the configuration; returns `config`."""
        self._settings.set(key, value)
        return self.config()

    def detail(self, number: int, *, whole: bool = False) -> dict[str, Any]:
        """
        What request *number* would carry out. A file: `kind` "file", `path`, `type`, `before` and `after` (text; None
        if it isn't text or is too large), `link`, `mode`, `base_mode`, `stale` (why the order doesn't fit the host any
        more, or ""), and `hunks` (each with `old_start`, `old`, `new_start`, `new`: lines; [] if the change can only be
        decided as a whole); `ends` of a text without hunks (`first`, `last`, `left_out` bytes; with *whole* 4 MiB of it,
        else 40 KiB), `size` and `base_size` in bytes, and `content` and `base_content` (what it is if it isn't text, or
        ""). A command: `kind` "command", `argv`, `line`, `cwd`, `timeout`, `profile`. A push: `kind`
        "push", `branch`, `commit`, `remote`, `commits`, `diff`. A setting: `kind` "config", `key`, `value`. Otherwise
        `kind` is "none".
        """
        request = self._request(number)
        return detail_of(request, self.queue.payload(number), self._project_of(request), whole=whole)

    def _project_of(self, request: ApprovalRequest) -> Project | None:
        """The project of a file's request; None if it can't be opened, and for other requests."""
        try:
            return self._projects.of(request) if request.category == "filesystem" else None
        except BadRequest:
            return None

    def pushed(self, number: int, commit: str = "") -> PushedChanges:
        """The commits of a push and the files of all of it or of one *commit*; BadRequest if it isn't one of them."""
        return pushed_of(self._request(number), self.queue.payload(number), commit)

    def content(self, number: int, side: str, commit: str = "", place: int = 0) -> bytes:
        """
        The content of a file "before" or "after" the change of request *number*; of a push that of the file at *place*
        in `pushed`. BadRequest if there is none.
        """
        request, payload = self._request(number), self.queue.payload(number)
        if request.category == "git":
            return pushed_of(request, payload, commit).content(place, side)
        if request.category != "filesystem" or payload is None:
            raise BadRequest(f"request {number} is about no file")
        return content_of(unpacked(payload), self._project_of(request), side)

    def approve_hunks(self, number: int, hunks: Sequence[int], by: str) -> Resolution:
        """
        Approve a part of a change of a file: a new request with only these hunks, places in the `hunks` of `detail`,
        supersedes the old one, and is approved. BadRequest if there are no such hunks, Stale if the file on the host
        was changed.
        """
        request, payload = self._request(number), self.queue.payload(number)
        if request.status != "pending":
            return Resolution(before=(request,))
        if request.category != "filesystem" or payload is None:
            raise BadRequest(f"request {number} isn't a change of a file")
        project = self._projects.of(request)
        return self.queue.replace(number, in_project(part_of(request, payload, project, hunks), project), by)

    def approve_in(self, number: int, profile: str, by: str) -> Resolution:
        """
        Approve that a command is run in a new sandbox of *profile*, or by "" in the requesting sandbox: a new request
        supersedes the old one, and is approved.
        """
        request, payload = self._request(number), self.queue.payload(number)
        if request.status != "pending":
            return Resolution(before=(request,))
        if request.category != "exec" or payload is None:
            raise BadRequest(f"request {number} isn't a command")
        return self.queue.replace(number, command_in(request, payload, profile), by)

    def _request(self, number: int) -> ApprovalRequest:
        request = self.queue.get(number)
        if request is None:
            raise BadRequest(f"there is no request {number}")
        return request

    def changed(self, by: str, action: str, decision: str, **metadata: Any) -> None:
        """Record a change that affects later decisions: by "cli" or "page" of the operator's, by "" of the service's own."""
        self.journal.write(AuditRow(time.time(), "service", action, decision, by=by, metadata=metadata))

    # --- sandboxes --------------------------------------------------------------------

    def sandboxes(self) -> list[dict[str, Any]]:
        """
        The sandboxes that can ask: `sandbox`, `project`, `agent`, `age` in seconds, `bridge` (whether it runs), `fault` (why
        not), `git` (whether there is an `origin`), `git_fault` (why not), `sync` (as `LiveSync.row`; None without).
        """
        return self._boxes.rows()

    def open_sandbox(self, path: Any, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """
        Open a sandbox over a copy of the project *path*, whose processes can ask; returns a row of `sandboxes`.

        *options*: `profile` ("approved" by default), `environment`, `egress`, `memory`, `processes`,
        `descriptors`, `files`, `idle`, `lifetime`, as for Sandbox, `agent` (its name, for people); or `sandbox` alone,
        the id of one that is open over a copy of the project; `sync` (True for a live sync), `sync_after` (a path that
        has to be in the copy before the sync begins, such as .git/HEAD). BadRequest for any other.
        """
        if self.answering is None:
            raise BadRequest("nobody answers bridges here")
        if not isinstance(path, str) or not path.startswith("/"):
            raise BadRequest("a project is an absolute path")
        project, rest = self._projects.open(os.path.realpath(path)), dict(options or {})
        after = sync_option(rest)
        with self._life.opening():
            made = self._boxes.open(project, rest, self.answering, None if after is None else functools.partial(
                begin_sync, project=project, queue=self.queue, journal=self.journal, after=after))
            self._life.begin(made.box.id, project=made.project.path)
        return made.row()

    def close_sandbox(self, sandbox: str, *, left: bool = False) -> bool:
        """
        End a sandbox and its processes. Its pending requests stay. With *left* keep it if the last `collect_files` has
        left changes in it: they are asked for when the requests before them are decided, and it ends when all are.
        Returns whether it stays.
        """
        box = self._boxes.get(sandbox)
        if left and box.collected.left:
            self._boxes.leave(box)
            return True
        self._boxes.close(sandbox)
        return False

    def _looked(self, box: AskingBox | None, info: Mapping[str, Any]) -> None:
        if box is None:  # the round is over
            self._carrier.look()
            self._life.pull()
            self._others.look()
            return
        self._life.look(box.box.id, info)
        if box.is_left and box.collected.more and not self.queue.pending(1, 0, "filesystem", box.box.id):
            collect_changes(self.queue, box.box, box.project, box.collected, asker=box.agent)
            if not box.collected.left:
                self._boxes.close(box.box.id)

    def sync_files(self, sandbox: str, reason: str = "", asker: str = "") -> SyncOutcome:
        """
        Make a request for each file that *sandbox* has changed; with live sync, for those that it hasn't written.
        Errors are those of `Sandbox.diff`.
        """
        box = self._boxes.get(sandbox)
        if box.sync is not None:
            box.sync.flush(_FLUSH_S)
        return ask_for_changes(self.queue, box.box, box.project, reason=reason, asker=asker or box.agent)

    def collect_files(self, sandbox: str, reason: str = "", asker: str = "", *, again: bool = False) -> SyncOutcome:
        """
        As `sync_files`, for the operator, when the sandbox's work is over: it takes as many changes as the queue has
        room for, and returns within a minute; with *again* without what the calls before have asked for.
        """
        box = self._boxes.get(sandbox)
        if not again:
            if box.sync is not None:
                box.sync.flush(_FLUSH_S)
            box.collected = CollectedChanges()
        return collect_changes(self.queue, box.box, box.project, box.collected, reason=reason, asker=asker or box.agent)

    def sync_git(self, sandbox: str, reason: str = "", asker: str = "") -> SyncOutcome:
        """Make a request for each branch that was pushed to `origin` in *sandbox*; BadRequest if its project has none."""
        box = self._boxes.get(sandbox)
        if box.staging is None or box.intake is None:
            raise BadRequest(box.git_fault or "this project has no origin to push to")
        return ask_for_pushes(self.queue, self._git, box.staging, box.intake, sandbox=box.box.id, project=box.project.path,
                              reason=reason, asker=asker or box.agent)

    # --- commands that were approved --------------------------------------------------

    def runs(self) -> list[dict[str, Any]]:
        """The commands of this service, the newest first, each as `run` returns it, without output, and its `title`."""
        return [{**row, "title": subject_title(request.subject) if (request := self.queue.get(row["id"])) else ""}
                for row in self._runs.rows()]

    def run(self, number: int, wait: float = 0.0) -> dict[str, Any]:
        """
        The command of request *number*: `id`, `status` (pending, approved, denied, running, completed, failed),
        `exit_code`, `output` (both streams as text, the last 256 KiB), `truncated`, `note`, `started`, `ended`. Waits
        *wait* seconds for its end; BadRequest if there is none.
        """
        request = self._request(number)
        if request.category not in ("exec", "packages"):
            raise BadRequest(f"request {number} isn't a command")
        return self._runs.get(number, wait) or run_before(request)

    def subscribe_output(self, subscriber: OnOutput) -> Callable[[], None]:
        """
        Call *subscriber* with all output of commands: the request's id, "stdout" or "stderr", and bytes. Returns what
        ends that.
        """
        return self._runs.subscribe(subscriber)

    def audit(self, limit: int = 100, sandbox: str = "") -> list[dict[str, Any]]:
        """Rows of the record, the newest first, as `newest_rows` returns them."""
        return newest_rows(self.journal.folder, limit, sandbox)
