"""
A hash function without OpenSSL. Loading OpenSSL takes longer than hashing all that an agent's start hashes.

Runs in:   anywhere; pure.
"""

from __future__ import annotations

try:
    from _blake2 import blake2b as blake2b
except ImportError:  # a Python that was built with OpenSSL's hashes only
    from hashlib import blake2b as blake2b
