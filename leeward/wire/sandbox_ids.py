"""
What a sandbox's id looks like.

Runs in:   anywhere.
"""

from __future__ import annotations

#: Characters of a sandbox's id, and the alphabet: 5 bits each.
ID_LENGTH = 26
ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
