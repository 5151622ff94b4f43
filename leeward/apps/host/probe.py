"""
Examines the host: reads its settings, and tries each feature, in a process with one thread.

Features are tried where possible, not inferred: namespaces are made, /proc is mounted in one, a cgroup driver is set up
and taken down again. The settings that are read besides only explain why a try failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import resource
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from leeward._native import landlock, loop, mounts, privileges, seccomp
from leeward._native.memfd import SEALS, memory_file
from leeward._native.mounts import MountAttr
from leeward._native.spawn import Clone, clone
from leeward._native.steps import Call, Table, returns
from leeward.apps.host.facts import FILES, MOUNTS, Record, error_name, service_of
from leeward.base.closing import OwnedFd
from leeward.errors import KernelRefusal, LeewardError, Unsupported
from leeward.isolation import interpreter
from leeward.isolation.cgroup.choose import choose
from leeward.spec.tools import TOOLS

_FLAGS = {"pid": Clone.NEWPID, "mount": Clone.NEWNS, "network": Clone.NEWNET, "ipc": Clone.NEWIPC,
          "uts": Clone.NEWUTS, "cgroup": Clone.NEWCGROUP}

#: Where a sandbox looks for programs.
_TOOLS_IN = "/usr/local/bin:/usr/bin:/bin"

#: Mount points that are recorded, besides those below /proc; others would only reveal more of the host.
_SHOWN = ("/proc", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv")


#: Bytes of a zygote's memory that become a file's, with room for some libraries of `preload`.
_SNAPSHOT = 32 << 20


def look() -> Record:
    """Read all settings and try all features. Takes some tens of milliseconds."""
    def with_rights() -> None:
        Table([returns(Call.SETHOSTNAME, "leeward", 7)]).run()  # needs CAP_SYS_ADMIN there, and no recent kernel

    def with_proc() -> None:
        Table([mounts.private_step()]).run()
        mounts.filesystem("proc", {}, MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC)

    driver, detail, passed_over = _cgroup()
    abi, refusal = _landlock()
    tried = {
        "user_namespace": _try(Clone.NEWUSER),
        "rights": _try(Clone.NEWUSER | Clone.NEWUTS, with_rights),
        **{f"namespace.{name}": _try(Clone.NEWUSER | flag) for name, flag in _FLAGS.items()},
        "proc": _try(Clone.NEWUSER | Clone.NEWNS | Clone.NEWPID, with_proc),
        "landlock": refusal, "io_uring": loop.io_uring_refusal(), "memfd": _sealed(),
        "snapshot": _snapshot(),
    }
    return Record(
        machine=platform.machine(), release=platform.release(), root=os.geteuid() == 0,
        pod="KUBERNETES_SERVICE_HOST" in os.environ, filtered=privileges.seccomp_mode() > 0, files=_files(),
        refusals={name: error_name(code) for name, code in tried.items() if code},
        landlock=abi, wait_killable=_notification(), driver=driver, driver_detail=detail, passed_over=passed_over,
        capabilities=_capabilities(), tools_missing=_tools_missing(),
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[1], service=service_of(os.environ),
    )


def _tools_missing() -> tuple[str, ...]:
    return tuple(tool for tool in TOOLS if shutil.which(tool, path=_TOOLS_IN) is None
                 and not (tool == "node" and interpreter.node()))


def _try(flags: Clone, then: Callable[[], None] | None = None) -> int:
    """Make a process in namespaces *flags*, map its id, and call *then* in it. Returns the errno of the first failure."""
    reading, writing = os.pipe()
    try:
        return _tried(flags, then, reading, writing)
    finally:
        os.close(reading)
        os.close(writing)


def _tried(flags: Clone, then: Callable[[], None] | None, reading: int, writing: int) -> int:
    try:
        pid, pidfd = clone(flags)
    except KernelRefusal as refusal:
        return refusal.errno
    if pid == 0:
        code = 255  # something that is no errno: a bug, and told as an unknown error
        try:
            if then is not None and os.read(reading, 1) == b"+":
                then()
            code = 0
        except KernelRefusal as refusal:
            code = refusal.errno
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(min(code, 255))
    os.close(pidfd)
    unmapped = 0
    if then is not None:
        try:
            _map(pid)
        except OSError as error:
            unmapped = error.errno or 255
        os.write(writing, b"-" if unmapped else b"+")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or unmapped


def _map(pid: int) -> None:
    """Map ids as the daemon does for a worker: to the user's own id, or, if root runs this, to an id that isn't root's."""
    Path(f"/proc/{pid}/setgroups").write_text("deny")
    Path(f"/proc/{pid}/uid_map").write_text(f"1000 {os.geteuid() or 1} 1")
    Path(f"/proc/{pid}/gid_map").write_text(f"1000 {os.getegid() if os.geteuid() else 1} 1")


def _files() -> dict[str, str]:
    found = {}
    for path in FILES:
        with contextlib.suppress(OSError):
            found[path] = Path(path).read_bytes().decode(errors="replace")
    if MOUNTS in found:
        found[MOUNTS] = "".join(line + "\n" for line in found[MOUNTS].split("\n")[:-1]
                                if (point := line.split(" ")[4]) in _SHOWN or point.startswith("/proc/"))
    return found


def _capabilities() -> int:
    found = re.search(r"^CapEff:\t([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 16) if found else 0


def _landlock() -> tuple[int, int]:
    """Return Landlock's ABI, and the errno of asking for it; one of the two is 0."""
    try:
        return landlock.abi(), landlock.absence()
    except KernelRefusal as refusal:
        return 0, refusal.errno


def _notification() -> bool | None:
    try:
        return seccomp.has_wait_killable() if seccomp.has_user_notif() else None
    except KernelRefusal:
        return None


def _cgroup() -> tuple[str, Mapping[str, str], tuple[tuple[str, str], ...]]:
    """Set up the cgroup driver that a daemon would use if it were started from here, describe it, and take it down."""
    try:
        driver = choose()
    except Unsupported as missing:
        return "", {}, (("any", missing.have),)
    try:
        return driver.name, dict(driver.detail), driver.passed_over
    finally:
        with contextlib.suppress(LeewardError):
            driver.close()


def _snapshot() -> int:
    """Take the steps that a zygote needs for crossing/snapshot.py. Returns the errno of the first step that fails."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            pagemap.read(8)
        with OwnedFd(memory_file("leeward_doctor")) as file:
            os.pwrite(file, b"\0", _SNAPSHOT - 1)  # of the rest no page is taken
    except OSError as error:
        return error.errno or 255
    return 0


def _sealed() -> int:
    try:
        fd = memory_file("leeward_doctor")
    except OSError as error:
        return error.errno or 255
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        return error.errno or 255
    finally:
        os.close(fd)
    return 0
