"""
Profiles for engines and hosts whose defaults don't let leeward start: a seccomp profile for containers, an
AppArmor profile for Ubuntu.

Runs in:   the CLI, for `leeward doctor --profile`; and a developer's shell: `./dev generate` writes seccomp.json.
Source:    the OCI runtime specification (config-linux.md, seccomp); seccomp.json's other keys are those
           that Docker's and Podman's format shares with it

The seccomp profile allows what engines allow by default, and the calls that make a sandbox inside the container. It is
an allow-list: other calls, such as those of future kernels, get ENOSYS, on which C libraries fall back. It allows no
32-bit programs.
"""

from __future__ import annotations

import json
from importlib.resources import files

from leeward.errors import BadRequest
from leeward.isolation.seccomp.syscalls import ALL

NAMES = ("apparmor", "seccomp")

#: Calls that leeward doesn't need, with the reason why a container shouldn't have them.
REFUSED: dict[str, str] = {
    "the host's kernel: its modules, its image, its end": "create_module delete_module finit_module get_kernel_syms"
        " init_module kexec_file_load kexec_load query_module reboot",
    "the host's clock, disks and accounts": "acct clock_settime nfsservctl quotactl quotactl_fd settimeofday swapoff"
        " swapon",
    "watches the whole host, or was used to attack its kernel": "bpf fanotify_init lookup_dcookie perf_event_open"
        " uprobe uretprobe userfaultfd",
    "keys aren't divided between containers": "add_key keyctl request_key",
    "a forged handle opens files outside of the container": "open_by_handle_at",
    "the processor's ports": "ioperm iopl",
    "gone from the kernel, or never in it": "_sysctl afs_syscall epoll_ctl_old epoll_wait_old getpmsg putpmsg security"
        " sysfs tuxcall uselib ustat vserver",
    "the host's log and terminals": "syslog vhangup",
}

#: Calls that engines refuse by default, and that leeward needs to make a sandbox.
NEEDED: dict[str, str] = {
    "namespaces": "clone3 setns unshare",
    "the sandbox's own view of the files": "chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount"
        " open_tree open_tree_attr pivot_root umount2",
    "a sandbox's host name": "setdomainname sethostname",
    "requests in batches": "io_uring_enter io_uring_register io_uring_setup",
}

#: The path in the file that is replaced by the program's path.
_PROGRAM = "/usr/bin/leeward"

_EPERM, _ENOSYS = 1, 38


def text(name: str, program: str = _PROGRAM) -> str:
    """The profile *name*, one of NAMES; AppArmor attaches it to the absolute path *program*, else BadRequest."""
    if name == "apparmor":
        if not program.isprintable() or set(program) & set('"\\*?[]{}^@'):
            raise BadRequest(f"no AppArmor profile can name {program!r}: install leeward under a plain path")
        return files(__name__).joinpath("apparmor").read_text().replace(_PROGRAM, program)
    return files(__name__).joinpath("seccomp.json").read_text()


def seccomp() -> str:
    needed = {name: why for why, names in NEEDED.items() for name in names.split()}
    refused = {name: why for why, names in REFUSED.items() for name in names.split()}
    rows: list[dict[str, object]] = [
        {"comment": "what programs need", "action": "SCMP_ACT_ALLOW",
         "names": sorted(set(ALL) - set(needed) - set(refused))},
    ]
    rows += [{"comment": f"leeward: {why}", "action": "SCMP_ACT_ALLOW", "names": names.split()}
             for why, names in NEEDED.items()]
    rows += [{"comment": why, "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM, "names": names.split()}
             for why, names in REFUSED.items()]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": _ENOSYS,
                       "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"], "syscalls": rows}, indent=1) + "\n"
