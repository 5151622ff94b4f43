"""
Folders of the server's host that sandboxes of a tenant may show: its token names them.

Holds:     what is shown lies in such a folder. Each part of a path below it is opened without following a link, since
           sandboxes may have written there, and the daemon gets the folder that was opened so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from leeward.apps.serve.calls import taken
from leeward.apps.serve.problems import ServeProblem, bad
from leeward.apps.serve.tokens import ServeTenant, ServeVolume
from leeward.base.closing import OwnedFd
from leeward.client.mounts import Mount
from leeward.spec.folders import MOST

#: Folders between a volume's own and the one that is shown, at most.
MOST_BELOW = 64
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ShownVolume:
    """What a sandbox shows of a *volume* at *target*: its folder, or what has the path *below* it."""

    volume: ServeVolume
    below: str
    target: str
    writable: bool


def wanted(tenant: ServeTenant, fields: Mapping[str, Any]) -> tuple[ShownVolume, ...]:
    """Those that a request of OpenSandbox's asks for; ServeProblem for what isn't the tenant's."""
    found, rows = [], taken(fields, "volumes", list, [])
    if len(rows) > MOST:
        raise bad(f"a sandbox shows {MOST} volumes at most")
    for row in rows:
        if not isinstance(row, dict):
            raise bad("volumes has to be a list of objects")
        volume, below = _of(tenant, row)
        writable = not taken(row, "readOnly", bool, False)
        if writable and not volume.writable:
            raise bad(f"the volume {volume.name} is for reading alone")
        further, target = (taken(row, name, str, "") for name in ("subPath", "mountPath"))
        found.append(ShownVolume(volume, f"{below}/{further}", target, writable))
    return tuple(found)


def _of(tenant: ServeTenant, row: Mapping[str, Any]) -> tuple[ServeVolume, str]:
    """The volume that *row* names, by its name or by a path in its folder, and the path below that folder."""
    if claim := taken(taken(row, "pvc", dict, {}), "claimName", str, ""):
        for volume in tenant.volumes:
            if volume.name == claim:
                return volume, ""
    elif path := taken(taken(row, "host", dict, {}), "path", str, ""):
        for volume in tenant.volumes:
            if f"{path}/".startswith(f"{volume.folder}/"):
                return volume, path[len(volume.folder):]
    else:
        raise ServeProblem(501, "a volume is one by `pvc` or by `host` here")
    raise bad("there is no such volume for this token: `leeward serve token create --volume` names them")


@contextmanager
def mounts_of(shown: Iterable[ShownVolume]) -> Iterator[list[Mount]]:
    """What a sandbox is opened with; its folders are open meanwhile, no others. ServeProblem if there is no such folder."""
    with ExitStack() as held:
        made = []
        for each in shown:
            try:
                folder = _opened(each.volume.folder, [name for name in each.below.split("/") if name not in ("", ".")])
            except (OSError, ValueError):
                raise bad(f"there is no such folder in the volume {each.volume.name}") from None
            made.append(Mount(f"/proc/self/fd/{held.enter_context(folder)}", each.target, each.writable))
        yield made


def _opened(volume: str, names: Sequence[str]) -> OwnedFd:
    """The folder that has the path *names* below that of a *volume*. ValueError for what is no such path."""
    if ".." in names or len(names) > MOST_BELOW:
        raise ValueError
    here = OwnedFd(os.open(volume, _FOLDER))
    for name in names:
        with here as above:
            here = OwnedFd(os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above))
    return here
