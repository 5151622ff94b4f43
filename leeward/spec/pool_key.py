"""
The key of the pool that serves a request: the fields of the request about the kind of process that it needs.

A daemon has a pool of workers for each key that is asked for. What a key means is decided in one place,
`daemon/plans.py`: it makes the settings of a pool from the configuration and a key. So a new kind of pool is a field
here, the wire's fields that fill it in, and what that function makes of it.
"""

from __future__ import annotations

from leeward.base.dataclass import dataclass

#: The profile of a request that names none; and names of profiles that clients know by themselves.
DEFAULT_PROFILE = "python"
AGENT, SHELL, APPROVED = "agent", "shell", "approved"

#: Characters of a name, at most.
MOST_NAME = 64


def is_name(text: str) -> bool:
    """Whether a profile, an environment or a policy can have this name."""
    return (0 < len(text) <= MOST_NAME and text.isascii() and text[0].isalpha()
            and all(char.isalnum() or char in "._-" for char in text))


@dataclass(frozen=True, slots=True)
class PoolKey:
    profile: str = DEFAULT_PROFILE
    environment: str = ""  # an interpreter with its packages; "" is the daemon's own, `python_env`
    egress: str = ""  # a policy; "" is no network
    image: str = ""  # an image, whose root file system takes the place of the host's files; "" is none
    user: str = ""  # who runs in the image; "" is the image's own

    @property
    def name(self) -> str:
        """The pool's name in messages and in the status."""
        parts = (self.profile, self.environment, self.egress and f"egress {self.egress}",
                 self.image and f"image {self.image}", self.user and f"user {self.user}")
        return ", ".join(part for part in parts if part)


#: The key of the pool that every daemon has.
MAIN_POOL = PoolKey()
