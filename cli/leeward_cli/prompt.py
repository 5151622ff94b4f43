"""
`leeward python`: a Python prompt whose statements run in a kernel of a sandbox.

This process reads lines, and checks whether a statement is complete. The main thread waits for the kernel's answer.
Ctrl-C meanwhile raises KeyboardInterrupt in the kernel; a second one ends the kernel's process, and the next statement
runs in a fresh one. A third one ends this command.

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

from leeward.client.process import Kernel
from leeward.client.sandbox import Sandbox
from leeward.errors import SessionOver
from leeward.spec.outcome import Outcome, Result
from leeward_cli.messages import complain, escape, write
from leeward_cli.passing import on_ctrl_c

#: The name of typed statements in tracebacks.
_NAME = "<stdin>"
_REMEMBERED = 2000
_SHOW = "__import__('sys').displayhook(("


def history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "leeward" / "python_history"


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
        _with_history(prompt)
        return 0
