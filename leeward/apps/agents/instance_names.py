"""
Names of running agents, made from the project's path, the agent and a number. Pure.

Why:       a name is typed, shown and part of file names, so it has only letters, digits and hyphens. A hash of the
           path's bytes distinguishes my_project, my-project, My-Project and my.project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

try:
    from _blake2 import blake2b as blake2b
except ImportError:  # a Python that was built with OpenSSL's hashes only
    from hashlib import blake2b as blake2b


#: Characters of the path in a name, at most, and characters of the hash.
SHOWN, HASHED = 40, 6

#: Agents of one project at once, at most.
MAX_AT_ONCE = 64

#: The alphabet of base32, five bits each.
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"

_AGENT = r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
_NAME = r"[a-z0-9](?:[a-z0-9-]{0,118}[a-z0-9])?"


def is_agent_name(text: str) -> bool:
    """Whether *text* can name an agent's definition: 1 to 32 lower-case letters, digits and inner hyphens."""
    return re.fullmatch(_AGENT, text) is not None


def is_instance_name(text: str) -> bool:
    return re.fullmatch(_NAME, text) is not None


def instance_name(path: bytes, agent: str, number: int = 0) -> str:
    """
    "<path>-<agent>-<hash>": the end of the project's *path* in lower case with single hyphens for all but letters and
    digits, and 30 bits of a hash over all arguments; *number* is among the project's agents.
    """
    shown = re.sub(rb"[^a-z0-9]+", b"-", path.lower()).decode("ascii").strip("-")
    if len(shown) > SHOWN:
        # From the beginning of a word on, if one begins in the first half.
        cut = shown[-SHOWN:]
        shown = cut.partition("-")[2] if "-" in cut[:SHOWN // 2] else cut
    digest = int.from_bytes(blake2b(b"%d\0%s\0%s" % (number, agent.encode(), path)).digest(), "big")
    code = "".join(_LETTERS[digest >> 5 * place & 31] for place in range(HASHED))
    return f"{shown.strip('-') or 'root'}-{agent}-{code}"


def names_of(path: bytes, agent: str) -> Iterator[str]:
    """The possible names of a project's agents, in the order in which they are tried."""
    return (instance_name(path, agent, number) for number in range(MAX_AT_ONCE))
