"""
A layer as an agent sees it: where its packages are, and by which variables programs find them.

Runs in:   the caller's program.
"""

from __future__ import annotations

import os

from leeward.dataclass import dataclass

#: Where a sandbox has it.
INSIDE = "/opt/packages"


@dataclass(frozen=True, slots=True)
class Layer:
    """
    A layer that is there, held by this program until `close`: nobody removes it meanwhile.

    Attributes:
        path: the folder on the host with what was unpacked.
        packages: names of those in it, with versions, dependencies among them.
        made: it was made now.
    """

    path: str
    packages: tuple[str, ...]
    made: bool
    lock: int

    def close(self) -> None:
        os.close(self.lock)

    def environment(self) -> dict[str, tuple[str, ...]]:
        """
        Variables by which programs find what is in it, each with the folders that come first in it.
        """
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
