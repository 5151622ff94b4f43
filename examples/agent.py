"""
An agent that mends a small project in a copy of it: it reads, edits and runs the tests, and a person sees the changes
before they reach the host.

    python examples/agent.py                  # a project made up for it, and a scripted model: it runs anywhere
    python examples/agent.py PROJECT          # yours; the scripted model then only looks around

Put your model's call in place of `scripted`. A model works with four tools: run a line by the shell, read a file, write
one, and replace a text in one that occurs there once.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import leeward

#: Characters of a tool's answer that the model reads.
MOST_TEXT = 4000
MOST_TURNS = 30

#: A tool's name and its arguments; or the model's last words.
Call = tuple[str, dict[str, Any]]
Model = Callable[[list[str]], Call | str]


class Tools:
    """The tools of the model, all of which work inside *box*."""

    def __init__(self, box: leeward.Sandbox) -> None:
        self._box = box

    def shell(self, line: str) -> str:
        result = self._box.shell(line)
        ended = "" if result.ok else f"[exit code {result.exit_code}, {result.outcome}]"
        return "\n".join(part for part in (result.stdout_text, result.stderr_text, ended) if part) or "[no output]"

    def read(self, path: str) -> str:
        return self._box.files.read(path).decode("utf-8", "replace")

    def write(self, path: str, text: str) -> str:
        return f"[{self._box.files.write(path, text)} bytes]"

    def edit(self, path: str, old: str, new: str) -> str:
        self._box.files.edit(path, old, new)
        return "[done]"

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The tool's answer. What goes wrong is one, too: the model reads it and tries otherwise."""
        try:
            tool = {"shell": self.shell, "read": self.read, "write": self.write, "edit": self.edit}[name]
            return tool(**arguments)[:MOST_TEXT]
        except leeward.SandboxOver:
            raise
        except (KeyError, TypeError) as error:
            return f"[there is no such tool: {error}]"
        except (OSError, leeward.LeewardError) as error:
            return f"[{type(error).__name__}: {error}]"


def work(model: Model, box: leeward.Sandbox) -> str:
    """Run the loop, and return the model's last words."""
    tools, read = Tools(box), list[str]()
    for _ in range(MOST_TURNS):
        said = model(read)
        if isinstance(said, str):
            return said
        read.append(tools.call(*said))
    return f"no end in {MOST_TURNS} calls"


def scripted() -> Model:
    """A model that looks, breaks something, and mends it."""
    calls: Iterator[Call] = iter((
        ("shell", {"line": "ls -R; python3 -m unittest -q 2>&1 | tail -1"}),
        ("read", {"path": "total.py"}),
        ("edit", {"path": "total.py", "old": "range(n)", "new": "range(1, n + 1)"}),
        ("edit", {"path": "total.py", "old": "nowhere", "new": "else"}),
        ("write", {"path": "NOTES.md", "text": "total(n) counts n itself now.\n"}),
        ("shell", {"line": "python3 -m unittest -q 2>&1 | tail -1; curl -s example.org; rm -rf ~/.ssh /etc/passwd"}),
    ))
    return lambda read: next(calls, f"The tests say: {read[-1].strip().splitlines()[0] if read else ''}")


def example(folder: Path) -> None:
    (folder / "total.py").write_text("def total(n: int) -> int:\n    return sum(range(n))\n")
    (folder / "test_total.py").write_text(
        "import unittest\nfrom total import total\n\n\nclass Total(unittest.TestCase):\n"
        "    def test_it(self) -> None:\n        self.assertEqual(10, total(4))\n")


def main(project: Path, agrees: Callable[[str], bool]) -> None:
    with leeward.Sandbox(workdir=project, overlay=True, memory="512M", timeout=60) as box:
        print(work(scripted(), box))
        changes = [change for change in box.diff() if "__pycache__" not in change.path]
        for change in changes:
            print(f"{change.kind:8}  {change.path}  {change.size} bytes")
        if changes and agrees("Apply these? [y/N] "):
            box.apply(changes=changes)  # these, and nothing that it has changed since
            print("applied")


if __name__ == "__main__":
    def ask(question: str) -> bool:
        return input(question).strip().lower() == "y" if sys.stdin.isatty() else True

    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), ask)
    else:
        with tempfile.TemporaryDirectory() as made:
            example(Path(made))
            main(Path(made), ask)
            print((Path(made) / "total.py").read_text(), end="")
