"""
One agent from its start to its end: hooks, a sandbox, the agent's process, and undoing each of them.

Theory of operation. Each step that has to be undone is in the registry before it is taken, so another program can undo
it after a kill -9 (`reap`). `__exit__` undoes every step that was begun: first the sandbox, with its processes, its
files and its leases of egress; then it runs the clean-up hooks, each even if another one fails. A sandbox whose program
was killed ends with that program's connection.

A user waits for the agent's first byte, so this program works while the daemon does. While the sandbox is opened it
writes the record, if nothing has to be undone yet, and looks at what the agent could change. The threads begin when the
agent's process has been started, or before the first step that may take long.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from leeward.apps.agents import outside
from leeward.apps.agents.definition import AgentDefinition
from leeward.apps.agents.errors import HookFailed
from leeward.apps.agents.hiding import FileRules
from leeward.apps.agents.instance_names import names_of
from leeward.apps.agents.instances import HeldInstance, Instance, InstanceRegistry, UndoStep, identity_of
from leeward.apps.agents.project_tree import MAX_REPORTED, hiding_plan
from leeward.apps.agents.request import MOST_STAGED, OPENED, AgentRequest, OpenedMounts
from leeward.apps.agents.settings import AgentSettings
from leeward.apps.agents.written import open_beside, writable_by_agents
from leeward.base.closing import OwnedFd
from leeward.base.dataclass import replace
from leeward.client.process import Process
from leeward.client.sandbox import Sandbox
from leeward.errors import (
    Busy,
    DaemonAway,
    DaemonError,
    LeewardError,
    ProcessOver,
    RequestRejected,
    SandboxOver,
    reason_of,
)
from leeward.spec.folders import within
from leeward.spec.obeyed.lookup import by_danger
from leeward.spec.obeyed.search import ObeyedPaths
from leeward.spec.paths import client_socket

# Imported in functions: what not every start needs; 9 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.apps.agents.answers import RunAnswers
    from leeward.apps.agents.hiding_watch import HidingWatch
    from leeward.client.protecting import FolderGuard
    from leeward_cli.approved_sandboxes import ApprovedAgent

#: Seconds between requests while no process is there to wait for.
_LOOK_S = 2.0
#: The most seconds that one request waits.
WAIT_S = 900.0


class SandboxHold:
    """
    Keeps *box* from ending by its idle time or lifetime until `stop`, in a thread: while the agent's process runs, a
    request waits for its end, and a waiting request counts as use.

    The request of a stopped program (SIGSTOP) waits for WAIT_S at most. If this program dies, even by kill -9, the
    daemon ends the sandbox, which its connection holds.
    """

    def __init__(self, box: Sandbox) -> None:
        self._box = box
        self._process = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, process: int) -> None:
        """Wait for the process with the number *process*; 0 for none."""
        self._process = process

    def stop(self) -> None:
        self._over.set()

    def _keep(self) -> None:
        with contextlib.suppress(DaemonError):  # the sandbox has ended, which its user's next call reports
            lifetime = float(self._box.info()["left"])
            wait = max(1.0, min(WAIT_S, lifetime / 4))
            while not self._over.is_set():
                process = self._process
                if process:
                    with contextlib.suppress(ProcessOver):
                        self._box.ask("process_wait", {"process": process, "wait": wait})
                    if self._process == process:
                        self._process = 0
                self._box.extend(lifetime=max(1.0, lifetime - 1.0))
                if not self._process:
                    self._over.wait(_LOOK_S)


#: Seconds that a hook on the host, and a clean-up hook, may take.
HOOK_S, CLEANUP_S = 600.0, 60.0
#: Seconds that a copy stays whose changes couldn't be applied.
KEPT_S = 600.0
#: Seconds that a hook in the sandbox may take.
_INSIDE_S = 600.0
#: The command of an interactive shell.
SHELL = ("/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")

Tell = Callable[[str], None]


class AgentRun:
    """
    A context: the agent's sandbox, ready for its process.

    *asking* connects the sandbox with the service for approvals. *hiding* is a descriptor of the project's folder, the
    rules by which new names are hidden while the agent runs, and its `HidingPlan.obeyed`; None to hide only the names
    that exist at the start. `undoing` is called before the steps are undone, also if the start has failed; `given_up`
    says that the agent was ended since a name couldn't be hidden.
    """

    def __init__(self, definition: AgentDefinition, settings: AgentSettings, request: AgentRequest, project: str,
                 registry: InstanceRegistry, environ: Mapping[str, str], tell: Tell, socket: str | None = None,
                 asking: ApprovedAgent | None = None,
                 hiding: tuple[int, FileRules, ObeyedPaths] | None = None) -> None:
        self.asking, self._hiding = asking, hiding
        self._watch: HidingWatch | None = None
        self._definition, self.settings, self._request = definition, settings, request
        self.project, self._registry, self._environ, self._tell, self._socket = (project, registry, environ, tell,
                                                                                  socket)
        # Another folder may get the path, such as one of another user's who can write to the folder above.
        self._folder = project if hiding is None else f"{OPENED}{hiding[0]}"
        self._held: HeldInstance | None = None
        self._keeper: SandboxHold | None = None
        self.box: Sandbox | None = None
        self._opened_mounts: OpenedMounts | None = None
        self._guard: FolderGuard | None = None  # of a worktree's folder in its repository
        self._before: dict[str, str] | None = None
        self._files: tuple[tuple[str, bytes], ...] = ()  # of leeward's own, for the sandbox's home
        self._answers: RunAnswers | None = None
        self._hidden: dict[str, tuple[int, int]] = {}
        self._process: Process | None = None
        self._ended = self._copy_kept = self.given_up = False
        self.undoing: Callable[[], None] = lambda: None

    @property
    def asks(self) -> bool:
        """Whether a person is asked about hosts that aren't allowed."""
        return "ask" in self._request.options["policy"]

    @property
    def name(self) -> str:
        return "" if self._held is None else self._held.instance.name

    def __enter__(self) -> AgentRun:
        self._held = self._claim()
        try:
            self._set_up()
        except BaseException:
            self.undoing()
            self._tear_down()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.undoing()
        self._tear_down()

    # --- beginning ------------------------------------------------------------------

    def _claim(self) -> HeldInstance:
        hooks = (*self.settings.hooks.cleanup_host, *self._definition.hooks.cleanup_host)
        row = Instance("", self._definition.name, self.project, os.getpid(), time.time(), hosts=self._request.hosts,
                       undo=tuple(UndoStep("hook", line) for line in hooks), folder=identity_of(self._folder))
        for name in names_of(os.fsencode(self.project), self._definition.name):
            with contextlib.suppress(Busy):
                return self._registry.claim(replace(row, name=name), later=not hooks)
        raise Busy(f"too many of {self._definition.name} run on {self.project!a:.200} already")

    def _set_up(self) -> None:
        if self._request.worktree is not None:  # before the first look at what programs on the host obey
            self._guard, names = self._request.worktree.guard()
            self._request.options["protect"] += names
        self._hidden = outside.identities(self._folder, self._request.hidden)
        hooks = [(self._definition.hooks, self.settings.hooks)]
        if any(each.setup_host for both in hooks for each in both):
            self._look_before()
        for ours, theirs in hooks:
            for line in (*ours.setup_host, *theirs.setup_host):
                self._on_host(line, HOOK_S)
        self._opened_mounts = OpenedMounts(self._request, self._environ)
        assert self._held is not None
        box = self._opened()
        self._look_before()  # if the daemon's answer was there without a wait
        if self.asking is not None:
            self._attend(box)
            self.asking.opened(box.id)
        if self._request.staged or self._files or self._answers is not None:
            self._attend(box)
            self._stage(box)
        if any(each.setup or each.prestart for both in hooks for each in both):
            self._attend(box)
            self._record_sandbox(box)  # they may take long
        for ours, theirs in hooks:
            for what in ("setup", "prestart"):
                for line in (*getattr(ours, what), *getattr(theirs, what)):
                    self._inside(box, what, line)

    def _look_before(self) -> None:
        """Note what the agent could change that programs of the host run, and record the instance; once."""
        if self._before is None:
            import leeward.apps.agents.hiding_watch  # for `_attend`, while the daemon works
            from leeward.apps.agents.git_identity import own_settings

            self._files = tuple((path, content) for path, content in own_settings(self.project, self._environ)
                                if not any(within(path, target) for target in self._taken()))
            if self._definition.answers:
                from leeward.apps.agents.answers import RunAnswers

                self._answers = RunAnswers(self._definition, self.project, self._request.cwd, self._environ)
            if self._request.staged or self._files or self._answers is not None:
                import leeward.client.files  # noqa: F401  # for `_stage`

            assert self._held is not None
            if not self._held.instance.undo:  # else it was recorded by `_claim`
                self._held.record(self._held.instance)
            self._before = self._obeyed(None if self._hiding is None else self._hiding[2])

    def _taken(self) -> list[str]:
        """The paths in the sandbox that have content of the host's."""
        home = os.path.realpath(self._environ.get("HOME") or "/")
        return [*(mount.target for mount in self._request.options["mounts"] if mount.target != home),
                *(target for _, target in self._request.staged)]

    def _obeyed(self, there: ObeyedPaths | None) -> dict[str, str]:
        """What programs on the host obey in the project, in libraries that the agent can write to, and in its state."""
        found = outside.snapshot(self._folder, there)
        for mount in self._request.options["mounts"]:
            source = os.fspath(mount.source)
            if source in self._request.folders:
                found |= outside.state_snapshot(source, os.path.realpath(self._environ.get("HOME") or "/"))
            elif self._request.worktree is not None and within(mount.target, self._request.worktree.folder):
                continue
            elif mount.writable and not source.startswith(OPENED):
                found |= {os.path.join(source, path): state for path, state in outside.snapshot(source).items()}
        return found if self._request.worktree is None else {**found, **self._request.worktree.links()}

    def _attend(self, box: Sandbox) -> None:
        """Begin the threads that keep the sandbox and hide new names, unless they have begun."""
        if self._keeper is not None:
            return
        self._keeper = SandboxHold(box)
        if self._process is not None:
            self._keeper.watch(self._process.number)
        self._keeper.start()
        if self._hiding is not None:
            from leeward.apps.agents.hiding_watch import HidingWatch

            project, rules, _ = self._hiding
            self._watch = HidingWatch(box, rules, project, self.project, self._request.cwd, self._hidden, (
                path for path in self._request.hidden if path not in self._hidden), self._tell, self._give_up)
            self._watch.start()

    def _record_sandbox(self, box: Sandbox) -> None:
        """Record the sandbox's id, for `list` and `attach`, and for a program that undoes this start."""
        assert self._held is not None
        row = self._held.instance
        if not row.sandbox:
            self._held.record(replace(row, sandbox=box.id, undo=(*row.undo, UndoStep("sandbox", box.id))))

    def _opened(self) -> Sandbox:
        """Open the sandbox. If the operator's policy has no place for the agent's secrets, they are variables."""
        options, secrets = self._request.options, self._request.secrets
        try:
            if not secrets:
                return self._sandbox(options)
            return self._sandbox({**options, "policy": {**options["policy"], "secrets": {
                name: {"hosts": list(hosts)} for name, (_, hosts) in secrets.items()}}})
        except RequestRejected as error:
            if not secrets or "secrets." not in str(error):
                raise
        values = {name: value for name, (value, _) in secrets.items()}
        return self._sandbox({**options, "env": {**values, **options["env"]}})

    def _sandbox(self, options: Mapping[str, Any]) -> Sandbox:
        assert self._opened_mounts is not None
        self.box = Sandbox(socket=self._socket, held=True, metadata={
            "agent": self._definition.name, "instance": self.name, "project": self.project[:4096]},
            **{**options, "mounts": self._opened_mounts.mounts})
        self.box.beside_opening = self._look_before
        try:
            assert self.box.id
        except BaseException:
            self.box.close()
            self.box = None
            raise
        return self.box

    def _stage(self, box: Sandbox) -> None:
        """Write into the sandbox's home what the agent gets copies of."""
        files = {target: content for source, target in self._request.staged
                 if (content := self._content(source)) is not None}
        if self._answers is not None:
            files |= self._answers.copies(files, self._content)
        for target, content in (*files.items(), *self._files):
            box.files.write(target, content)

    def _content(self, source: str) -> bytes | None:
        """The content of a file of the host that is to be copied; None without one."""
        try:
            with OwnedFd(open_beside(source, writable_by_agents(self._request.written, self._environ))) as name:
                if not stat.S_ISREG(os.fstat(name).st_mode):  # to open a FIFO waits for its other end
                    raise RequestRejected(f"{source!a:.200} is no regular file, and is to be copied")
                with open(f"/proc/self/fd/{name}", "rb") as file:
                    content = file.read(MOST_STAGED + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RequestRejected(f"{source!a:.200}: {reason_of(error)}") from None
        if len(content) > MOST_STAGED:
            raise RequestRejected(f"{source!a:.200} has more than {MOST_STAGED} bytes, and is to be copied")
        return content

    def _on_host(self, line: str, seconds: float) -> None:
        from leeward.apps.agents.host_hooks import run_hook  # most starts have none

        run_hook(line, self._folder, {**self._environ, "LEEWARD_AGENT": self._definition.name,
                                      "LEEWARD_INSTANCE": self.name}, seconds)

    def _inside(self, box: Sandbox, what: str, line: str) -> None:
        got = box.shell(line, cwd=self._request.cwd, timeout=_INSIDE_S)
        if got.exit_code:
            said = (got.stderr_text or got.stdout_text).strip()[-2000:]
            why = f": {said!a}" if said else ""
            raise HookFailed(f"{what}: {line!a:.200} ended with status {got.exit_code}{why}")

    # --- the agent ------------------------------------------------------------------

    def start(self, instead: Sequence[str] | None, size: tuple[int, int] | None, env: Mapping[str, str]) -> Process:
        """
        Start the agent, or *instead*, a shell if that is empty; *size* is that of a terminal, None for pipes. A shell is
        also what an agent without a program is.
        """
        assert self.box is not None
        argv = list((self._request.argv if instead is None else instead) or SHELL)
        title = self._definition.name if instead is None else "shell"
        common: dict[str, Any] = {"cwd": self._request.cwd, "env": env, "title": title}
        process = (self.box.start(argv, stdin=None, **common) if size is None else
                   self.box.terminal(argv, size, **common))
        self._process = process
        if self._keeper is not None:
            self._keeper.watch(process.number)
        self._attend(self.box)
        self._record_sandbox(self.box)  # after the start, so that the program doesn't wait for it
        if self.given_up:  # `_give_up` has run before `_process` was set
            process.kill()
        return process

    def _give_up(self, why: str) -> None:
        """End the agent's process, or the sandbox if it hasn't started. Changes in an overlay stay if it has."""
        self.given_up = True
        self._tell(f"the agent is ended: {why}")
        with contextlib.suppress(DaemonError):
            if self._process is not None:
                self._process.kill()
            elif self.box is not None:
                self.box.close()

    def written_outside(self) -> list[str]:
        """The paths that programs on the host obey and that have changed since the start, the most dangerous first."""
        if self._hiding is None:
            return sorted(outside.changed(self._before or {}, self._obeyed(None)), key=by_danger)
        project, rules, before = self._hiding
        try:
            found = hiding_plan(project, rules, self.project, running=True).obeyed
        except (LeewardError, OSError) as error:
            self._tell(f"it isn't known what the agent has made that programs outside obey: {error}")
            found = before
        if max(len(found.repositories), len(found.names)) >= MAX_REPORTED:
            self._tell(f"the agent has made more than {MAX_REPORTED} names that programs outside obey")
        both = ObeyedPaths(*(tuple({*one, *other}) for one, other in (
            (before.names, found.names), (before.repositories, found.repositories), (before.unseen, found.unseen))))
        return sorted(outside.changed(self._before or {}, self._obeyed(both)), key=by_danger)

    def no_longer_hidden(self) -> list[str]:
        """Names to hide that were made or replaced since the start: until they were covered, the agent could read them."""
        now = outside.identities(self._folder, self._request.hidden)
        seen = outside.changed(self._hidden, {**self._hidden, **now})  # not those that were only removed
        return sorted({*seen, *(() if self._watch is None else self._watch.covered)})

    # --- ending ---------------------------------------------------------------------

    def end_processes(self) -> None:
        """End what the agent, hooks and attached shells have left running in the sandbox, which itself stays."""
        assert self.box is not None
        with contextlib.suppress(DaemonError):
            for row in self.box.processes():
                Process(self.box, row["process"]).kill()

    def keep_copy(self) -> str:
        """Let the sandbox, with the agent's copy of the project, stay for KEPT_S. Returns its id; "" if it can't stay."""
        assert self.box is not None
        with contextlib.suppress(DaemonError):  # it has ended, or the operator's sandboxes are idle for less
            self.box.extend(idle=KEPT_S)
            self._copy_kept = True
            return self.box.id
        return ""

    def end_sandbox(self) -> None:
        """End the sandbox. When this returns no process of it is left, so the project doesn't change any more."""
        if self._ended:
            return
        self._ended = True
        if self._answers is not None and self.box is not None and self._process is not None:
            self._answers.keep(self.box)
        if self._watch is not None:
            self._watch.stop()
        if self._keeper is not None:
            self._keeper.stop()
        if self._opened_mounts is not None:
            self._opened_mounts.close()
        if self.asking is not None:
            self._copy_kept |= self.asking.ending()
        if self.box is not None:
            if self._copy_kept:
                with contextlib.suppress(DaemonError):  # it has ended since
                    self.box.detach()
            else:
                self.box.close()

    def _put_away(self) -> None:
        """Rename what the host has replaced in a worktree's repository, and the agent may have written since."""
        if self._guard is None:
            return
        with contextlib.closing(self._guard):
            try:
                moved = self._guard.put_away(self.end_sandbox)
            except LeewardError as error:
                self._tell(str(error))
            else:
                if moved:
                    self._tell("renamed in the worktree's repository, where git would run what they name:"
                               f" {', '.join(map(ascii, moved))}")

    def _tear_down(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        try:
            self.end_sandbox()
        finally:
            self._put_away()
            for line in [step.what for step in held.instance.undo if step.kind == "hook"]:
                try:
                    self._on_host(line, CLEANUP_S)
                except HookFailed as error:
                    self._tell(f"clean-up: {error}")
            held.remove()


def sandboxes_of(registry: InstanceRegistry, rows: list[dict[str, Any]]) -> Iterator[tuple[Instance, dict[str, Any]]]:
    """The running instances, each with the daemon's row of its sandbox; {} without one."""
    by_id = {row["sandbox"]: row for row in rows}
    for instance in registry.running():
        yield instance, by_id.get(instance.sandbox, {})


def reap(registry: InstanceRegistry, tell: Callable[[str], None]) -> list[str]:
    """Undo the steps of instances whose process was killed, and return their names; *tell* shows what has failed."""
    done = []
    for held in registry.reap():
        instance = held.instance
        whole = True
        for step in reversed(instance.undo):
            try:
                _undo(step, instance)
            except (DaemonError, OSError, HookFailed) as error:
                whole = step.kind == "hook" and whole  # a failed hook isn't tried again
                tell(f"clean-up of {instance.name}: {error}")
        done.append(instance.name)
        if whole:
            held.remove()
        else:
            held.close()
    return done


def _undo(step: UndoStep, instance: Instance) -> None:
    if step.kind == "sandbox":
        with contextlib.suppress(SandboxOver, DaemonAway):  # the sandbox has ended, by itself or with its daemon
            # With an explicit socket the client starts no daemon.
            Sandbox.attach(step.what, socket=str(client_socket(None))).close()
    elif step.kind == "hook":
        from leeward.apps.agents.host_hooks import run_hook

        # The project may be gone, and another user may have made a folder with its path.
        same = instance.folder and instance.folder == identity_of(instance.project)
        run_hook(step.what, instance.project if same else "/", {
            **os.environ, "LEEWARD_AGENT": instance.agent, "LEEWARD_INSTANCE": instance.name}, CLEANUP_S)
