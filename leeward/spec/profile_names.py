"""
Names of profiles that clients know by themselves.

Runs in:   anywhere. The profiles themselves import much more.
"""

from __future__ import annotations

AGENT, SHELL = "agent", "shell"
