"""
Mounts of a runner's own: its /proc, and what it may write.

Runs in:   the steps are laid out in the zygote; the runner takes them.
Leaves:    no descriptor.
Source:    mount_namespaces(7), proc(5), tmpfs(5)

A runner's mount namespace is a copy of its keeper's template (template.py), on which two things are put:
its own /proc and its own tmpfs. Nothing is unmounted per job (that would wait for an RCU period).
"""

from __future__ import annotations

from leeward._native import mounts as native
from leeward._native.mounts import MountAttr
from leeward._native.steps import Call, Cell, Step, returns
from leeward.spec.sandbox import Scratch

_SCRATCH = MountAttr.NOSUID | MountAttr.NODEV


def steps(scratch: Scratch, scratch_bytes: int) -> list[Step]:
    """
    Put the runner's own /proc and its own tmpfs on its copy of the template, and go to /workspace.

    Needs a mount and a pid namespace of its own and CAP_SYS_ADMIN. Linux 5.8 (subset=pid).
    """
    proc, tmpfs = Cell("proc"), Cell("tmpfs")
    options = {"size": str(scratch_bytes), "nr_inodes": str(scratch.inodes), "mode": "0755"}
    made = [
        *native.filesystem_steps(proc, "proc", {"subset": "pid"}, _SCRATCH | MountAttr.NOEXEC),
        native.move_step(proc, "/proc"),
        returns(Call.CLOSE, proc),
        *native.filesystem_steps(tmpfs, "tmpfs", options, _SCRATCH),
    ]
    for number, _ in enumerate(scratch.targets):
        made += [
            returns(Call.MKDIRAT, tmpfs, str(number), 0o700),
            # /tmp and /dev/shm are expected to be world-writable and sticky; there is one user here anyway.
            returns(Call.FCHMODAT, tmpfs, str(number), 0o755 if 0 == number else 0o1777),
        ]
    # Linux before 6.15 copies no part of a mount that isn't attached anywhere. So the whole is attached where its
    # first folder will cover it.
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
