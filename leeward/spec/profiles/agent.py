"""
The profile `agent`: an agent's command line on a project, with a home folder of its own and the caller's name.

A client gives the project and other folders of the host as mounts, at the same paths as on the host. The profile adds
what no mount can give: the home folder, the entry in /etc/passwd, and names that are hidden or can't be written.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

from leeward.base.dataclass import dataclass, replace
from leeward.errors import BadRequest
from leeward.spec import folders
from leeward.spec.folders import Folder, within
from leeward.spec.limits import GIB, MIB
from leeward.spec.pool_key import AGENT
from leeward.spec.profiles.profile import Profile
from leeward.spec.sandbox import SandboxSpec, View

#: Limits: what an agent with a compiler, a test suite and a browser's engine in it takes. `time` and `output` are of
#: each `run`; what is started on a terminal has neither.
PROFILE = Profile(base="python", about="For `leeward agent`: a project at its own path, a home of its own, the hosts"
                                       " that its client names.",
                  limits={"memory": 4 * GIB, "processes": 256, "time": 600.0, "output": 64 * MIB, "files": 2 * GIB,
                          "cpu": 400, "descriptors": 4096},
                  loopback=True, terminal=True, max=16)

#: Files, folders and links in its own folders, the copies of an overlay among them.
_INODES = 1 << 19

#: Names to hide, protect or pin: so many, and so many bytes of them, for which one message to the porter has room.
MOST_NAMES, MOST_NAME_BYTES = 512, 40 << 10

_USER = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"
_NOLOGIN = "/usr/sbin/nologin"


@dataclass(frozen=True, slots=True)
class HomePlan:
    """The home folder and the names that a sandbox of this profile has beside its mounts."""

    path: str  # the home folder; "" for none
    texts: tuple[tuple[str, bytes], ...]  # small files in place of the view's, by their paths; lines of an image's files
    hide: tuple[str, ...]  # paths in the sandbox: a file there is empty and can't be read, a folder is empty
    protect: tuple[str, ...]  # paths in the sandbox that can't be written
    pin: tuple[str, ...] = ()  # folders in the sandbox that can't be renamed, moved or removed


def agent(spec: SandboxSpec) -> SandboxSpec:
    """Make the profile for one host from *spec*, the spec of the profile for Python."""
    return replace(spec, profile=AGENT, view=replace(
        spec.view, scratch=replace(spec.view.scratch, inodes=_INODES)))


def home_plan(path: str, user: str, hide: Sequence[str], protect: Sequence[str], mounts: Iterable[Folder], view: View,
              uid: int, pin: Sequence[str]) -> HomePlan:
    """
    Check the home folder and the names that a client asks for; BadRequest if the home can't be there, or a name is
    wrong. A mount at its path is the home.

    *user* is the caller's name, "" for that of other profiles; *mounts* are all of the sandbox; *uid* is inside.
    """
    mounts = tuple(mounts)
    user = user or "sandbox"
    if not re.fullmatch(_USER, user):
        raise BadRequest(f"user {user!r:.60} can't be a user's name")
    folders.check([Folder("/nowhere", path)])
    for mount in mounts:
        if within(path, mount.target) and not (path == mount.target and mount.writable):
            raise BadRequest(f"mount {mount.target!r:.80} is the home folder {path!r:.80}, or holds it")
    for target in (*(bind.target for bind in view.binds), *view.scratch.targets):
        if within(path, target) and (path == target or target not in view.scratch.targets):
            raise BadRequest(f"the sandbox's own {target!r:.80} is where the home folder {path!r:.80} is to be")
    check_names((*hide, *protect, *pin), mounts)
    return HomePlan(path, _texts(user, path, uid, view.root is not None), tuple(dict.fromkeys(hide)),
                    tuple(dict.fromkeys(protect)), tuple(dict.fromkeys(pin)))


def without_home(protect: Sequence[str], pin: Sequence[str], mounts: Iterable[Folder]) -> HomePlan | None:
    """The plan of a sandbox without a home whose client asks for these names, which are checked; None without names."""
    if not protect and not pin:
        return None
    check_names((*protect, *pin), mounts)
    return HomePlan("", (), (), tuple(dict.fromkeys(protect)), tuple(dict.fromkeys(pin)))


def check_names(names: Sequence[str], mounts: Iterable[Folder]) -> None:
    """Raise BadRequest if there are too many, one isn't a plain path, or lies in none of *mounts*."""
    mounts = tuple(mounts)
    if len(names) > MOST_NAMES or sum(len(name.encode()) for name in names) > MOST_NAME_BYTES:
        raise BadRequest(f"{len(names)} names to hide, protect or pin; {MOST_NAMES} are the most, of {MOST_NAME_BYTES}"
                         " bytes together")
    for name in names:
        if name != posixpath.normpath(name) or not any(within(name, mount.target) for mount in mounts):
            raise BadRequest(f"{name!r:.80} is to be hidden, protected or pinned, and lies in no mount")


def _texts(user: str, home: str, uid: int, in_image: bool) -> tuple[tuple[str, bytes], ...]:
    if ":" in home or not home.isprintable():
        home = "/workspace"  # a line of this file can't hold it; HOME does
    if in_image:
        return (("/etc/passwd", f"{user}:x:{uid}:{uid}:{user}:{home}:/bin/sh\n".encode()),
                ("/etc/group", f"{user}:x:{uid}:\n".encode()))
    root = "" if user == "root" else f"root:x:0:0:root:/nonexistent:{_NOLOGIN}\n"
    return (("/etc/passwd", f"{root}{user}:x:{uid}:{uid}:{user}:{home}:/bin/sh\n"
                            f"nobody:x:65534:65534:nobody:/nonexistent:{_NOLOGIN}\n".encode()),
            ("/etc/group", f"{'root:x:0:' + chr(10) if root else ''}{user}:x:{uid}:\nnogroup:x:65534:\n".encode()))


def needless(folder: Folder, view: View) -> bool:
    """Whether *view* already shows *folder* in the way that the client asks for."""
    return (folder.path == folder.target and not (folder.writable or folder.overlay)
            and any(bind.source == bind.target and within(folder.target, bind.target) for bind in view.binds))
