"""
Backstage: the mount and network namespace, without any capability, in which a zygote imports modules.

Runs in:   the daemon lays out the steps; the child that becomes a zygote takes them before its exec.
Stands if: an imported module trusts files in /tmp or in a home folder, or the network: the host's aren't there.
Leaves:    the host's whole /proc with its processes: an inner user namespace may mount a /proc only if it sees one in
           full. Runners see NOBODY in full.
Source:    mount_namespaces(7), network_namespaces(7), user_namespaces(7), capabilities(7)

A zygote's root has the folders and files of a job's view, at the same paths, and leeward's own modules, all read-only.
/tmp and /dev/shm are the zygote's own; $HOME, which is a job's /workspace, doesn't exist.

Keepers have copies of these mounts, and need the host's present tree when they bind a part of it: a file that was
replaced since, such as /etc/ld.so.cache, can't be mounted any more through a mount of the old one. So the host's tree
is mounted read-only at COVERED, and covered by an empty folder: no path leads to it. The zygote has the descriptor HOST
of the tree, and makes the tree its current folder when it has imported everything; a keeper's current folder is then
the same tree in its own copy of the mounts.

A daemon without CAP_SYS_ADMIN, of an ordinary user or a container's root, makes a user namespace as well, in which all
ids that the daemon may need have the same numbers as outside.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from leeward._native import mounts as native
from leeward._native.mounts import MountAttr
from leeward._native.spawn import Clone
from leeward._native.steps import Call, Cell, Gives, Step, gives, returns
from leeward.base.dataclass import dataclass, replace
from leeward.errors import KernelRefusal
from leeward.isolation import privileges, template
from leeward.isolation.template import NOBODY, folder_steps
from leeward.spec.folders import within
from leeward.spec.sandbox import Bind, View

#: Folders that belong to the zygote alone: modules write lists of fonts, compiled kernels and the like.
OWN = ("/tmp", "/dev/shm")

#: The folder where the host's tree is mounted and covered, and the zygote's descriptor of that tree.
COVERED, HOST = "/.host", 5

_LOCKED = int(MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC)

_CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True)
class Backstage:
    namespaces: Clone  # the clone flags of the new ones
    setgroups: bool    # it can drop groups: not in a user namespace whose groups an ordinary user has mapped
    uid_map: str = ""  # the id maps of the new user namespace; "" if there is none
    gid_map: str = ""


def decide(uid: int, gid: int, capable: bool, maps: tuple[str, str]) -> Backstage:
    """The namespaces that a daemon with these ids needs for its zygote. *maps*: its uid_map and gid_map. Pure."""
    if capable:
        return Backstage(Clone.NEWNS | Clone.NEWNET, setgroups=True)
    namespaces = Clone.NEWUSER | Clone.NEWNS | Clone.NEWNET
    if uid == 0:
        return Backstage(namespaces, True, *map(_as_outside, maps))
    return Backstage(namespaces, False, f"{uid} {uid} 1", f"{gid} {gid} 1")


def _as_outside(text: str) -> str:
    """A map in which every id of this user namespace stands for itself."""
    spans = [line.split() for line in text.splitlines()]
    return "\n".join(f"{first} {first} {count}" for first, _, count in spans)


def here() -> Backstage:
    """The `Backstage` that this process needs."""
    with open("/proc/self/status") as status:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    maps = []
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}") as file:
            maps.append(file.read())
    return decide(os.geteuid(), os.getegid(), bool(effective >> _CAP_SYS_ADMIN & 1), (maps[0], maps[1]))


def proc_of_nobody() -> int:
    """
    Make a detached /proc of a pid namespace that has ended, which shows no process. Returns its descriptor, which the
    caller owns; or -1 if the kernel refuses. Then each keeper makes one, or says why there is none. As for a keeper, in a
    user namespace, also by root: where parts of the host's /proc are masked, this one would show them.
    """
    try:
        return native.filesystem("proc", {}, MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC,
                                 Clone.NEWUSER | Clone.NEWNS | Clone.NEWPID)
    except KernelRefusal:
        return -1


def steps(made: Backstage, view: View, modules: Iterable[Bind], nobody: int = -1) -> Iterator[Step]:
    """
    Build the root of the jobs' *view* and *modules*, enter it, and give up every capability. *nobody*: the descriptor of
    `proc_of_nobody`, which is closed, or -1. Unsupported if the host lacks a file or folder that *view* binds.
    """
    view = shown(view, modules)
    recursively = native.sets_attributes()
    found = tuple(template.sources(view))
    proc, host = Cell("host's /proc"), Cell("host's /")
    yield Step(Call.UMASK, (0o022,), (), gives=Gives.SOMETHING)
    for source in found:
        yield from template.open_steps(source, recursively=recursively)
    yield native.copy_step(proc, "/proc")
    yield native.copy_step(host, "/")
    if recursively:
        yield native.attributes_step(host, MountAttr.RDONLY)
    yield from template.stage_steps()
    yield from _own_folder_steps()
    for source in found:
        yield from template.put_steps(source)
        if not (recursively or source.link):
            yield native.private_step(f".{source.bind.target}")
            # A user namespace can't remove the attributes that the mount has on the host.
            locked = os.statvfs(source.bind.source).f_flag & _LOCKED
            yield native.remount_step(f".{source.bind.target}", MountAttr(source.attributes | locked))
    yield from template.write_steps(view.texts)
    yield from template.link_steps(view)
    yield from folder_steps(("/proc", COVERED))
    for mount, target in ((proc, "/proc"), (host, COVERED)):
        yield native.move_step(mount, f".{target}")
        yield returns(Call.CLOSE, mount)
        if not recursively:  # else a mount of ours in it would be one of the host's, where those are shared
            yield native.private_step(f".{target}")
    if nobody >= 0:
        yield from folder_steps((NOBODY,))
        yield native.move_step(nobody, f".{NOBODY}")
        yield returns(Call.CLOSE, nobody)
    # The tree's /proc is read-only. If a keeper mounted its own /proc by the sight of this one, that /proc and those of
    # its runners would have to be read-only, too.
    yield from _cover(f".{COVERED}/proc")
    yield from template.close_steps(found)
    yield from template.enter_steps()
    yield returns(Call.OPENAT, native.AT_FDCWD, COVERED, os.O_PATH | os.O_DIRECTORY, 0, value=HOST)
    yield from _cover(COVERED)
    yield from privileges.powerless_steps(groups=made.setgroups)


def behind() -> None:
    """Change to the host's tree when the zygote has imported everything. Nothing in one that wasn't started backstage."""
    if os.path.isdir(COVERED):
        os.fchdir(HOST)
        os.close(HOST)


def host_steps() -> tuple[list[Step], list[Step]]:
    """Steps by which a keeper makes the host's tree, its current folder, the root; and steps that undo this."""
    root = Cell("zygote's root")
    return ([gives(root, Call.OPENAT, native.AT_FDCWD, "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0),
             returns(Call.CHROOT, ".")],
            [returns(Call.FCHDIR, root), returns(Call.CHROOT, "."), returns(Call.CLOSE, root)])


def shown(view: View, modules: Iterable[Bind]) -> View:
    """*view* with *modules*, outermost folders first, and without links at paths where a folder will be."""
    # A file in a folder that is shown already exists there, and a mount point for it couldn't be made.
    there = [bind.target for bind in view.binds if bind.source == bind.target and not (bind.file or bind.device)]
    modules = [module for module in modules
               if not (module.file and any(within(module.source, folder) for folder in there))]
    binds = {bind.target: bind for bind in (*modules, *view.binds)}
    ordered = sorted(binds.values(), key=lambda bind: bind.target.count("/"))
    links = tuple(link for link in view.links
                  if not any((target + "/").startswith(link.target + "/") for target in (*binds, *OWN)))
    return replace(view, binds=tuple(ordered), links=links)


def _own_folder_steps() -> Iterator[Step]:
    for target in OWN:
        yield from folder_steps((target,))
        yield from _tmpfs(Cell(target), f".{target}", {"size": "64m", "nr_inodes": "4096", "mode": "1777"})


def _cover(path: str) -> Iterator[Step]:
    """Mount an empty folder on *path*, which only a process with a capability can look into."""
    return _tmpfs(Cell("cover"), path, {"size": "4k", "mode": "0"})


def _tmpfs(made: Cell, path: str, options: Mapping[str, str]) -> Iterator[Step]:
    yield from native.filesystem_steps(made, "tmpfs", options, MountAttr.NOSUID | MountAttr.NODEV)
    yield native.move_step(made, path)
    yield returns(Call.CLOSE, made)
