"""
The mounts of a runner: its own /proc, and the tmpfs to which it may write.

Runs in:   the steps are laid out in the zygote; the runner takes them.
Leaves:    no descriptor open.
Source:    mount_namespaces(7), proc(5), tmpfs(5)

A runner's mount namespace is a copy of its keeper's template (template.py), on which it mounts its own /proc and
its own tmpfs. Nothing is unmounted per job, since umount(2) waits for an RCU grace period.
"""

from __future__ import annotations

import errno
import os
import posixpath

from leeward._native import mounts as native
from leeward._native.mounts import MountAttr
from leeward._native.spawn import Clone
from leeward._native.steps import Call, Cell, Step, Table, fails, returns
from leeward.spec.sandbox import Scratch, View

_SCRATCH = MountAttr.NOSUID | MountAttr.NODEV
_PROC = _SCRATCH | MountAttr.NOEXEC

#: The folder of the template with files that replace files of /proc: a runner binds them into its own /proc.
MADE = "/.proc"


def steps(view: View, scratch_bytes: int) -> list[Step]:
    """
    Mount the runner's own /proc and tmpfs on its copy of the template, and change to /workspace.

    Needs a mount and a pid namespace of its own and CAP_SYS_ADMIN. Linux 5.8 (subset=pid).
    """
    return [*_proc(view), *(_terminals(view.terminals) if view.terminals else ()), *_scratch(view.scratch,
                                                                                             scratch_bytes)]


def proof(view: View) -> list[Step]:
    """
    Check that /proc lacks a file that isn't about a process, and that every whole /proc has.
    """
    return [fails(Call.OPENAT, native.AT_FDCWD, "/proc/version", os.O_RDONLY | os.O_CLOEXEC, 0, errnos=(errno.ENOENT,))]


def _proc(view: View) -> list[Step]:
    """
    A /proc with processes, the files of *view*, and nothing else.

    With subset=pid there is no /proc/meminfo on which a file could be mounted. So /proc is whole at first, and becomes
    subset=pid when the few names are covered. The kernel then finds no other name; it still finds the covered ones,
    because the mounts keep their entries in memory. Meanwhile only the process that takes these steps can see /proc.
    """
    if not (view.proc or view.proc_live):
        proc = Cell("proc")
        return [*native.filesystem_steps(proc, "proc", {"subset": "pid"}, _PROC), native.move_step(proc, "/proc"),
                returns(Call.CLOSE, proc)]
    fs, proc = Cell("new proc"), Cell("proc")
    # MADE's files have the attributes of the template's root: read-only, nosuid, nodev.
    covers = [*((f"{MADE}/{posixpath.basename(text.target)}", text.target) for text in view.proc),
              *((f"/proc/{name}", f"/proc/{name}") for name in view.proc_live)]
    made = []
    for source, target in covers:
        file = Cell(target)
        made += [native.copy_step(file, source), native.move_step(file, target), returns(Call.CLOSE, file)]
    return [
        *native.whole_steps(fs, proc, "proc", {}, _PROC),
        native.move_step(proc, "/proc"),
        returns(Call.CLOSE, proc),
        *made,
        *(native.remount_step(f"/proc/{name}", _PROC | MountAttr.RDONLY) for name in view.proc_live),
        *native.reconfigure_steps(fs, {"subset": "pid"}),
        returns(Call.CLOSE, fs),
    ]


def is_whole_proc_refused() -> bool:
    """
    Whether this kernel refuses to make a whole /proc subset=pid. Tries it in new namespaces, which the calling process
    enters; it must have only one thread.

    Raises:
        KernelRefusal, OSError: another call is refused.
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
        raise OSError("a /proc of its own can't be had")
    return 2 == ended


def _stays_whole() -> bool:
    fs, proc = Cell("new proc"), Cell("proc")
    made = [native.private_step(), *native.whole_steps(fs, proc, "proc", {}, _PROC)]
    table = Table([*made, *native.reconfigure_steps(fs, {"subset": "pid"})])
    done, _ = table.take()
    if done < len(made):
        raise OSError("a /proc of its own can't be had")
    return done < len(table.steps)


def _terminals(most: int) -> list[Step]:
    """
    A devpts of the job's own at /dev/pts, for *most* pseudo-terminals.

    The mount has no option gid=5, since that group, `tty`, isn't mapped. A terminal has the group of the process that
    opens it.
    """
    devpts = Cell("devpts")
    options = {"newinstance": "", "ptmxmode": "0666", "mode": "0600", "max": str(most)}
    return [*native.filesystem_steps(devpts, "devpts", options, MountAttr.NOSUID | MountAttr.NOEXEC),
            native.move_step(devpts, "/dev/pts"), returns(Call.CLOSE, devpts)]


def _scratch(scratch: Scratch, scratch_bytes: int) -> list[Step]:
    tmpfs = Cell("tmpfs")
    options = {"size": str(scratch_bytes), "nr_inodes": str(scratch.inodes), "mode": "0755"}
    made = native.filesystem_steps(tmpfs, "tmpfs", options, _SCRATCH)
    for number, _ in enumerate(scratch.targets):
        made += [
            returns(Call.MKDIRAT, tmpfs, str(number), 0o700),
            # Programs expect /tmp and /dev/shm to be world-writable and sticky; the sandbox has one user anyway.
            returns(Call.FCHMODAT, tmpfs, str(number), 0o755 if 0 == number else 0o1777),
        ]
    # Linux before 6.15 can't copy a part of a detached mount. So the whole tmpfs is attached first, at the place
    # which its first folder will cover.
    first = scratch.targets[0]
    folders = [Cell(target) for target in scratch.targets]
    return [
        *made,
        native.move_step(tmpfs, first),
        *(native.copy_step(folder, f"{first}/{number}") for number, folder in enumerate(folders)),
        *(native.move_step(folder, target) for folder, target in zip(folders, scratch.targets, strict=True)),
        *(returns(Call.CLOSE, cell) for cell in (tmpfs, *folders)),
        returns(Call.CHDIR, first),
    ]
