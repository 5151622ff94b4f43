"""
The hook before each tool of an agent that runs outside of a sandbox: shell lines go into a sandbox, and writes outside
of the project are refused.

Runs in:   the user's program, once for each call of a tool; pure except for resolving links.
Trust:     none in the call: a model wrote it. A call that can't be parsed is refused.
Leaves:    the agent's own program, its other tools and MCP servers, which run with the user's rights; and a path that
           is replaced by a link between the answer and the tool's access. The hook prevents mistakes, not attacks, for
           which there is `leeward agent start`.
Source:    code.claude.com/docs/en/hooks, PreToolUse, as of 2026-11-24: JSON on standard input; exit status 0 with JSON
           on standard output, or 2 with the reason on standard error, which blocks. Any other status blocks nothing.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any

from leeward.apps.agents.errors import printable
from leeward.apps.agents.git_index import tracked_unchanged
from leeward.apps.agents.hiding import FileRules
from leeward.apps.agents.project_tree import hiding_plan
from leeward.base.closing import OwnedFd
from leeward.base.strict_json import no_constant
from leeward.spec.folders import within

#: Bytes of a call, of a shell line and of a path, at most. The kernel passes no longer line or path either, and to
#: parse one would take longer than the agent waits for a hook.
MAX_CALL, _MAX_LINE, _MAX_PATH = 64 << 20, 128 << 10, 4096

#: Tools that run a shell line, which is their "command".
_LINES = ("Bash", "Monitor")
#: Tools that run lines of another shell, which aren't run in the sandbox.
_OTHER_SHELLS = ("PowerShell",)

#: Tools whose input names a file or folder, with the key of its path.
_PATHS = {"Read": "file_path", "Write": "file_path", "Edit": "file_path", "MultiEdit": "file_path",
          "NotebookEdit": "notebook_path", "NotebookRead": "notebook_path", "Glob": "path", "Grep": "path",
          "LS": "path"}
_WRITING = ("Write", "Edit", "MultiEdit", "NotebookEdit")


class Blocked(Exception):
    """The call can't be parsed. The reason goes to standard error, and the exit status is BLOCK."""


#: Exit statuses of the hook.
GO_ON, BLOCK = 0, 2


def decide_tool(content: bytes, prefix: str, project: str, rules: FileRules, *, approve: bool = False) -> str:
    """
    The answer to the call *content* for standard output; "" to leave the decision to the agent.

    *prefix* is the program that runs a line in the sandbox; *rules* hide files of *project*, without links in it, where
    the agent works; with *approve* shell lines run without the agent's question. Raises Blocked if *content* isn't a
    call of a tool; SettingsError or OSError if the project can't be searched.
    """
    call = _call(content)
    name, given = call["tool_name"], call["tool_input"]
    if name in _OTHER_SHELLS:
        return _answer("deny", f"{name} would run outside of the sandbox; use Bash")
    if name in _LINES:
        line = _text(name, "command", given.get("command"), _MAX_LINE)
        if _is_wrapped(line, prefix):
            return ""  # another instance of this hook has wrapped the line
        return _answer("allow" if approve else "ask", "runs in a sandbox of leeward",
                       {**given, "command": _wrapped(line, prefix)})
    key = _PATHS.get(name)
    if key is None:
        return ""
    if given.get(key) is None and key == "path":
        given = {**given, key: "."}  # the current folder
    path = _text(name, "path", given.get(key), _MAX_PATH)
    cwd = _text(name, "cwd", call.get("cwd") or project, _MAX_PATH)
    return _file_answer(name, os.path.join(cwd, path), project, rules)


def _text(tool: str, what: str, value: object, most: int) -> str:
    """A text of *most* bytes in a call of *tool*; Blocked if *value* is none, is empty, or can't be passed to a program."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise Blocked(f"a call of {tool} without a {what}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Blocked(f"the {what} in a call of {tool} isn't UTF-8") from None
    if size > most:
        raise Blocked(f"the {what} in a call of {tool} is longer than {most} bytes")
    return value


def _file_answer(name: str, path: str, project: str, rules: FileRules) -> str:
    real = os.path.realpath(path)
    inside = within(real, project)
    if name == "Grep" and (below := _hidden_below(real, project, rules)):
        return _answer("deny", f"{printable(below)} is hidden by files.exclude, and Grep would read it; use Bash with"
                       " grep")
    if not inside:
        if name in _WRITING:
            return _answer("deny", f"{printable(path)} is outside of the project")
        return ""  # the agent's own rules decide about reading
    relative = os.path.relpath(real, project)
    if relative != "." and rules.hides(relative, os.path.isdir(real)) and not _is_tracked(relative, project, rules):
        return _answer("deny", f"{printable(path)} is hidden by files.exclude")
    return ""


def _is_tracked(path: str, project: str, rules: FileRules) -> bool:
    """Whether git shows the file *path* anyway, as in `project_tree`."""
    if not (rules.shows_repository and rules.hides_by_name(path)):
        return False
    with OwnedFd(os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        return bool(tracked_unchanged(fd, [path]))


def _hidden_below(folder: str, project: str, rules: FileRules) -> str:
    """A hidden file of the project that is below *folder*; "" if there is none."""
    if not within(folder, project) and not within(project, folder):
        return ""
    with OwnedFd(os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        hidden = [os.path.join(project, each.path) for each in hiding_plan(fd, rules, project).hidden]
    return next((path for path in hidden if within(path, folder)), "")


def _call(content: bytes) -> Mapping[str, Any]:
    if len(content) > MAX_CALL:
        raise Blocked(f"a call of more than {MAX_CALL} bytes")
    try:
        call = json.loads(content, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise Blocked("no JSON on standard input") from None
    if not (isinstance(call, dict) and isinstance(call.get("tool_name"), str)
            and isinstance(call.get("tool_input"), dict)):
        raise Blocked("no call of a tool on standard input")
    return call


def _is_wrapped(line: str, prefix: str) -> bool:
    """Whether *line* is exactly what `_wrapped` makes of another line. Many other lines are two words for a shell too."""
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    return len(words) == 2 and line == _wrapped(words[1], prefix)


def _wrapped(line: str, prefix: str) -> str:
    return f"{shlex.quote(prefix)} {shlex.quote(line)}"


def _answer(decision: str, reason: str, given: Mapping[str, Any] | None = None) -> str:
    return json.dumps({"hookSpecificOutput": {
        "hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason,
        **({} if given is None else {"updatedInput": given})}})
