"""
Writes seccomp.json anew: `python -m leeward.host.profiles`, in a checkout.

Runs in:   a developer's shell.
"""

from __future__ import annotations

from pathlib import Path

from leeward.host.profiles import seccomp

if __name__ == "__main__":
    Path(__file__).with_name("seccomp.json").write_text(seccomp())
