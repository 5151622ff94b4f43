"""
The message that a shell would write about a program that couldn't be started.

Runs in:   the daemon; pure.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leeward.run.launch import Exit



def complaint(program: str, folder: str, how: Exit) -> bytes:
    """The message that a shell would write about *program*, which couldn't be started in *folder*: *how* has the errno."""
    said = os.strerror(how.refused)
    if how.layer == "cwd":
        return f"sh: cannot start in {folder}: {said}\n".encode()
    if how.refused in (errno.ENOENT, errno.ENOTDIR) and "/" not in program:
        said = "not found"
    return f"sh: {program}: {said}\n".encode()
