"""
The hook of an agent that runs outside, before each of its tools: lines for a shell go into the sandbox, and files
outside of the project are refused.

Runs in:   the user's program, once for each call of a tool; pure but for links, which are looked up.
Trust:     none in the call: a model wrote it. What can't be read is refused.
Leaves:    the agent's own program, its other tools and servers of MCP, which run outside with the user's rights; and a
           path that is replaced by a link between the answer and the tool's access. It prevents mistakes, but isn't a
           lock: `leeward agent start` is one.
Source:    code.claude.com/docs/en/hooks, PreToolUse, as of 2026-11-24: JSON on standard input; exit status 0 with JSON
           on standard output, or 2 with the reason on standard error, which blocks. Any other status blocks nothing.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any

from leeward.agents.errors import printable
from leeward.agents.hiding import FileRules

#: Bytes of a call, at most.
MAX_CALL = 64 << 20

#: Tools whose input names a file or folder, and by which key.
_PATHS = {"Read": "file_path", "Write": "file_path", "Edit": "file_path", "MultiEdit": "file_path",
          "NotebookEdit": "notebook_path", "NotebookRead": "notebook_path", "Glob": "path", "Grep": "path",
          "LS": "path"}
_WRITING = ("Write", "Edit", "MultiEdit", "NotebookEdit")


class Blocked(Exception):
    """
    The call can't be judged. The reason goes to standard error, and the status is BLOCK.
    """


#: Exit statuses, of the source above.
GO_ON, BLOCK = 0, 2


def decide_tool(content: bytes, prefix: str, project: str, rules: FileRules, *, approve: bool = False) -> str:
    """
    The answer to one call, as text for standard output; "" where there is nothing to say.

    Args:
        content: what came on standard input.
        prefix: the path of the program that runs a line in the sandbox.
        project: the folder in which the agent works, without links.
        rules: what is hidden of it.
        approve: a line for the shell needs no other approval, since it is confined.

    Raises:
        Blocked: it is no call.
    """
    call = _call(content)
    name, given = call["tool_name"], call["tool_input"]
    if "Bash" == name:
        line = given.get("command")
        if not isinstance(line, str) or not line or "\0" in line:
            raise Blocked("a call of Bash without a command")
        if _is_wrapped(line, prefix):
            return ""  # this hook is there twice
        return _answer("allow" if approve else "ask", "runs in a sandbox of leeward",
                       {**given, "command": _wrapped(line, prefix)})
    key = _PATHS.get(name)
    if key is None or (given.get(key) is None and key == "path"):
        return ""
    path = given.get(key)
    if not isinstance(path, str) or not path or "\0" in path:
        raise Blocked(f"a call of {printable(name)} without a path")
    return _file_answer(name, os.path.join(str(call.get("cwd") or project), path), project, rules)


def _file_answer(name: str, path: str, project: str, rules: FileRules) -> str:
    real = os.path.realpath(path)
    inside = real == project or real.startswith(project.rstrip("/") + "/")
    if not inside:
        if name in _WRITING:
            return _answer("deny", f"{printable(path)} is outside of the project")
        return ""  # reading is asked for by the agent's own rules
    relative = os.path.relpath(real, project)
    if "." != relative and rules.hides(relative, os.path.isdir(real)):
        return _answer("deny", f"{printable(path)} is hidden by files.exclude")
    return ""


def _call(content: bytes) -> Mapping[str, Any]:
    if len(content) > MAX_CALL:
        raise Blocked(f"a call of more than {MAX_CALL} bytes")
    try:
        call = json.loads(content)
    except (ValueError, RecursionError):
        raise Blocked("no JSON on standard input") from None
    if not (isinstance(call, dict) and isinstance(call.get("tool_name"), str)
            and isinstance(call.get("tool_input"), dict)):
        raise Blocked("no call of a tool on standard input")
    return call


def _is_wrapped(line: str, prefix: str) -> bool:
    """
    Whether *line* is, letter by letter, what the hook makes of another: a shell reads much else as two words as well.
    """
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    return 2 == len(words) and line == _wrapped(words[1], prefix)


def _wrapped(line: str, prefix: str) -> str:
    return f"{shlex.quote(prefix)} {shlex.quote(line)}"


def _answer(decision: str, reason: str, given: Mapping[str, Any] | None = None) -> str:
    return json.dumps({"hookSpecificOutput": {
        "hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason,
        **({} if given is None else {"updatedInput": given})}})
