"""
The automatic start of a daemon, when a job can't be sent: if none answers on the user's own default socket, a client
runs `leeward daemon start --idle-exit` by its own interpreter; the daemon has the user's rights and no others.

Not for:   a socket that was named (by an argument, LEEWARD_SOCKET, the configuration); a user who has a service for
           that socket; a process that runs with another user's rights; LEEWARD_AUTOSTART=0.
Trust:     the socket's folder must belong to this user and be writable by no other, and is opened without following a
           link: in /tmp another user may have made a folder with that name. The daemon checks again before it binds.
Blocks:    START_S at most. Clients that start at once take turns by a lock in that folder, which the kernel releases
           when a process ends; the second client finds the daemon of the first.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import subprocess
import sys
import time

from leeward.base.user_folders import user_folder
from leeward.client.connecting import connect
from leeward.errors import LIMITS, DaemonAway, quoted, reason_of
from leeward.spec.paths import OwnSocket
from leeward.spec.writers import others_write

#: The environment variable whose value "0" switches the automatic start off.
VARIABLE = "LEEWARD_AUTOSTART"
#: Seconds without a request, a running job, a session or a sandbox after which a daemon that was started so ends.
IDLE_S = 600
#: Seconds that a start may take; `daemon start` gives up earlier.
START_S = 75.0

_LOCK = "autostart.lock"
_LOOK_S = 0.02
#: The folders of systemd's units: the system's, and those of users.
_SYSTEM_UNITS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
                 "/usr/lib/systemd/system", "/lib/systemd/system")
_USER_UNITS = ("/etc/systemd/user", "/run/systemd/user", "/usr/local/lib/systemd/user", "/usr/lib/systemd/user")
_UNITS = ("leeward.socket", "leeward.service")


def may_start(path: str) -> bool:
    uid = os.geteuid()
    return (sys.platform == "linux" and isinstance(path, OwnSocket) and os.environ.get(VARIABLE) != "0" and uid == os.getuid()
            and bool(sys.executable) and not getattr(sys, "frozen", False) and not unit(uid == 0))


def unit(system: bool) -> str:
    """The path of a unit of systemd's that has the default socket of root (*system*) or of this user; "" for none."""
    folders = _SYSTEM_UNITS if system else (*_USER_UNITS, user_folder(os.environ, "CONFIG", "systemd/user"))
    paths = (os.path.join(folder, name) for folder in folders for name in _UNITS)
    return next(filter(os.path.lexists, paths), "")


def start(path: str) -> None:
    """Start a daemon on *path*, unless another process does; return when it answers. DaemonAway with its error otherwise."""
    until = time.monotonic() + START_S
    folder = _folder(path)
    lock = -1
    try:
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        while not _locked(lock):
            if _answers(path):
                return
            if time.monotonic() > until:
                raise _failed(path, f"another process has been starting one for {START_S:.0f} s")
            time.sleep(_LOOK_S)
        if not _answers(path):
            _run(path, until)
    except OSError as error:
        raise _failed(path, LIMITS.get(error.errno or 0) or reason_of(error)) from None
    finally:
        if lock >= 0:
            os.close(lock)
        os.close(folder)


def _folder(path: str) -> int:
    """A descriptor of the socket's folder, which is made if it is missing. The caller owns the descriptor."""
    folder = os.path.dirname(path)
    try:
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _failed(path, f"{folder}: {reason_of(error)}") from None
    about = os.fstat(fd)
    if about.st_uid != os.geteuid() or others_write(fd, about):
        os.close(fd)
        raise _failed(path, f"{folder} belongs to user {about.st_uid} and has mode {stat.S_IMODE(about.st_mode):04o};"
                            f" it must be yours, and writable by nobody else: `chmod 700 {shlex.quote(folder)}`, or remove"
                            " it")
    return fd


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answers(path: str) -> bool:
    try:
        sock = connect(path)
    except DaemonAway:
        return False
    assert sock is not None
    sock.close()
    return True


def _run(path: str, until: float) -> None:
    # -P, so that no module is imported from the current folder.
    command = [sys.executable, "-P", "-m", "leeward_cli", "daemon", "start", f"--idle-exit={IDLE_S}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              cwd="/", timeout=max(1.0, until - time.monotonic()), check=False)
    except subprocess.TimeoutExpired:
        raise _failed(path, f"it was not ready within {START_S:.0f} s") from None
    if done.returncode and not _answers(path):  # `daemon start` also fails if another daemon answers
        lines = [line.removeprefix("leeward: ") for line in done.stderr.decode(errors="replace").splitlines()]
        # A host that lacks something lacks it for `leeward run` as well.
        raise _failed(path, "; ".join(lines)[-2000:] or f"`leeward daemon start` ended with status {done.returncode}",
                      without=not any(line.startswith("cause: ") for line in lines))


def _failed(path: str, reason: str, without: bool = True) -> DaemonAway:
    """The error for a daemon that can't be started; *without* one `leeward run` may work nevertheless."""
    cures = ("`leeward run` needs none, and " if without else "") + "`leeward doctor` says what this host lacks"
    error = DaemonAway(f"no daemon answers on {quoted(path)}, and none could be started: {reason}; {cures}")
    error.may_have_run = False
    return error
