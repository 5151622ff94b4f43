"""One cgroup: a folder of control files, and the processes in it. cgroups(7), admin-guide/cgroup-v2.rst"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import stat
from collections.abc import Callable

from leeward.base.closing import Closing
from leeward.errors import KernelRefusal
from leeward.isolation.cgroup import reserve

_WRITE = os.O_WRONLY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW

CAP_CHOWN = 0

#: Microseconds; the kernel's default. A job that has used up its share waits at most this long.
PERIOD_US = 100_000

#: Errors for a group that another program removed: ENOENT for its name, ENODEV for its files that are still open.
REMOVED = (errno.ENOENT, errno.ENODEV)
STATUS = "/proc/self/status"


def may_give() -> bool:
    """Whether this process can make workers own their control files: root, which alone has to, may lack the capability."""
    if os.geteuid():
        return True
    with open(STATUS, encoding="utf-8") as status:
        found = re.search(r"^CapEff:\t([0-9a-f]+)$", status.read(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> CAP_CHOWN & 1)


class Refusing:
    """A context that raises an OSError as KernelRefusal. A generator's takes five times as long, and each call has one."""

    __slots__ = ("_arguments", "_call")

    def __init__(self, call: str, arguments: str) -> None:
        self._call, self._arguments = call, arguments

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise KernelRefusal(self._call, self._arguments, error.errno or 0) from error


class Group(Closing):
    """A group that this process made, or the group that it is in. Holds a descriptor of the folder until `let_go`."""

    __slots__ = ("_parent", "fd", "name", "path")

    def __init__(self, path: str, fd: int, parent: Group | None = None) -> None:
        self.path, self.fd, self._parent = path, fd, parent
        self.name = os.path.basename(path)

    @classmethod
    def at(cls, path: str) -> Group:
        with Refusing("open", path):
            return cls(path, os.open(path, _FOLDER))

    def make(self, name: str) -> Group:
        with Refusing("mkdir", f"{self.path}/{name}"):
            os.mkdir(name, 0o755, dir_fd=self.fd)
        try:
            return self.child(name)
        except KernelRefusal:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=self.fd)
            raise

    def child(self, name: str) -> Group:
        with Refusing("open", f"{self.path}/{name}"):
            return Group(f"{self.path}/{name}", os.open(name, _FOLDER, dir_fd=self.fd), self)

    def let_go(self) -> None:
        """Close the descriptor of the folder. From now on control files are opened by the parent's descriptor."""
        assert self._parent is not None
        self.close()

    def hold(self) -> None:
        if self.fd < 0 and self._parent is not None:
            self.fd = self._parent.open(self.name, _FOLDER)

    def _locate(self, name: str) -> tuple[str, int]:
        """The control file *name* as a path, and the descriptor of the folder that the path is relative to."""
        if self.fd < 0 and self._parent is not None:
            return f"{self.name}/{name}", self._parent.fd
        return name, self.fd

    def is_there(self) -> bool:
        """Whether the group still exists. Another one of its name is told from it only while the descriptor is open."""
        try:
            named = os.stat(self.path, follow_symlinks=False)
            held = os.fstat(self.fd) if self.fd >= 0 else named
        except OSError as error:
            if error.errno in REMOVED:
                return False
            raise KernelRefusal("stat", self.path, error.errno or 0) from error
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

    def has(self, name: str) -> bool:
        path, folder = self._locate(name)
        return os.access(path, os.F_OK, dir_fd=folder)

    def open(self, name: str, flags: int = _READ) -> int:
        """Open a control file; the caller owns the descriptor, which is close-on-exec."""
        path, folder = self._locate(name)
        with Refusing("open", f"{self.path}/{name}"):
            return reserve.opened(lambda: os.open(path, flags | os.O_CLOEXEC, dir_fd=folder))

    def read(self, name: str) -> str:
        fd = self.open(name)
        try:
            with Refusing("read", f"{self.path}/{name}"):
                return os.read(fd, 1 << 16).decode()
        finally:
            os.close(fd)

    def write(self, name: str, text: str) -> None:
        """Write *text* to a control file in one call, as the kernel requires."""
        fd = self.open(name, _WRITE)
        try:
            with Refusing("write", f"{self.path}/{name}, {text!r}"):
                os.write(fd, text.encode())
        finally:
            os.close(fd)

    def give(self, uid: int, *names: str) -> None:
        """Make *uid* the owner of the control files *names*; "." is the folder."""
        for name in names:
            path, folder = self._locate(name)
            with Refusing("chown", f"{self.path}/{name}, {uid}"):
                os.chown(path, uid, -1, dir_fd=folder, follow_symlinks=False)

    def processes(self) -> list[int]:
        """The pids of the processes in this group, without those of groups below it, in this process's pid namespace."""
        return [int(line) for line in self.read("cgroup.procs").split()]

    def kill(self) -> None:
        """
        Send SIGKILL to every process in this group. cgroup.kill misses none (Linux 5.14, version 2). Without that file
        they are killed one by one, and one that forks fast enough escapes: forbid forks first (pids.max 0), and call
        this again.
        """
        if self.has("cgroup.kill"):
            self.write("cgroup.kill", "1")
            return
        for pid in self.processes():
            self._kill_one(pid)

    def _kill_one(self, pid: int) -> None:
        kill(pid, lambda: pid in self.processes())

    def children(self) -> list[str]:
        with Refusing("scandir", self.path), os.scandir(self.fd) as entries:  # makes one more descriptor of the folder
            return [entry.name for entry in entries if stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode)]

    def remove(self) -> bool:
        """Remove the group, and close it; False, with its descriptor open, while processes or groups are in it."""
        try:
            if self._parent is not None and self._parent.fd >= 0:
                os.rmdir(self.name, dir_fd=self._parent.fd)
            else:
                os.rmdir(self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise KernelRefusal("rmdir", self.path, error.errno or 0) from error
        self.close()
        return True

    def close(self) -> None:
        """Close the descriptor of the folder. The group stays."""
        fd, self.fd = self.fd, -1  # in this order, since pool/watchdog.py reads self.fd from another thread
        if fd >= 0:
            os.close(fd)


def pidfd_of(pid: int) -> int:
    """A close-on-exec descriptor of process *pid*, which the caller owns; -1 if the process has gone."""
    try:
        return reserve.opened(lambda: os.pidfd_open(pid))
    except ProcessLookupError:
        return -1
    except OSError as error:
        if error.errno == errno.EINVAL:  # the process is ending; Linux before 6.13
            return -1
        raise KernelRefusal("pidfd_open", str(pid), error.errno or 0) from error


def kill(pid: int, is_still_meant: Callable[[], bool], number: int = signal.SIGKILL) -> None:
    """
    Send the signal *number* to the process *pid*, unless it has gone, or has another's number: *is_still_meant* is called
    while a pidfd holds the process, so that the number can't be given to another one.
    """
    pidfd = pidfd_of(pid)
    if pidfd < 0:
        return
    try:
        if is_still_meant():
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(pidfd)


def patience(group: Group, *otherwise: str) -> tuple[str, ...]:
    """
    The control file by which a runner for which nothing waits gets a small share of the processor, the value for that,
    and the value afterwards. cpu.idle (Linux 5.15) gives it only time that no other process wants. *otherwise* are a file
    and its values for an eighth of the default share.
    """
    return ("cpu.idle", "1", "0") if group.has("cpu.idle") else otherwise


def field(text: str, name: str) -> int:
    """The number after *name* in a control file that has "name number" in each line; 0 if no line has that name."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def pread(fd: int) -> str:
    """The text of a control file that is open, by one system call."""
    return os.pread(fd, 4096, 0).decode()
