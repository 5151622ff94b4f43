"""The agents' own programs that tests run: where `./dev test` has put them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def claude() -> Path | None:
    """Claude Code, of the wheel claude-agent-sdk."""
    found = sorted((_ROOT / ".venv-agentprograms").glob("lib/python*/site-packages/claude_agent_sdk/_bundled/claude"))
    return found[0] if found else None


def aider() -> Path | None:
    """aider, of the package aider-chat."""
    found = _ROOT / ".venv-agentaider/bin/aider"
    return found if found.exists() else None


def codex() -> Path | None:
    """Codex, of the package @openai/codex; it is a script for Node that starts a program beside it."""
    return _npm("@openai/codex/bin/codex.js", script=True)


def gemini() -> Path | None:
    """Gemini CLI, of the package @google/gemini-cli; it is a script for Node."""
    return _npm("@google/gemini-cli/bundle/gemini.js", script=True)


def opencode() -> Path | None:
    """
    opencode, of the package opencode-ai. Its installer's script isn't run, which would put this platform's program in
    the place of a text.
    """
    return _npm("opencode-linux-*/bin/opencode")


def goose() -> Path | None:
    """goose, of the packages @aaif/goose-binary-*, which have the program alone."""
    return _npm("@aaif/goose-binary-linux-*/bin/goose")


def copilot() -> Path | None:
    """Copilot CLI, of the package @github/copilot, a script for Node that starts a program of another package."""
    return _npm("@github/copilot/npm-loader.js", script=True)


def qwen() -> Path | None:
    """Qwen Code, of the package @qwen-code/qwen-code; it is a script for Node."""
    return _npm("@qwen-code/qwen-code/cli-entry.js", script=True)


def _npm(path: str, *, script: bool = False) -> Path | None:
    found = sorted(_ROOT.glob(f".venv-agents*/node_modules/{path}"), key=lambda path: "baseline" in str(path))
    return found[0] if found and (not script or shutil.which("node")) else None


def version(name: str) -> str:
    """Of the agent *name*: of its package of npm, or as the program itself says."""
    program = globals()[name]()
    for folder in program.parents:
        if (folder / "package.json").exists():
            return str(json.loads((folder / "package.json").read_text())["version"])
    said = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return said.stdout.removeprefix("aider").split()[0]
