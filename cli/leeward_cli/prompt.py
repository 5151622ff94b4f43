"""
`leeward python`: a Python prompt whose statements run in a kernel of a sandbox.

This process reads lines, and checks whether a statement is complete. The main thread waits for the kernel's answer.
Ctrl-C meanwhile raises KeyboardInterrupt in the kernel; a second one ends the kernel's process, and the next statement
runs in a fresh one. A third one ends this command.

`%snapshot NAME` and `%rollback NAME` are lines of this prompt's own. The snapshots are removed when it ends.

Trust:     none in the kernel's output: it is shown escaped on a terminal.
"""

from __future__ import annotations

import ast
import codeop
import contextlib
import os
import sys
import warnings
from pathlib import Path

from leeward.base.user_folders import user_folder
from leeward.client.process import Kernel
from leeward.client.sandbox import Sandbox
from leeward.client.snapshot import Snapshot
from leeward.errors import Busy, DaemonError, SessionOver, SnapshotFailed
from leeward.spec.outcome import Outcome, Result
from leeward_cli.messages import complain, escape, write
from leeward_cli.passing import on_ctrl_c

#: The name of typed statements in tracebacks.
_NAME = "<stdin>"
_REMEMBERED = 2000
_SHOW = "__import__('sys').displayhook(("


def history_file() -> Path:
    return Path(user_folder(os.environ, "STATE", "leeward", "python_history"))


def shown(source: str) -> str:
    """*source*, changed so that the value of a last expression without a semicolon is shown. Line numbers don't change."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source  # the kernel reports the error
    last = body[-1] if body else None
    if not isinstance(last, ast.Expr) or source.rstrip().endswith(";"):
        return source
    # Offsets are in bytes of UTF-8.
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    start = sum(map(len, lines[:last.lineno - 1])) + last.col_offset
    end = sum(map(len, lines[:(last.end_lineno or 1) - 1])) + (last.end_col_offset or 0)
    raw = b"".join(lines)
    return (raw[:start] + _SHOW.encode() + raw[start:end] + b"))" + raw[end:]).decode()


def is_complete(source: str) -> bool:
    """Whether *source* is complete, or has an error. As at Python's prompt, an empty line ends a block."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(source, _NAME, "single") is not None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return True


class Prompt:
    def __init__(self, kernel: Kernel, raw: bool) -> None:
        self._kernel, self._raw = kernel, raw
        self._snapshots: dict[str, Snapshot] = {}

    def command(self, line: str) -> bool:
        """Do what *line* says, if it is one of the prompt's own commands. Returns whether it is."""
        word, _, name = line.strip().partition(" ")
        name = name.strip()
        if word not in ("%snapshot", "%rollback"):
            return False
        try:
            if word == "%snapshot":
                before, made = self._snapshots.get(name), self._kernel.snapshot()
                self._snapshots[name] = made
                if before is not None:
                    before.remove()
                print(f"{made.size / 2**20:.1f} MiB")
                for each in made.lost:
                    print(f"copies won't have {escape(each.encode()).decode()}")
            elif name in self._snapshots:
                self._kernel.rollback(self._snapshots[name])
            else:
                complain(f"no snapshot {name!r:.40}; there are: {', '.join(map(repr, self._snapshots)) or 'none'}")
        except (SnapshotFailed, SessionOver, Busy) as error:
            complain(str(error))
        return True

    def remove_snapshots(self) -> None:
        for snapshot in self._snapshots.values():
            with contextlib.suppress(DaemonError):
                snapshot.remove()

    def run(self, source: str | bytes) -> Result | None:
        """Run *source*, and show its output. Returns None, after a message, if the kernel's state was lost."""
        try:
            with on_ctrl_c(self._kernel.interrupt, self._kernel.reset):
                result = self._kernel.execute(source, name=_NAME)
        except SessionOver:
            complain("the kernel has ended; its variables are gone")
            self._kernel.reset()
            return None
        for fd, data in ((1, result.stdout), (2, result.stderr)):
            write(fd, bytes(data) if self._raw or not os.isatty(fd) else escape(data))
        if result.outcome is not Outcome.FINISHED and result.outcome is not Outcome.RAISED:
            complain(f"the code was ended: {result.outcome}")
        return result

    def converse(self) -> None:
        lines: list[str] = []
        while True:
            try:
                lines.append(input("... " if lines else ">>> "))
            except KeyboardInterrupt:
                print("\nKeyboardInterrupt")
                lines.clear()
                continue
            except EOFError:
                print()
                return
            source = "\n".join(lines)
            if len(lines) == 1 and self.command(source):
                lines.clear()
                continue
            if source.strip() in ("exit", "quit", "exit()", "quit()"):
                return
            if not is_complete(source):
                continue
            lines.clear()
            if source.strip():
                self.run(shown(source))


def _with_history(prompt: Prompt) -> None:
    try:
        import readline  # not every Python has it
    except ImportError:  # a Python without it
        prompt.converse()
        return
    file = history_file()
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
        readline.read_history_file(file)
    readline.set_history_length(_REMEMBERED)
    readline.set_completer(None)
    readline.parse_and_bind("tab: tab-insert")
    try:
        prompt.converse()
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(file)


def main(box: Sandbox, raw: bool) -> int:
    """Run the code on standard input, or show a prompt if that is a terminal. Returns the exit status."""
    with box.kernel() as kernel:
        prompt = Prompt(kernel, raw)
        if not os.isatty(0):
            result = prompt.run(sys.stdin.buffer.read())  # the kernel decodes it, by its own encoding declaration
            return 1 if result is None else result.exit_code
        version = kernel.execute("import sys; print(sys.version.split()[0], end='')").stdout_text
        print(f"Python {escape(version.encode()).decode()} in sandbox {box.id}; Ctrl-D ends this prompt.")
        try:
            _with_history(prompt)
        finally:
            prompt.remove_snapshots()
        return 0
