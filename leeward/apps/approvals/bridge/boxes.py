"""
The sandboxes that can ask: opened over a copy of a project, each with a bridge.

Holds:     a sandbox that the service has opened ends with the service, since nobody decides for it any more, unless it
           alone has changes that weren't decided (`is_left`). If the service is killed, the bridges end within
           SILENCE_S, and the next service adopts the sandboxes; without one, the daemon ends them after their idle time.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any

from leeward.apps.agents.git_identity import own_settings
from leeward.apps.agents.hiding import FileRules, rules_of
from leeward.apps.agents.hiding_watch import HidingWatch
from leeward.apps.agents.outside import identities
from leeward.apps.agents.project_tree import check_text, hiding_plan
from leeward.apps.agents.settings import load_settings
from leeward.apps.agents.settings_paths import config_home, state_home
from leeward.apps.agents.state_files import own_folder
from leeward.apps.agents.trust import TrustStore
from leeward.apps.approvals.box_rows import last_info
from leeward.apps.approvals.bridge.bridge import Answering, BridgeEnd
from leeward.apps.approvals.bridge.pushes import Staging, variables
from leeward.apps.approvals.carrying.apply import Project
from leeward.apps.approvals.git.git_host import GitFailed, GitIntake
from leeward.apps.approvals.queue.store import write_file
from leeward.apps.approvals.requester import SOCKET, VARIABLE
from leeward.apps.approvals.sync.changes import CollectedChanges
from leeward.apps.approvals.sync.live_sync import LAST_S, LiveSync
from leeward.base.closing import OwnedFd, on_failure
from leeward.base.whole_files import read_whole
from leeward.client.mounts import WORKDIR
from leeward.client.overlay import Overlay
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Busy, LeewardError, RequestRejected, SandboxOver, ShuttingDown, brief
from leeward.spec.pool_key import APPROVED as PROFILE

#: Of a note: its name's end, and its bytes at most.
_ENDING, _MOST_NOTE = ".json", 64 << 20


class BoxNotes:
    """What another service has to know to adopt this one's sandboxes: a file for each, in the service's folder."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "boxes")

    def all(self) -> dict[str, dict[str, Any]]:
        """The notes of all sandboxes by their ids. A file that can't be read is left out."""
        found = dict[str, dict[str, Any]]()
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._folder)):
                if name.endswith(_ENDING):
                    with contextlib.suppress(OSError, ValueError, RecursionError):
                        note = json.loads(read_whole(os.path.join(self._folder, name), _MOST_NOTE) or b"")
                        if isinstance(note, dict) and isinstance(note.get("project"), str):
                            found[name.removesuffix(_ENDING)] = note
        return found

    def write(self, sandbox: str, note: dict[str, Any]) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        write_file(self._path(sandbox), json.dumps(note).encode(), "what the next service needs of a sandbox", lasting=False)

    def remove(self, sandbox: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(sandbox))

    def _path(self, sandbox: str) -> str:
        return os.path.join(self._folder, f"{os.path.basename(sandbox)}{_ENDING}")


#: Sandboxes at once.
MOST_BOXES = 64

#: The folder of the asking side in the sandbox, and its files: a package `leeward` to which another one on the path of
#: modules can add.
_PLACE = "/tmp/.leeward"
_PACKAGE = "import pkgutil\n\n__path__ = pkgutil.extend_path(__path__, __name__)\n"
_EXPORTS = "from leeward.approvals.requester import Agent, AskError, ServiceGone\n"

#: Options of `open`: `agent` is shown with what the sandbox asks for, the others are passed on to Sandbox.
OPTIONS = ("profile", "environment", "egress", "memory", "processes", "descriptors", "files", "idle", "lifetime", "sandbox",
           "agent")

#: The key of a sandbox's metadata with the name of the agent that works in it, as `leeward agent` has it; characters.
AGENT, _MOST_AGENT = "agent", 90

#: Begins a live sync of a sandbox, but for the paths that a function is True for.
Syncing = Callable[..., LiveSync]

#: Seconds until a bridge's socket has to listen.
_BRIDGE_S = 20.0
#: The title of a bridge's process.
_TITLE = "leeward approvals"

#: Seconds without a call that a sandbox stays which is left, when the service has ended. The operator's `sandbox_idle`
#: may be less.
LEFT_S = 600.0
_LIFETIME_S = 7 * 86400.0

#: Seconds between two calls of `info` for each sandbox.
_LOOK_S = 2.0


class AskingBox:
    """
    A sandbox over a copy of *project*, in *inside*, with the asking side, a bridge and, if the project has one, an
    `origin`; BadRequest if the bridge doesn't start. *note* is what another service has noted about a sandbox that is
    adopted.
    """

    def __init__(self, box: Sandbox, project: Project, answering: Answering, until: float | None,
                 git_folder: str, inside: str = WORKDIR, note: Mapping[str, Any] | None = None) -> None:
        self.box, self.project, self.opened = box, project, time.time()
        self.agent = str(box.info().get("metadata", {}).get(AGENT, ""))[:_MOST_AGENT]
        self.staging: Staging | None = None  # to which `origin` leads; None if the project has no `origin`
        self.intake: GitIntake | None = None  # for what is pushed there
        self.git_fault = ""  # why there is no `staging` though the project has an `origin`
        self.sync: LiveSync | None = None
        self.hiding: HidingWatch | None = None  # None if another program has opened the sandbox
        self.hiding_fault = ""  # why the sandbox was ended, if a name couldn't be hidden
        self.collected = CollectedChanges()  # what the operator has asked for of its changes, when its work was over
        self.is_left = False  # it stays, its work over, since it alone has changes that weren't decided
        if note is not None:
            self.is_left = bool(note["left"])
            self.collected.more = int(self.is_left)
            # The bridge of another service, before its silence does.
            self._end_processes(lambda row: row.get("title") == _TITLE and not row["over"])
        self._put()
        if variables(project.path):
            try:
                self.intake = GitIntake(git_folder, project.path)
                self.staging = Staging(box, inside, None if note is None else note["before"])
            except GitFailed as error:
                self.intake = self.staging = None
                self.git_fault = str(error)
        process = box.start(["python3", "-I", f"{_PLACE}/python/leeward/approvals/requester.py"], stdin=None,
                            title=_TITLE)
        self.bridge = BridgeEnd(process, answering, until)
        if not self.bridge.wait(_BRIDGE_S):
            self.bridge.close()
            raise BadRequest(f"the sandbox has no bridge, for which it needs a python3, its image's if it has one:"
                             f" {self.bridge.fault}")

    def _end_processes(self, which: Callable[[Mapping[str, Any]], bool]) -> None:
        for row in self.box.processes():
            if which(row):
                with contextlib.suppress(LeewardError):  # it has ended
                    self.box.process(row["process"]).kill()

    def note(self) -> dict[str, Any]:
        """What another service has to know to adopt the sandbox; for JSON."""
        return {"project": self.project.path, "left": self.is_left, "hides": self.hiding is not None,
                "before": None if self.staging is None else self.staging.before}

    def _put(self) -> None:
        """Write the files of the asking side into the sandbox."""
        package = f"{_PLACE}/python/leeward"
        self.box.files.mkdir(f"{package}/approvals", parents=True, exist_ok=True)
        self.box.files.write(f"{package}/__init__.py", _PACKAGE)
        self.box.files.write(f"{package}/approvals/__init__.py", _PACKAGE + _EXPORTS)
        agent = resources.files("leeward.apps.approvals").joinpath("requester.py").read_text(encoding="utf-8")
        self.box.files.write(f"{package}/approvals/requester.py", agent)

    def row(self) -> dict[str, Any]:
        """The fields of `ApprovalService.sandboxes`, for JSON."""
        return {"sandbox": self.box.id, "project": self.project.path, "agent": self.agent, "age": time.time() - self.opened,
                "bridge": self.bridge.is_alive, "fault": self.hiding_fault or self.bridge.fault,
                "git": self.staging is not None, "git_fault": self.git_fault,
                "sync": None if self.sync is None else self.sync.row()}

    def give_up(self, why: str) -> None:
        self.hiding_fault = why[:500]
        with contextlib.suppress(LeewardError):  # it is over
            self.box.kill()

    def leave(self) -> None:
        """Keep the sandbox, whose work is over, for as long as the daemon lets it live, and end what still runs in it."""
        self.is_left = True
        self._end_processes(lambda row: row["process"] != self.bridge.number)
        with contextlib.suppress(LeewardError):  # it has the longest already
            self.box.extend(idle=LEFT_S)
        with contextlib.suppress(LeewardError):
            self.box.extend(lifetime=_LIFETIME_S)

    def stop(self) -> None:
        """End the sync, after its last pass, the bridge and the hiding; the sandbox stays."""
        if self.sync is not None:
            self.sync.end()
            self.sync.join()
        self.bridge.close()
        if self.hiding is not None:
            self.hiding.stop()

    def close(self) -> None:
        """End the sandbox and its processes, after the last pass of its sync. One that is left stays, without a bridge."""
        self.stop()
        if not self.is_left:
            with contextlib.suppress(LeewardError):  # it is over
                self.box.kill()
        self.bridge.join(2.0)
        if self.is_left:
            self.box.detach()
        else:
            self.box.close()


def environment_of(project: str) -> dict[str, str]:
    """The environment variables of every process in a sandbox over *project*."""
    return {VARIABLE: SOCKET, "PYTHONPATH": f"{_PLACE}/python", "PYTHONUSERBASE": f"{_PLACE}/user",
            **variables(project)}


class AskingBoxes:
    """
    The sandboxes of the service that can ask, MOST_BOXES at once.

    Args:
        until: when the service's time is over, in seconds of `time.monotonic`; None for no end.
        looked: is called with each sandbox and its `info` every two seconds, and with None and {} after the last one.
        ended: is called with each sandbox that has ended, its last `info` and the daemon's reason; None for the reason
            if the service has ended it.
    """

    def __init__(self, socket: str | None, folder: str, until: float | None,
                 looked: Callable[[AskingBox | None, Mapping[str, Any]], None],
                 ended: Callable[[AskingBox, Mapping[str, Any], SandboxOver | None], None]) -> None:
        self._socket, self._folder, self._until, self._looked, self._ended = socket, folder, until, looked, ended
        self._boxes, self._lock = dict[str, AskingBox](), threading.Lock()
        self._attaching: set[str] = set()
        self._opening, self._closed = 0, False
        self._last, self._notes = dict[str, Mapping[str, Any]](), BoxNotes(folder)
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, name="sandboxes", daemon=True)
        self._watch.start()

    def open(self, project: Project, options: Mapping[str, Any], answering: Callable[[str], Answering],
             syncing: Syncing | None = None) -> AskingBox:
        """
        Open a sandbox over a copy of *project*, or attach to one that is open over a copy; *options* are named in
        OPTIONS, of which `sandbox`, the id of an open one, excludes the others. *syncing* begins a live sync, but for
        the paths that a function is True for. BadRequest if there is no such option, or files can't be hidden; Busy at
        MOST_BOXES.
        """
        more = sorted(set(options) - set(OPTIONS))
        if more:
            raise BadRequest(f"no such options: {', '.join(map(str, more))[:200]}")
        with self._place():
            rules = project_rules(project, os.environ)
            begin = None if syncing is None else functools.partial(syncing, hides=rules.hides)
            if "sandbox" in options:
                with self._reserved(options) as name:
                    box, inside = self._attached(project, name)
                    return self._begin(box, project, answering, begin, inside, box.detach)
            hidden = HiddenFiles(project, rules)
            box = self._opened(project, {**options, **hidden.options})
            return self._begin(box, project, answering, begin, WORKDIR, box.close, hidden)

    def _opened(self, project: Project, options: Mapping[str, Any]) -> Sandbox:
        options = dict(options)
        agent = options.pop(AGENT, "")
        if not isinstance(agent, str) or len(agent) > _MOST_AGENT:
            raise BadRequest(f"an agent's name is a text of {_MOST_AGENT} characters at most")
        box = Sandbox(socket=self._socket, workdir=project.path, overlay=True, **{
            "profile": PROFILE, "env": environment_of(project.path),
            "metadata": {"approvals": project.path[:1000], AGENT: agent}, **options})
        try:
            assert box.id
            for path, content in own_settings(project.path, os.environ):
                box.files.write(path, content)  # so that commits in it are the person's
        except RequestRejected as error:
            box.close()
            if "has no home" not in str(error):
                raise
            raise BadRequest(f"the profile {brief(options.get('profile'))} can't hide files such as .env: take"
                             f" {PROFILE}, or one that is based on it") from None
        except BaseException:
            box.close()
            raise
        return box

    def adoptable(self) -> dict[str, str]:
        """The sandboxes that the last service has left, by their ids with the paths of their projects."""
        return {name: str(note["project"]) for name, note in self._notes.all().items()}

    def adopt(self, project: Project, name: str, answering: Callable[[str], Answering]) -> AskingBox:
        """Attach to a sandbox that the last service has left."""
        with self._place(), self._reserved({"sandbox": name}):
            note = self._notes.all()[name]
            hidden = HiddenFiles(project, project_rules(project, os.environ)) if note["hides"] else None
            try:
                box, inside = self._attached(project, name)
                if hidden is not None:  # what has appeared since the last service
                    box.ask("sandbox_hide", {"hide": hidden.options["hide"]})
                return self._begin(box, project, answering, None, inside, box.detach, hidden, note)
            except SandboxOver:
                self._notes.remove(name)
                raise

    def leave(self, box: AskingBox) -> None:
        """As AskingBox.leave; the next service does the same."""
        box.leave()
        self._notes.write(box.box.id, box.note())

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """One of the MOST_BOXES places, while a sandbox is being opened; Busy or ShuttingDown if there is none."""
        with self._lock:
            self._check_open()
            if len(self._boxes) + self._opening >= MOST_BOXES:
                raise Busy(f"{MOST_BOXES} sandboxes can ask already")
            self._opening += 1
        try:
            yield
        finally:
            with self._lock:
                self._opening -= 1

    def _check_open(self) -> None:
        if self._closed:
            raise ShuttingDown("the service for approvals is shutting down")

    def _begin(self, box: Sandbox, project: Project, answering: Callable[[str], Answering],
               syncing: Syncing | None, inside: str, give_up: Callable[[], object],
               hidden: HiddenFiles | None = None, note: Mapping[str, Any] | None = None) -> AskingBox:
        """
        Make an AskingBox of an open sandbox. If that fails *give_up* is called: it closes the sandbox, or detaches from
        one that another program has opened. *hidden* is what it doesn't show, *note* as for AskingBox.
        """
        with on_failure(give_up):
            made = AskingBox(box, project, answering(box.id), self._until, self._folder, inside, note)
        try:
            if hidden is not None:
                made.hiding = hidden.watch(box, made.give_up)
            made.sync = None if syncing is None else syncing(box, asker=made.agent)
            self._notes.write(box.id, made.note())
            with self._lock:
                self._check_open()  # `close_all` ends only those that it finds
                self._boxes[box.id] = made
        except BaseException:
            made.stop()
            give_up()
            if note is None:
                self._notes.remove(box.id)
            raise
        return made

    @contextlib.contextmanager
    def _reserved(self, options: Mapping[str, Any]) -> Iterator[str]:
        """The sandbox's id in *options*, while no other call attaches to it; BadRequest if it can ask already."""
        name = options["sandbox"]
        if len(options) > 1 or not isinstance(name, str):
            raise BadRequest("a sandbox that is there already has its options")
        with self._lock:
            if name in self._boxes or name in self._attaching:
                raise BadRequest("this sandbox can ask already")
            self._attaching.add(name)
        try:
            yield name
        finally:
            with self._lock:
                self._attaching.discard(name)

    def _attached(self, project: Project, name: str) -> tuple[Sandbox, str]:
        """A sandbox of another program of this user's, and the path of its copy of *project*; BadRequest if it has none."""
        box = Sandbox.attach(name, socket=self._socket)
        with on_failure(box.detach):
            overlay = Overlay(box, "")
            with OwnedFd(os.open(project.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
                if not overlay.is_over(folder):
                    raise BadRequest("this sandbox works on no copy of that folder")
        return box, overlay.target

    def get(self, sandbox: str) -> AskingBox:
        """The sandbox with an id; BadRequest if no sandbox of this service has it, or that one has ended."""
        with self._lock:
            found = self._boxes.get(sandbox)
        if found is None:
            raise BadRequest(f"this service has no sandbox {sandbox!a:.80}. If it is open, `leeward diff` shows what it has"
                             " changed, and `leeward apply` applies it")
        return found

    def ids(self) -> list[str]:
        with self._lock:
            return list(self._boxes)

    def rows(self) -> list[dict[str, Any]]:
        return [box.row() for box in self._all()]

    def _all(self) -> list[AskingBox]:
        with self._lock:
            return list(self._boxes.values())

    def end_syncs(self) -> None:
        """Begin the last pass of every sync at once, and wait for all of them: LAST_S seconds at most."""
        syncs = [box.sync for box in self._all() if box.sync is not None]
        for sync in syncs:
            sync.end(LAST_S)
        for sync in syncs:
            sync.join()

    def close(self, sandbox: str) -> None:
        box = self.get(sandbox)
        box.is_left = False
        self._end(box, None)

    def close_all(self) -> None:
        """End all sandboxes, and the thread that looks at them; no others are opened from now on."""
        with self._lock:
            self._closed = True
        self._over.set()
        self._watch.join()
        for box in self._all():
            self._end(box, None)

    def _end(self, box: AskingBox, why: SandboxOver | None) -> None:
        with self._lock:
            if self._boxes.pop(box.box.id, None) is None:
                return
            last = self._last.pop(box.box.id, {})
        if not box.is_left:
            self._notes.remove(box.box.id)
        if why is None:
            info, why = last_info(box.box)
            last = info or last
        box.close()
        self._ended(box, last, why)

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            for box in self._all():
                try:
                    self._last[box.box.id] = info = box.box.info()
                    self._looked(box, info)
                except SandboxOver as error:
                    self._end(box, error)
                except Exception:
                    pass  # it costs this look; if the daemon is away, the bridge's fault says so
            with contextlib.suppress(Exception):  # as above
                self._looked(None, {})


def project_rules(project: Project, environ: Mapping[str, str]) -> FileRules:
    """
    The rules by which files of *project* are hidden, from the settings of agents; BadRequest if these can't be used.

    What the project's own settings ask to show counts only after the user has accepted them.
    """
    settings = load_settings(project.fd, project.path, config_home(environ), environ)
    asked = {grant.what for grant in settings.widening if grant.kind == "include"}
    if asked and TrustStore(os.path.join(own_folder(state_home(environ)), "trust")).accepted(
            os.fsencode(project.path), settings.widening, os.fstat(project.fd).st_uid):
        asked = set()
    return rules_of(settings.exclude, [each for each in settings.include if each.text not in asked])


class HiddenFiles:
    """
    The files of *project* that one sandbox doesn't show: those that `leeward agent start` hides. `options` are of the
    Sandbox.
    """

    def __init__(self, project: Project, rules: FileRules) -> None:
        self._project, self._rules = project, rules
        self._plan = hiding_plan(project.fd, rules, project.path)
        check_text(each.path for each in self._plan.hidden)
        self._there = identities(f"/proc/self/fd/{project.fd}", (each.path for each in self._plan.hidden))
        self.options: dict[str, Any] = {
            "own_home": True, "hide": [f"{WORKDIR}/{each.path}" for each in self._plan.hidden],
            "pin": [f"{WORKDIR}/{path}" for path in self._plan.pinned]}

    def watch(self, box: Sandbox, end: Callable[[str], None]) -> HidingWatch:
        """
        Hide what appears in the project from now on, until the caller stops that; *end* gets the reason if a name can't
        be.
        """
        made = HidingWatch(box, self._rules, self._project.fd, self._project.path, WORKDIR, self._there,
                           self._plan.absent, lambda line: None, end)
        made.start()
        return made
