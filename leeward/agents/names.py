"""
Names of running agents: of the project's path, the agent, and which of several it is.

Runs in:   anywhere; pure.
Why:       a name is typed, shown and part of file names, so it has only letters, digits and hyphens. A hash of the
           path's own bytes distinguishes my_project, myproject, MyProject and my.project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from leeward.agents.hashing import blake2b

#: Characters of the path that a name shows, at most, and of the hash.
SHOWN, HASHED = 40, 6

#: Agents of one project at once, at most.
MAX_AT_ONCE = 64

#: Five bits each, as base32 has them.
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"

_AGENT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,118}[a-z0-9])?")


def is_agent_name(text: str) -> bool:
    """
    Whether *text* can name an agent's definition: 1 to 32 lower-case letters, digits and inner hyphens.
    """
    return _AGENT.fullmatch(text) is not None


def is_instance_name(text: str) -> bool:
    """
    Whether *text* can be what `instance_name` made.
    """
    return _NAME.fullmatch(text) is not None


def instance_name(path: bytes, agent: str, number: int = 0) -> str:
    """
    "<path>-<agent>-<hash>": the last characters of *path* with all but letters and digits as single hyphens, and 30
    bits of a hash over the raw bytes.

    Args:
        path: of the project, absolute, as the host has it.
        agent: the definition's name.
        number: which of several at once, from 0.
    """
    shown = re.sub(rb"[^a-z0-9]+", b"-", path.lower()).decode("ascii").strip("-")
    if len(shown) > SHOWN:
        # From a whole word on, where one begins soon enough.
        cut = shown[-SHOWN:]
        shown = cut.partition("-")[2] if "-" in cut[:SHOWN // 2] else cut
    digest = int.from_bytes(blake2b(b"%d\0%s\0%s" % (number, agent.encode(), path)).digest(), "big")
    code = "".join(_LETTERS[digest >> 5 * place & 31] for place in range(HASHED))
    return f"{shown.strip('-') or 'root'}-{agent}-{code}"


def names_of(path: bytes, agent: str) -> Iterator[str]:
    """
    The names of a project's agents, in the order in which they are taken.
    """
    return (instance_name(path, agent, number) for number in range(MAX_AT_ONCE))
