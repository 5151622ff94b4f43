"""
A layer in an agent's sandbox: the folder of its packages, and the variables by which programs find them.

Runs in:   the caller's program.
"""

from __future__ import annotations

import os

from leeward.dataclass import dataclass

#: The path of the layer in a sandbox.
INSIDE = "/opt/packages"


@dataclass(frozen=True, slots=True)
class Layer:
    """
    A layer on the host, with a lock against its removal until `close`.

    Attributes:
        path: the folder on the host with the unpacked packages.
        packages: the names and versions of all packages in it.
        made: whether this call of `Layers.get` has made it.
        lock: a descriptor of the folder with a shared flock(2).
    """

    path: str
    packages: tuple[str, ...]
    made: bool
    lock: int

    def close(self) -> None:
        os.close(self.lock)

    def environment(self) -> dict[str, tuple[str, ...]]:
        """Variables by which programs find the layer's files, each with the folders that come first in its value."""
        triplet = f"{os.uname().machine}-linux-gnu"
        found = {
            "PATH": ("usr/local/bin", "usr/bin", "usr/sbin", "usr/games", "bin", "sbin"),
            "LD_LIBRARY_PATH": (f"usr/lib/{triplet}", "usr/lib", f"lib/{triplet}", "lib"),
            "LIBRARY_PATH": (f"usr/lib/{triplet}", "usr/lib"),
            "CPATH": ("usr/include", f"usr/include/{triplet}"),
            "PKG_CONFIG_PATH": (f"usr/lib/{triplet}/pkgconfig", "usr/lib/pkgconfig", "usr/share/pkgconfig"),
            "PERL5LIB": ("usr/share/perl5", *self._folders(f"usr/lib/{triplet}/perl5")),
        }
        there = {name: tuple(f"{INSIDE}/{folder}" for folder in folders if os.path.isdir(f"{self.path}/{folder}"))
                 for name, folders in found.items()}
        if os.path.isdir(f"{self.path}/usr/share"):
            there["XDG_DATA_DIRS"] = (f"{INSIDE}/usr/share", "/usr/local/share", "/usr/share")
        return {name: folders for name, folders in there.items() if folders}

    def _folders(self, path: str) -> list[str]:
        try:
            return [f"{path}/{name}" for name in sorted(os.listdir(f"{self.path}/{path}"))]
        except OSError:
            return []
