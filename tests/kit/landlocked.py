"""
Landlock alone, in a forked child: no namespace, no filter, the host's own file system.

Runs in:   the tests of the layer, and those of the attacks on it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import secrets
import shutil
import socket
import stat
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from kit.skip_policy import require
from leeward._native.landlock import FsAccess
from leeward._native.steps import Step, Table
from leeward.isolation import landlock
from leeward.isolation.landlock import LandlockPlan
from leeward.spec.sandbox import Bind, Scratch, View

PR_SET_NO_NEW_PRIVS = 38

#: What a Python needs to go on in the child, and what execve needs.
SYSTEM = tuple(Bind(path, path, optional=True) for path in ("/usr", "/lib", "/lib64", "/bin"))


def in_child(attack: Callable[[], object], *before: Callable[[], object]) -> str:
    """
    Run *before*, then *attack* in a child; the name of its errno, or "" where it worked.

    Raises:
        AssertionError: anything but *attack*'s own OSError.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if 0 == pid:
        try:
            for step in before:
                step()
            try:
                attack()
                said = ""
            except OSError as error:
                said = errno.errorcode[error.errno or 0]
            os.write(writing, json.dumps(said).encode())
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    assert text.startswith(b'"'), text.decode()
    said = json.loads(text)
    assert isinstance(said, str)
    return said


def locked(plan: LandlockPlan, steps: Callable[[LandlockPlan], Sequence[Step]] = landlock.steps) -> Callable[[], None]:
    """A step for `in_child`."""
    def enter() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        Table(steps(plan)).run()
    return enter


def make_host(path: Path) -> Path:
    """A folder of the host with one of everything, and beside it one for the sandbox."""
    for folder in (path / "outside", path / "inside"):
        (folder / "empty").mkdir(parents=True)
        (folder / "file").write_text(secrets.token_hex())
        shutil.copy("/bin/true", folder / "program")
        (folder / "elsewhere").mkdir()
    return path


def plan_for(host: Path) -> LandlockPlan:
    """The sandbox that sees /usr, and may write to "inside"."""
    return landlock.plan(View(SYSTEM, (), (), Scratch((str(host / "inside"),))), landlock.probe())


def run(program: Path) -> None:
    """execve, and come back to tell."""
    pid = os.fork()
    if 0 == pid:
        try:
            os.execv(program, [str(program)])
        except OSError as error:
            os._exit(error.errno or 255)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise OSError(status, os.strerror(status))


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # sun_path is short
        made.bind(path.name)


#: For each right an attack in a folder, and the errno that refuses it. Each works without the
#: lock, where the folder is the user's own. MAKE_CHAR and MAKE_BLOCK need root besides.
ATTACKS: dict[FsAccess, tuple[Callable[[Path], object], str]] = {
    FsAccess.EXECUTE: (lambda folder: run(folder / "program"), "EACCES"),
    FsAccess.WRITE_FILE: (lambda folder: os.open(folder / "file", os.O_WRONLY), "EACCES"),
    FsAccess.READ_FILE: (lambda folder: os.open(folder / "file", os.O_RDONLY), "EACCES"),
    FsAccess.READ_DIR: (lambda folder: os.listdir(folder), "EACCES"),
    FsAccess.REMOVE_DIR: (lambda folder: os.rmdir(folder / "empty"), "EACCES"),
    FsAccess.REMOVE_FILE: (lambda folder: os.unlink(folder / "file"), "EACCES"),
    # Not a whiteout (0, 0), the one device that anybody may make: kernels differ on whose right that needs.
    FsAccess.MAKE_CHAR: (lambda folder: os.mknod(folder / "new", stat.S_IFCHR | 0o600, os.makedev(1, 3)), "EACCES"),
    FsAccess.MAKE_DIR: (lambda folder: os.mkdir(folder / "new"), "EACCES"),
    FsAccess.MAKE_REG: (lambda folder: os.mknod(folder / "new", stat.S_IFREG | 0o600), "EACCES"),
    FsAccess.MAKE_SOCK: (lambda folder: bind_socket(folder / "new"), "EACCES"),
    FsAccess.MAKE_FIFO: (lambda folder: os.mkfifo(folder / "new"), "EACCES"),
    FsAccess.MAKE_BLOCK: (lambda folder: os.mknod(folder / "new", stat.S_IFBLK | 0o600, os.makedev(7, 200)), "EACCES"),
    FsAccess.MAKE_SYM: (lambda folder: os.symlink("file", folder / "new"), "EACCES"),
    FsAccess.REFER: (lambda folder: os.link(folder / "file", folder / "elsewhere" / "file"), "EXDEV"),
    FsAccess.TRUNCATE: (lambda folder: os.truncate(folder / "file", 0), "EACCES"),
}

FIRST_ABI = {FsAccess.REFER: 2, FsAccess.TRUNCATE: 3, FsAccess.IOCTL_DEV: 5, FsAccess.RESOLVE_UNIX: 9}


def needed_for(right: FsAccess) -> None:
    require(f"landlock>={FIRST_ABI.get(right, 1)}")
    if right in (FsAccess.MAKE_BLOCK, FsAccess.MAKE_CHAR):
        require("root")
