"""
Writes seccomp.json anew: `python -m leeward.isolation.host.profiles`, in a checkout.

Runs in:   a developer's shell.
"""

from __future__ import annotations

from pathlib import Path

from leeward.isolation.host.profiles import seccomp

if __name__ == "__main__":
    Path(__file__).with_name("seccomp.json").write_text(seccomp())
