"""The agents' own programs that tests run: where `./dev test` has put them."""

from __future__ import annotations

import shutil
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
    found = _ROOT / ".venv-agents/node_modules/@openai/codex/bin/codex.js"
    return found if found.exists() and shutil.which("node") else None


def gemini() -> Path | None:
    """Gemini CLI, of the package @google/gemini-cli; it is a script for Node."""
    found = _ROOT / ".venv-agents/node_modules/@google/gemini-cli/bundle/gemini.js"
    return found if found.exists() and shutil.which("node") else None


def opencode() -> Path | None:
    """
    opencode, of the package opencode-ai. Its installer's script isn't run, which would put this platform's program in
    the place of a text.
    """
    found = sorted((_ROOT / ".venv-agents/node_modules").glob("opencode-linux-*/bin/opencode"),
                   key=lambda path: "baseline" in str(path))
    return found[0] if found else None
