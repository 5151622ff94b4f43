"""
What the settings of a git repository name: programs, hooks and further settings, which git runs or reads.

Runs in:   anywhere; pure.
Leaves:    a user's own settings, in the home folder; values over several lines.
Source:    git-config(1)
"""

from __future__ import annotations

import re

#: Settings whose value is a path, and those whose value is a command, beside aliases with a `!`.
_PATHS = (b"hookspath", b"path", b"attributesfile")
_COMMANDS = (b"fsmonitor", b"sshcommand", b"editor", b"pager", b"clean", b"smudge", b"process", b"textconv", b"command",
             b"driver", b"cmd", b"program", b"helper", b"askpass", b"external")
#: Words of a value that are looked at, at most.
_MOST = 100


def named_in(settings: bytes) -> list[tuple[str, bool]]:
    """
    The words that *settings*, the content of a file, name; each with whether it is a path by itself, and not a word of a
    command, which may be anything.
    """
    found, lower = list[tuple[str, bool]](), settings.lower()
    if not any(each in lower for each in (*_PATHS, *_COMMANDS, b"!")):  # few repositories have one
        return found
    keys = b"|".join((*_PATHS, *_COMMANDS))
    for naming in re.finditer(rb"(?im)(?:^|\])[ \t]*(" + keys + rb")[ \t]*=(.*)$|=[ \t]*\"?!(.*)$", settings):
        is_path = (naming[1] or b"").lower() in _PATHS
        words = re.split(rb"[\s\"'=:;|&()<>]+", naming[2] or naming[3] or b"")[:_MOST]
        found += [(word.decode("utf-8", "surrogateescape"), is_path) for word in words if word]
    return found
