"""
The mounts of a runner: its own /proc, and the tmpfs to which it may write. mount_namespaces(7), proc(5), tmpfs(5)

A runner's mount namespace is a copy of its keeper's template (template.py), on which it mounts its own /proc and its
own tmpfs. Nothing is unmounted per job, since umount(2) waits for an RCU grace period. Everything is mounted by
mount(2): it takes one call, where the calls by descriptor take three to seven, and make a mount namespace for each
detached mount. All paths lead through folders that leeward made or mounted, and no other process is here yet.
"""

from __future__ import annotations

import errno
import os
import posixpath

from leeward._native import mounts as native
from leeward._native.mounts import MountAttr
from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Cell, Step, Table, fails, gives, returns
from leeward.spec.sandbox import ZEROS, Root, Scratch, View

_SCRATCH = MountAttr.NOSUID | MountAttr.NODEV
_PROC = _SCRATCH | MountAttr.NOEXEC
#: Bytes of a file in the place of /dev/zero.
_ZEROS = 1 << 60
DEVPTS = MountAttr.NOSUID | MountAttr.NOEXEC

#: Folders of the template where a keeper has the layers of an image, and where each runner has what it writes, and
#: builds its own root.
LAYERS, SCRATCH, STAGED = "/.layers", "/.scratch", "/.root"
#: The number of an image's root among the overlays; the folders of a runner, on its tmpfs, with what it has changed there.
ROOT = "root"
UPPER, WORK = f"upper.{ROOT}", f"work.{ROOT}"
#: A detached copy of the layers: an image's root is mounted anew with them when it goes back to a checkpoint.
KEPT_LAYERS = Cell("layers")
#: The folder of the template in which runners have it if it is on a disk, and the one that a runner makes there, to
#: which the daemon gives another name.
DISK, NEXT = "/.disk", "next"

#: The folder of the template with files that replace files of /proc: a runner binds them into its own /proc.
MADE = "/.proc"
#: The detached copy of /proc by which `detached_proof` shows that Landlock holds; a step of the layer "mounts" makes it.
_DETACHED = Cell("a detached /proc")
#: Folders of an image's root over which there are mounts.
COVERED = ("proc", "dev", "sys")
#: Folders of the uppermost layer of an image's root that are leeward's. There from the beginning, they cover whatever
#: the image has by these names, links as well.
OURS = (*COVERED, "tmp", "workspace", "etc")

#: And links to files of processes, as the kernel's /proc has them.
PROC_LINKS = {"net": "self/net", "mounts": "self/mounts"}


def steps(view: View, scratch_bytes: int) -> list[Step]:
    """
    Mount the runner's own /proc and tmpfs on its copy of the template, and change to /workspace. Needs a mount and a
    pid namespace of its own and CAP_SYS_ADMIN. Linux 5.8 (subset=pid).
    """
    own = [native.mount_step("devpts", "/dev/pts", devpts_options(view.terminals), DEVPTS)] if view.terminals else []
    if view.root is not None:
        return [*_proc(view), *own, *_image(view, view.root, scratch_bytes), *detached_steps(view)]
    return [*_proc(view), *own, *_scratch(view.scratch, scratch_bytes)]


def keep_layers_steps(view: View) -> list[Step]:
    """Copy the layers of an image's root, while they have a path."""
    return [native.copy_step(KEPT_LAYERS, LAYERS)] if view.root is not None else []


def detached_steps(view: View) -> list[Step]:
    """What `proof` needs of a sandbox with an image's root, while mounts may still be copied."""
    return [native.copy_step(_DETACHED, "/proc", alone=True)] if view.root is not None else []


def detached_proof(view: View) -> list[Step]:
    """
    Try to read a file on a detached mount, which no rule of Landlock covers, and let the mount go: a rule covers an
    image's whole root, so that it has no file which is refused.
    """
    return [] if view.root is None else [
        fails(Call.OPENAT, _DETACHED, "self/stat", os.O_RDONLY | os.O_CLOEXEC, 0, errnos=(errno.EACCES,))]


def close_steps(view: View) -> list[Step]:
    return [] if view.root is None else [returns(Call.CLOSE, _DETACHED)]


def own(view: View) -> tuple[str, ...]:
    """The paths on which each runner mounts something of its own."""
    return ("/proc", *(("/dev/pts",) if view.terminals else ()), *view.scratch.targets)


def proof(view: View) -> list[Step]:
    """Check that a folder is read-only, and that /proc lacks a file that isn't about a process, and that a whole one has."""
    return [fails(Call.MKDIRAT, native.AT_FDCWD, posixpath.join(read_only(view), "here"), 0o777,
                  errnos=(errno.EROFS, errno.EACCES)),
            fails(Call.OPENAT, native.AT_FDCWD, "/proc/version", os.O_RDONLY | os.O_CLOEXEC, 0, errnos=(errno.ENOENT,))]


def read_only(view: View) -> str:
    """The folder in which nothing can be made: the root, or in an image, whose root is the sandbox's, /dev."""
    return "/" if view.root is None else "/dev"


def folder(view: View) -> str:
    """The folder in which code begins."""
    return view.scratch.targets[0] if view.root is None else "/workspace"


def _proc_link(name: str) -> list[Step]:
    """A link upon the kernel's own, which leads to the same: mount(2) would follow both."""
    link = Cell(name)
    return [native.copy_step(link, f"{MADE}/{name}", alone=True), native.move_step(link, f"/proc/{name}"),
            returns(Call.CLOSE, link)]


def _proc(view: View) -> list[Step]:
    """
    A /proc with processes, the files of *view*, and nothing else.

    With subset=pid there is no /proc/meminfo on which a file could be mounted. So /proc is whole at first, which only
    this process can see, and becomes subset=pid when the few names are covered. The kernel then finds no other name; it
    still finds the covered ones, because the mounts keep their entries in memory.
    """
    if not (view.proc or view.proc_live):
        return [native.mount_step("proc", "/proc", {"subset": "pid"}, _PROC)]
    return [
        native.mount_step("proc", "/proc", {}, _PROC),
        # MADE's files have the attributes of the template's root: read-only, nosuid, nodev.
        *(native.bind_step(f"{MADE}/{posixpath.basename(text.target)}", text.target) for text in view.proc),
        *(native.bind_step(f"/proc/{name}", f"/proc/{name}") for name in view.proc_live),
        *(native.remount_step(f"/proc/{name}", _PROC | MountAttr.RDONLY) for name in view.proc_live),
        *(step for name in PROC_LINKS for step in _proc_link(name)),
        native.reconfigure_step("/proc", {"subset": "pid"}, _PROC),
    ]


def is_whole_proc_refused() -> bool:
    """
    Whether this kernel refuses to make a whole /proc subset=pid. Tries it in new namespaces, which the calling process
    enters; it must have only one thread. KernelRefusal, OSError if another call is refused.
    """
    owner = os.geteuid()
    Table([returns(Call.UNSHARE, Clone.NEWUSER | Clone.NEWNS | Clone.NEWPID)]).run()
    with open("/proc/self/uid_map", "w") as ids:
        ids.write(f"0 {owner} 1")
    if not (pid := os.fork()):
        code = 1
        try:
            code = 2 if _stays_whole() else 0
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if ended not in (0, 2):
        raise OSError("no private /proc can be mounted")
    return ended == 2


def _stays_whole() -> bool:
    made = [native.private_step(), native.mount_step("proc", "/proc", {}, _PROC)]
    table = Table([*made, native.reconfigure_step("/proc", {"subset": "pid"}, _PROC)])
    done, _ = table.take()
    if done < len(made):
        raise OSError("no private /proc can be mounted")
    return done < len(table.steps)


def devpts_options(most: int) -> dict[str, str]:
    """
    A devpts of a job's or worker's own, for *most* pseudo-terminals. Without the option gid=5: that group, `tty`, isn't
    mapped, and a terminal has the group of the process that opens it.
    """
    return {"newinstance": "", "ptmxmode": "0666", "mode": "0600", "max": str(most)}


def _image(view: View, root: Root, scratch_bytes: int) -> list[Step]:
    """
    Mount the overlay of an image's layers, put leeward's own folders on it, and make it the root. What is written is on
    one tmpfs, or in a folder of a disk. Paths lead through leeward's own folders alone: no link of the image is followed.
    """
    base, staged = f"{DISK}/{NEXT}" if root.disk else SCRATCH, STAGED
    upper = f"{base}/{UPPER}"
    made = [native.mount_step("tmpfs", SCRATCH, {"size": str(scratch_bytes), "nr_inodes": str(view.scratch.inodes),
                                                 "mode": "0755"}, _SCRATCH)]
    for path in (*([base] if root.disk else []), upper, f"{base}/{WORK}", *(f"{upper}/{name}" for name in OURS)):
        made += [returns(Call.MKDIRAT, native.AT_FDCWD, path, 0o755)]
    for text in root.texts:
        fd = Cell(text.target)
        made += [gives(fd, Call.OPENAT, native.AT_FDCWD, upper + text.target,
                       os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644),
                 returns(Call.WRITE, fd, Block(text.content), len(text.content), value=len(text.content)),
                 returns(Call.CLOSE, fd)]
    if root.zeros:
        made += _zeros()
    made.append(native.bind_step(base, view.scratch.targets[0]))  # below the folder that covers it, for a porter
    for number, target in enumerate(view.scratch.targets):
        made += [returns(Call.MKDIRAT, native.AT_FDCWD, f"{SCRATCH}/{number}", 0o700),
                 returns(Call.FCHMODAT, native.AT_FDCWD, f"{SCRATCH}/{number}", 0o1777),
                 native.bind_step(f"{SCRATCH}/{number}", target)]
    return [
        *made,
        returns(Call.FCHMODAT, native.AT_FDCWD, f"{upper}/tmp", 0o1777),
        overlay_step(root, staged, LAYERS, base),
        *(native.bind_step(f"/{name}", f"{staged}/{name}") for name in COVERED),
        native.remount_step(f"{staged}/proc", _PROC | MountAttr.RDONLY),  # Landlock has a rule for the whole root
        returns(Call.CHDIR, staged),
        returns(Call.PIVOT_ROOT, ".", "."),
        native.unmount_step("."),
        returns(Call.CHDIR, view.scratch.targets[0]),  # of which the daemon gets a descriptor, where it watches memory
    ]


def overlay_step(root: Root, target: str, layers: str, base: str) -> Step:
    """Mount on *target* the overlay of the layers below *layers* and the upper one below *base*."""
    return native.mount_step("overlay", target, {
        "lowerdir": ":".join(f"{layers}/{number}" for number in reversed(range(len(root.layers)))),
        "upperdir": f"{base}/{UPPER}", "workdir": f"{base}/{WORK}", "userxattr": "",
        **({"volatile": ""} if root.disk else {}),  # the end of a sandbox doesn't wait for the disk
        **({"xino": "on"} if root.owners else {})}, _SCRATCH)


def _zeros() -> list[Step]:
    """
    A file as long as no program reads, and without a block, in place of the device: a hole reads as zeros. What is mapped
    of it is in the sandbox's own tmpfs, within its size; and nobody can write.
    """
    fd, path = Cell(ZEROS), f"{SCRATCH}/zeros"
    return [gives(fd, Call.OPENAT, native.AT_FDCWD, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444),
            returns(Call.FTRUNCATE, fd, _ZEROS), returns(Call.CLOSE, fd),
            native.bind_step(path, ZEROS), native.remount_step(ZEROS, _PROC | MountAttr.RDONLY)]


def _scratch(scratch: Scratch, scratch_bytes: int) -> list[Step]:
    """
    One tmpfs, with a folder for each target. It is mounted on the first target, which its first folder then covers; so
    the folders are reached by the current folder.
    """
    first = scratch.targets[0]
    made = [native.mount_step("tmpfs", first, {"size": str(scratch_bytes), "nr_inodes": str(scratch.inodes),
                                               "mode": "0755"}, _SCRATCH),
            returns(Call.CHDIR, first)]
    for number, _ in enumerate(scratch.targets):
        made += [
            returns(Call.MKDIRAT, native.AT_FDCWD, str(number), 0o700),
            # Programs expect /tmp and /dev/shm to be world-writable and sticky; the sandbox has one user anyway.
            returns(Call.FCHMODAT, native.AT_FDCWD, str(number), 0o755 if number == 0 else 0o1777),
        ]
    return [*made, *(native.bind_step(str(number), target) for number, target in enumerate(scratch.targets)),
            returns(Call.CHDIR, first)]
