"""
`leeward-shell-prefix LINE`: runs a shell line in a sandbox for an agent outside of one; also that agent's hook.

Runs in:   the CLI, once for each line. `main` is a program of its own, since agents need the path of a program.

Theory of operation. All lines of one agent run in one sandbox, which is found by its metadata: the pid and the start
time of the agent's process. Because of a lock in the user's state folder an agent gets at most one sandbox. If an agent
has ended, the next line of any agent ends its sandbox; otherwise the daemon does when the sandbox's idle time has
passed. The title of a line's process has the pid and the start time of this program. If this program is killed, the
next line ends that process. If there is no sandbox, nothing runs: the exit status is FAILED, and standard error says
why.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from leeward.errors import BadRequest, DaemonError, LeewardError
from leeward_cli.job import complain, write

if TYPE_CHECKING:
    from leeward.client.process import Process

#: The greatest number of bytes of standard input that are passed on at once.
_READ = 1 << 16
#: The exit status of a command that can't be run, as in a shell.
FAILED = 126
#: The name of the agent's key in the sandbox's metadata, and the beginning of the title of a line's process.
_AGENT, _LINE = "agent-outside", "line of "
#: The agent's environment variables that a line gets.
_PASSED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "TERM", "NO_COLOR", "GIT_EDITOR")
#: The greatest size in bytes of the file with the folder in which the next line starts.
_MOST_FOLDER = 8192


class _LineEnded(BaseException):
    """
    A signal has asked this process to end the line. The argument is the signal's number.
    """


def main() -> int:
    """
    Run the program `leeward-shell-prefix`. Returns the exit status.
    """
    if len(sys.argv) != 2:
        complain("usage: leeward-shell-prefix LINE; `leeward shell-prefix` explains it")
        return 2
    return run_line(sys.argv[1])


def run_line(line: str) -> int:
    """
    Run *line* by bash in the sandbox of the calling agent. Returns the line's exit status, or FAILED.
    """
    try:
        with _signals():
            return _run(line)
    except _LineEnded as signalled:
        return 128 + int(signalled.args[0])
    except (DaemonError, LeewardError, OSError) as error:
        complain(f"not run: {error}")
        return FAILED


def _run(line: str) -> int:
    from leeward.agents import prefix
    from leeward_cli import agent_ends

    agent_ends.set_home()
    session = prefix.session_of(os.getppid(), _stat)
    me = prefix.AgentSession(os.getpid(), prefix.parse_stat(_stat(os.getpid()))[2])
    project, cwd = project_of(session.pid), os.getcwd()
    box, inside = _sandbox(session, project)
    try:
        _end_lines(box)
        title = f"{_LINE}{me.key}"
        try:
            process = box.start(["bash", "-c", line], stdin=None, cwd=_inside(cwd, project, inside),
                                env=_environment(), title=title)
            threading.Thread(target=_feed, args=(process,), daemon=True).start()
            result = process.result(lambda data: write(1, data), lambda data: write(2, data))
        except BaseException:
            _end_line(box.id, title)
            raise
        _write_folder(box, line, project, inside)
        return int(result.exit_code or 0)
    finally:
        box.detach()


def _feed(process: Process) -> None:
    """
    Copy standard input to the process's, to its end.
    """
    with contextlib.suppress(DaemonError, OSError):  # the process has ended, or reads no more
        while data := os.read(0, _READ):
            process.write(data)
        process.close_stdin()


def _inside(cwd: str, project: str, inside: str) -> str:
    if cwd != project and not cwd.startswith(project.rstrip("/") + "/"):
        raise BadRequest(f"{cwd!a:.200} is outside of the project {project!a:.200}")
    return inside + cwd[len(project):]


def project_of(pid: int) -> str:
    """
    The folder in which the agent was started.

    Raises:
        BadRequest: the folder can't be found out.
    """
    try:
        return os.path.realpath(os.readlink(f"/proc/{pid}/cwd"))
    except OSError as error:
        raise BadRequest(f"the folder in which the agent was started can't be found out: {error}") from None


def _stat(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read()


def _environment() -> dict[str, str]:
    """
    The environment variables of _PASSED, for the line.
    """
    return {name: value for name, value in os.environ.items() if name in _PASSED and value.isprintable()}


def _sandbox(session: Any, project: str) -> tuple[Any, str]:
    """
    The agent's sandbox, which is opened unless it exists, and the project's path in it.
    """
    from leeward.agents.places import state_home
    from leeward.agents.state_files import own_folder
    from leeward.client.sandbox import Sandbox

    folder = own_folder(state_home(os.environ))
    lock = os.open(os.path.join(folder, "prefix.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for row in Sandbox.list():
            found = _is_of(row, session)
            if found:
                return Sandbox.attach(row["sandbox"]), str(row["metadata"]["inside"])
        return _opened(session, project)
    finally:
        os.close(lock)


def _is_of(row: Mapping[str, Any], session: Any) -> bool:
    """
    Whether the sandbox of *row* belongs to *session*. If it belongs to an agent that has ended, end the sandbox.
    """
    from leeward.agents import prefix
    from leeward.client.sandbox import Sandbox

    owner = prefix.parse_key(row.get("metadata", {}).get(_AGENT, ""))
    if owner is None or row.get("state", "open") not in ("open", "running"):
        return False
    if owner == session:
        return True
    if not prefix.is_alive(owner, _stat):
        with contextlib.suppress(DaemonError):
            Sandbox.attach(row["sandbox"]).close()
    return False


def _opened(session: Any, project: str) -> tuple[Any, str]:
    from leeward.agents.definition import load_definition
    from leeward.agents.opened import OpenedMounts
    from leeward.agents.places import config_home
    from leeward.agents.request import AgentOptions, request_of
    from leeward.client.sandbox import Sandbox
    from leeward_cli import agent_project

    definition = load_definition("shell", config_home(os.environ))
    with agent_project.opened(project) as (project, folder):
        settings = agent_project.settings_of(folder, project, False)
        with contextlib.closing(agent_project.look_at(folder, project, settings)) as look:
            hiding = look.plan()
        request = request_of(definition, settings, AgentOptions(), project, None,
                             [each.path for each in hiding.hidden], os.environ, hiding.absent,
                             f"/proc/self/fd/{folder}", pinned=hiding.pinned)
        with OpenedMounts(request, os.environ) as opened:
            box = Sandbox(metadata={_AGENT: session.key, "inside": request.cwd},
                          **{**request.options, "mounts": opened.mounts})
            box.info()  # opens the sandbox, while the lock is held
    try:
        for each in (*settings.hooks.setup, *settings.hooks.prestart):
            done = box.shell(each, cwd=request.cwd)
            if done.exit_code:
                raise BadRequest(f"the hook {each!a:.200} has ended with {done.exit_code}")
    except BaseException:
        box.close()
        raise
    return box, request.cwd


def _end_line(sandbox: str, title: str) -> None:
    """
    End the line with the process title *title*, over a new connection: it may have been started though this process has
    got no answer.
    """
    from leeward.client.sandbox import Sandbox

    with contextlib.suppress(DaemonError):
        box = Sandbox.attach(sandbox)
        for row in box.processes():
            if title == row["title"] and not row["over"]:
                with contextlib.suppress(DaemonError):
                    box.process(row["process"]).kill()
        box.detach()


def _end_lines(box: Any) -> None:
    """
    End the lines of `leeward-shell-prefix` programs that were killed.
    """
    from leeward.agents import prefix

    for row in box.processes():
        owner = prefix.parse_key(str(row["title"]).removeprefix(_LINE)) if not row["over"] else None
        if owner is not None and not prefix.is_alive(owner, _stat):
            with contextlib.suppress(DaemonError):
                box.process(row["process"]).kill()


def _write_folder(box: Any, line: str, project: str, inside: str) -> None:
    """
    Write the folder in which the line has ended to a file for the agent, if *line* contains such a file.
    """
    from leeward.agents import prefix

    file = prefix.folder_file(line, tuple(dict.fromkeys((tempfile.gettempdir(), "/tmp"))))
    if not file:
        return
    try:
        content = box.files.read(file, limit=_MOST_FOLDER)
    except OSError:
        return  # the line has failed before
    folder = prefix.reported_folder(content, (inside,))
    if folder:
        outside = project + folder[len(inside):]
        with contextlib.suppress(OSError):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as written:
                written.write(os.fsencode(outside) + b"\n")


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """
    A context in which SIGTERM, SIGHUP and SIGINT end the line, and then this program.
    """
    def end(number: int, _frame: FrameType | None) -> None:
        raise _LineEnded(number)

    kept = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def hook(content: bytes, prefix_path: str, approve: bool) -> int:
    """
    Answer a call of the hook PreToolUse, whose JSON is *content*. Returns the exit status.
    """
    from leeward.agents import tool_hook
    from leeward.agents.hiding import rules_of
    from leeward_cli import agent_project

    try:
        project = os.path.realpath(os.environ.get("CLAUDE_PROJECT_DIR") or os.getcwd())
        with agent_project.opened(project) as (project, folder):
            settings = agent_project.settings_of(folder, project, False)
        answer = tool_hook.decide_tool(content, prefix_path, project, rules_of(settings.exclude, settings.include),
                                       approve=approve)
    except (tool_hook.Blocked, LeewardError, OSError) as error:
        complain(f"refused: {error}")
        return tool_hook.BLOCK
    if answer:
        write(1, answer.encode() + b"\n")
    return tool_hook.GO_ON
