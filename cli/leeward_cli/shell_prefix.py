"""
`leeward-shell-prefix LINE`: runs a shell line in a sandbox for an agent outside of one; also that agent's hook.

It runs once for each line. `main` is a program of its own, since agents need the path of a program.

Theory of operation. All lines of one agent in one project run in one sandbox, which is found by its metadata: the pid
and the start time of the agent's process, and the project. Because of a lock in the user's state folder an agent gets
at most one sandbox for a project. If an agent has ended, the next line of any agent ends its sandboxes; otherwise the
daemon does when their idle time has passed. A line's process is held by this program's connection: if this program is
killed, the daemon ends the process. If there is no sandbox, nothing runs: the exit status is FAILED, and standard error
says why. A line that was started and can't go on is killed: KILLED.

Names to hide that have appeared since the sandbox was opened are covered before each line and while it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leeward.apps.agents.definition import load_definition
from leeward.apps.agents.hiding import rules_of
from leeward.apps.agents.settings_paths import config_home, state_home
from leeward.base.closing import OwnedFd
from leeward.base.file_locks import locked
from leeward.errors import BadRequest, DaemonError, LeewardError, SandboxOver
from leeward_cli import agent_ends, agent_project
from leeward_cli.interrupts import EndRequested
from leeward_cli.messages import complain, keep_standard_descriptors, write
from leeward_cli.passing import feed

# Imported in functions: what not every start needs; 17 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.apps.agents.hiding_watch import HidingWatch
    from leeward.apps.agents.settings import AgentSettings

#: The exit status of a command that can't be run, as in a shell, and of one that was killed.
FAILED, KILLED = 126, 137
#: The names of the agent's key and of the project in the sandbox's metadata, and the beginning of the title of a line's
#: process.
_AGENT, _PROJECT, _LINE = "agent-outside", "project", "line of "
#: The settings in the project that there were when the sandbox was opened, as JSON; characters of it, at most.
_KNOWN, _MOST_KNOWN = "known", 12 << 10
#: Names that are made in the project as empty folders, and stay: what is in them can't be written then.
_PLACES = (".claude", ".codex", ".vscode", ".git")
#: The agent's environment variables that a line gets.
_PASSED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "TERM", "NO_COLOR", "GIT_EDITOR")
#: The greatest size in bytes of the file with the folder in which the next line starts.
_MOST_FOLDER = 8192


class _Unfinished(Exception):
    """The line may have been started, and can't go on. The argument is the error."""


def main() -> int:
    keep_standard_descriptors()
    if len(sys.argv) != 2:
        complain("usage: leeward-shell-prefix LINE; `leeward shell-prefix` explains it")
        return 2
    return run_line(sys.argv[1])


def run_line(line: str) -> int:
    """Run *line* by bash in the sandbox of the calling agent. Returns the line's exit status, FAILED or KILLED."""
    try:
        with agent_ends.ending_by_signals(signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            return _run(line)
    except EndRequested as signalled:
        return 128 + int(signalled.args[0])
    except _Unfinished as unfinished:
        (error,) = unfinished.args
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe, as `head` does
            return 128 + signal.SIGPIPE
        complain(f"the line was ended: {error}")
        return KILLED
    except (LeewardError, OSError) as error:
        complain(f"not run: {error}")
        return FAILED


def _run(line: str) -> int:
    from leeward.apps.agents import prefix

    agent_ends.set_home()
    try:
        line.encode()
    except UnicodeEncodeError:
        raise BadRequest("the line isn't UTF-8") from None
    session = prefix.session_of(os.getppid(), _stat)
    me = prefix.AgentSession(os.getpid(), prefix.parse_stat(_stat(os.getpid()))[2])
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        raise BadRequest("the current folder was removed") from None
    with agent_project.opened(project_of(session.pid)) as (project, folder):
        _inside(cwd, project, "")
        settings = agent_project.settings_of(folder, project, False)
        box, inside = _sandbox(session, project, folder, settings)
        try:
            title = f"{_LINE}{me.key}"
            with _hiding(box, title, settings, folder, project, inside) as watch, _protecting(box, folder):
                status = _run_line(box, line, _inside(cwd, project, inside), title, watch)
            _write_folder(box, line, project, inside)
            return status
        finally:
            box.detach()


def _run_line(box: Any, line: str, cwd: str, title: str, watch: HidingWatch) -> int:
    """Run *line* to its end, and write its output as it arrives; _Unfinished if it may have been started, and was lost."""
    env = {name: value for name, value in os.environ.items() if name in _PASSED and value.isprintable()}
    try:
        # After `--`, since a line may begin with a hyphen.
        process = box.start(["bash", "-c", "--", line], stdin=None, cwd=cwd, env=env, title=title)
    except DaemonError as error:
        if error.may_have_run:
            raise _Unfinished(error) from None
        raise
    watch.start()
    threading.Thread(target=feed, args=(process,), daemon=True).start()
    try:
        for chunk in process:  # `Process.result` would keep all output
            write(1 if chunk.stream == "stdout" else 2, chunk.data)
        return int(process.wait().exit_code)
    except (DaemonError, OSError) as error:
        raise _Unfinished(error) from None


@contextlib.contextmanager
def _hiding(box: Any, title: str, settings: AgentSettings, folder: int, project: str,
            inside: str) -> Iterator[HidingWatch]:
    """A context in which names to hide are covered, new ones since `HidingWatch.start`; else the process *title* is ended."""
    from leeward.apps.agents.hiding_watch import HidingWatch

    def end(why: str) -> None:
        complain(why)
        _end_line(box.id, title)

    watch = HidingWatch(box, rules_of(settings.exclude, settings.include), folder, project, inside, {}, (), complain,
                        end)
    watch.look()
    try:
        yield watch
    finally:
        watch.stop()


@contextlib.contextmanager
def _protecting(box: Any, folder: int) -> Iterator[None]:
    """A context at whose end what programs on the host run at once is renamed, or else the sandbox ended."""
    from leeward.client.protecting import FolderGuard, Unprotected

    known = json.loads(box.info().get("metadata", {}).get(_KNOWN, "{}"))
    with contextlib.closing(FolderGuard(f"/proc/self/fd/{folder}", known=known)) as guard:
        try:
            yield
        finally:
            try:
                moved = guard.put_away(box.close)
            except Unprotected as error:
                with contextlib.suppress(DaemonError):
                    box.close()
                raise _Unfinished(error) from None
            if moved:
                complain("renamed, since programs on the host would run it at once, so that nothing runs it:"
                         f" {', '.join(map(ascii, moved[:20]))}")


def _inside(cwd: str, project: str, inside: str) -> str:
    if cwd != project and not cwd.startswith(project.rstrip("/") + "/"):
        raise BadRequest(f"{cwd!a:.200} is outside of the project {project!a:.200}")
    return inside + cwd[len(project):]


def project_of(pid: int) -> str:
    try:
        if not os.stat(f"/proc/{pid}/cwd").st_nlink:
            raise BadRequest("the folder in which the agent was started was removed")
        return os.path.realpath(os.readlink(f"/proc/{pid}/cwd"))
    except OSError as error:
        raise BadRequest(f"the folder in which the agent was started can't be found out: {error}") from None


def _stat(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read()


def _sandbox(session: Any, project: str, folder: int, settings: AgentSettings) -> tuple[Any, str]:
    """The agent's sandbox, opened unless it exists, and the project's path in it. Those of ended agents are ended."""
    from leeward.apps.agents.state_files import own_folder
    from leeward.client.sandbox import Sandbox

    state = own_folder(state_home(os.environ))
    with OwnedFd(locked(os.path.join(state, "prefix.lock"), wait=True)):
        for row in [row for row in Sandbox.list() if _is_of(row, session, project)]:
            with contextlib.suppress(SandboxOver):  # it has ended since
                return Sandbox.attach(row["sandbox"], held=True), str(row["metadata"]["inside"])
        return _opened(session, project, folder, settings)


def _is_of(row: Mapping[str, Any], session: Any, project: str) -> bool:
    """Whether the sandbox of *row* belongs to *session* and has *project*. One of an agent that has ended is ended."""
    from leeward.apps.agents import prefix
    from leeward.client.sandbox import Sandbox

    owner = prefix.parse_key(row.get("metadata", {}).get(_AGENT, ""))
    if owner is None or row.get("state", "open") not in ("open", "running"):
        return False
    if owner == session:
        return bool(project == row["metadata"].get(_PROJECT))
    if not prefix.is_alive(owner, _stat):
        with contextlib.suppress(DaemonError):
            Sandbox.attach(row["sandbox"]).close()
    return False


def _opened(session: Any, project: str, folder: int, settings: AgentSettings) -> tuple[Any, str]:
    from leeward.apps.agents.git_identity import own_settings
    from leeward.apps.agents.libraries import hidden_in_libraries
    from leeward.apps.agents.request import AgentOptions, OpenedMounts, check_home, request_of
    from leeward.client.protecting import FolderGuard
    from leeward.client.sandbox import Sandbox

    definition = load_definition("shell", config_home(os.environ))
    check_home(project, os.environ)
    hiding = agent_project.hidden_in(folder, project, settings)
    request = request_of(definition, settings, AgentOptions(), project, None,
                         [each.path for each in hiding.hidden], os.environ, hiding.absent,
                         f"/proc/self/fd/{folder}", pinned=hiding.pinned,
                         in_libraries=hidden_in_libraries(settings.libraries, settings))
    guard = FolderGuard(f"/proc/self/fd/{folder}", _PLACES)
    known = json.dumps(guard.known)
    if len(known) > _MOST_KNOWN:
        raise BadRequest("the project has too many settings that programs on the host obey to protect them")
    protect = [*request.options["protect"], *(os.path.join(request.cwd, name) for name in guard.names)]
    if request.worktree is not None:
        protect += request.worktree.guard()[1]  # what the guard has made stays, as in the project
    with OpenedMounts(request, os.environ) as opened:
        box = Sandbox(held=True, metadata={_AGENT: session.key, _PROJECT: project, "inside": request.cwd,
                                           _KNOWN: known},
                      **{**request.options, "mounts": opened.mounts, "protect": list(dict.fromkeys(protect))})
        box.info()  # opens the sandbox, while the lock is held
    try:
        for path, content in own_settings(project, os.environ):
            box.files.write(path, content)
        for each in (*settings.hooks.setup, *settings.hooks.prestart):
            done = box.shell(each, cwd=request.cwd)
            if done.exit_code:
                raise BadRequest(f"the hook {each!a:.200} has ended with {done.exit_code}")
    except BaseException:
        box.close()
        raise
    return Sandbox.attach(box.detach(), held=True), request.cwd


def _end_line(sandbox: str, title: str) -> None:
    """End the line with the process title *title*, over a connection of this call's: another thread uses the others."""
    from leeward.client.sandbox import Sandbox

    with contextlib.suppress(DaemonError):
        box = Sandbox.attach(sandbox)
        for row in box.processes():
            if title == row["title"] and not row["over"]:
                with contextlib.suppress(DaemonError):
                    box.process(row["process"]).kill()
        box.detach()


def _write_folder(box: Any, line: str, project: str, inside: str) -> None:
    """Write the folder in which the line has ended to a file for the agent, if *line* contains such a file."""
    from leeward.apps.agents import prefix

    file = prefix.folder_file(line, tuple(dict.fromkeys((tempfile.gettempdir(), "/tmp"))))
    if not file:
        return
    try:
        content = box.files.read(file, limit=_MOST_FOLDER)
    except (DaemonError, OSError):
        return  # the line has failed before, or ended its sandbox
    folder = prefix.reported_folder(content, (inside,))
    if folder:
        outside = project + folder[len(inside):]
        with contextlib.suppress(OSError):
            # Other users can make a file with that name in /tmp: a FIFO, whose opening would wait, one of theirs, or, where
            # fs.protected_hardlinks is 0, a link to one of ours.
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as written:
                about = os.fstat(descriptor)
                if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1:
                    written.truncate(0)
                    written.write(os.fsencode(outside) + b"\n")


def hook(content: bytes, prefix_path: str, approve: bool) -> int:
    from leeward.apps.agents import tool_hook

    try:
        project = os.path.realpath(os.environ.get("CLAUDE_PROJECT_DIR") or os.getcwd())
        with agent_project.opened(project) as (project, folder):
            settings = agent_project.settings_of(folder, project, False)
        answer = tool_hook.decide_tool(content, prefix_path, project, rules_of(settings.exclude, settings.include),
                                       approve=approve)
    except (tool_hook.Blocked, LeewardError, OSError) as error:
        complain(f"refused: {error}")
        return tool_hook.BLOCK
    except Exception as error:  # any: with another exit status the agent would go on
        complain(f"refused, by a mistake in leeward: {error!r:.500}")
        return tool_hook.BLOCK
    if answer:
        write(1, answer.encode() + b"\n")
    return tool_hook.GO_ON
