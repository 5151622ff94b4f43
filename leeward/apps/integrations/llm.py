"""
Sandboxes as tools of the command `llm`.

Runs in:   anybody's program; needs the extra `llm`, and a daemon.

    llm -T sandboxed_shell 'which of these files is the largest?'
    llm chat -T Leeward

`sandboxed_shell` runs each command in a sandbox of its own, of the profile `shell`. `Leeward` has one sandbox of the
profile `python` for a conversation. A tool answers with text also after an error, so that the model can go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llm

from leeward.client.model_text import cut, text_of
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError, SessionOver, told_with_type

#: The greatest number of lines of a search, and of entries of a list.
MOST_ROWS = 200


def sandboxed_shell(command: str) -> str:
    """
    Run a shell command on this machine, in a sandbox: files can be read and not changed, secrets are hidden, there is
    no network, /tmp is empty and gone afterwards. At most 60 seconds.
    """
    return _said(lambda: _shell(command))


def _shell(command: str) -> str:
    with Sandbox(profile="shell", held=True) as box:
        return text_of(box.shell(command))


def _said(does: Callable[[], str]) -> str:
    """The text that *does* returns, or a text about the error."""
    try:
        return cut(does())
    except (DaemonError, OSError, ValueError, TypeError) as error:
        return cut(f"Error: {told_with_type(error)}")
    except Exception as error:  # a defect of leeward must not end the conversation
        return cut(f"Error in leeward: {told_with_type(error)}")


class Leeward(llm.Toolbox):
    """A workspace: Python, a shell and files, in one sandbox for as long as the conversation goes on. No network."""

    def __init__(self) -> None:
        super().__init__()
        self._box = Sandbox(held=True)
        self._kernel: Any = None

    def run_python(self, code: str) -> str:
        """Run Python. Variables stay for the next call; the value of the last expression is shown."""
        def does() -> str:
            if self._kernel is None:
                self._kernel = self._box.kernel()
            try:
                return text_of(self._kernel.execute(code))
            except SessionOver:
                self._kernel = None  # the next call has a new one
                raise
        return _said(does)

    def run_shell(self, command: str) -> str:
        """Run a shell command in /workspace."""
        return _said(lambda: text_of(self._box.shell(command)))

    def read_file(self, path: str) -> str:
        """The text in a file."""
        return _said(lambda: self._box.files.read(path).decode("utf-8", "replace") or "[Empty file]")

    def write_file(self, path: str, content: str) -> str:
        """Write a file, with the folders that lead to it."""
        def does() -> str:
            self._box.files.write(path, content)
            return f"Wrote {len(content)} characters to {path}"
        return _said(does)

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a text that is in a file exactly once."""
        def does() -> str:
            self._box.files.edit(path, old, new)
            return f"Edited {path}"
        return _said(does)

    def list_files(self, path: str = ".") -> str:
        """The names in a folder; those of folders end with a slash."""
        def does() -> str:
            found = self._box.files.list(path)
            rows = [entry.name + ("/" if entry.kind == "folder" else "") for entry in found[:MOST_ROWS]]
            more = [f"[{len(found) - MOST_ROWS} more]"] if len(found) > MOST_ROWS else []
            return "\n".join([*rows, *more]) or "[Empty folder]"
        return _said(does)

    def search(self, pattern: str, path: str = ".") -> str:
        """Lines of the files below a folder that match a regular expression, each with its file and number."""
        def does() -> str:
            found = self._box.files.grep(pattern, path=path, limit=MOST_ROWS)
            rows = [f"{match.path}:{match.line}: {match.text}" for match in found]
            return "\n".join([*rows, *(["[more matches]"] if found.more else [])]) or "[No matches]"
        return _said(does)


@llm.hookimpl
def register_tools(register: Callable[..., None]) -> None:
    """Register the tools. `llm` calls this, and finds this module by its entry point."""
    register(sandboxed_shell)
    register(Leeward)
