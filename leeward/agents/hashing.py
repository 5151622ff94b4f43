"""
A hash without OpenSSL, whose loading takes longer than all that is hashed at an agent's start.

Runs in:   anywhere; pure.
"""

from __future__ import annotations

try:
    from _blake2 import blake2b as blake2b
except ImportError:  # builds that have OpenSSL's hashes alone
    from hashlib import blake2b as blake2b
