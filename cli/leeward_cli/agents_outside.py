"""`leeward shell-prefix`: runs the shell lines of an agent in a sandbox, while the agent itself runs outside of it."""

from __future__ import annotations

import os
import shutil
import sys

import click

from leeward.apps.agents.tool_hook import MAX_CALL
from leeward_cli import shell_prefix as outside

#: The program that agents run for each line. It is installed beside `leeward`.
PROGRAM = "leeward-shell-prefix"

_HELP = """\
Claude Code runs each line of its Bash tool by the program that CLAUDE_CODE_SHELL_PREFIX names:

    export CLAUDE_CODE_SHELL_PREFIX={program}

As a hook before its tools, in ~/.claude/settings.json:

    {{"hooks": {{"PreToolUse": [{{"matcher": "*", "hooks": [
        {{"type": "command", "command": "{leeward} shell-prefix --hook"}}]}}]}}}}

docs/agents-settings.md says which of the ways gives which guarantee."""


@click.command("shell-prefix", context_settings={"ignore_unknown_options": False})
@click.option("--hook", is_flag=True, help="Answer a call of Claude Code's hook PreToolUse, on standard input.")
@click.option("--approve", is_flag=True, help="With --hook: approve shell lines, without a question to the user.")
@click.argument("line", required=False, type=click.UNPROCESSED)
def shell_prefix(hook: bool, approve: bool, line: str | None) -> int:
    """
    Run LINE by bash in the sandbox of the calling agent. Without LINE: print how to set this up for an agent.

    The exit status is the line's; 126 says that it wasn't run, 137 also that it was started and then lost, and standard
    error why.
    """
    if hook:
        if line is not None:
            raise click.UsageError("--hook reads its call from standard input and takes no LINE")

        return outside.hook(sys.stdin.buffer.read(MAX_CALL + 1), program(), approve)
    if approve:
        raise click.UsageError("--approve needs --hook")
    if line is None:
        click.echo(_HELP.format(program=program(), leeward=shutil.which("leeward") or "leeward"))
        return 0
    return outside.run_line(line)


def program() -> str:
    beside = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), PROGRAM)
    return beside if os.access(beside, os.X_OK) else shutil.which(PROGRAM) or PROGRAM
