"""
`leeward daemon install` and `uninstall`: writes, enables and removes the units of systemd.

Trust:     files without leeward's mark were made by others: they are neither overwritten nor removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import leeward
import leeward_cli
from leeward.base.user_folders import user_folder
from leeward.client import autostart
from leeward.errors import BadRequest, Unsupported, quoted, reason_of
from leeward.spec.paths import client_socket
from leeward_cli.units import MARK, SERVICE, SOCKET, SYSTEM_SOCKET, Installation, units

SYSTEM_FOLDER = "etc/systemd/system"
USER_FOLDER = ".config/systemd/user"
#: It is there if systemd is the host's first process: sd_booted(3).
_BOOTED = "/run/systemd/system"


class Place:
    """The folder for units: the *user*'s own or the system's. Below another *root* than "/" nothing is started."""

    def __init__(self, *, user: bool, root: str = "/") -> None:
        self.user = user
        self.live = root == "/"
        self.root = Path(root)
        if user and self.live:
            self.folder = Path(user_folder(os.environ, "CONFIG", "systemd/user"))
        else:
            self.folder = self.root / (os.path.join(os.environ.get("HOME", "/").lstrip("/"), USER_FOLDER) if user
                                       else SYSTEM_FOLDER)
        runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
        self.runtime = Path(runtime, "leeward") if user else self.root / os.path.dirname(SYSTEM_SOCKET).lstrip("/")

    def manager(self, *words: str, check: bool = True) -> None:
        """Run systemctl; Unsupported if systemd doesn't manage this host, or that failed."""
        program, have = shutil.which("systemctl"), "no systemctl"
        if check and not os.path.isdir(_BOOTED):
            have = "another service manager, or none, as in most containers"
        elif program is not None:
            options = [*(["--user"] if self.user else []), *words]
            done = subprocess.run([program, *options], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  check=False)
            if not (check and done.returncode):
                return
            why = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            have = f"a failure of `{' '.join(('systemctl', *options))}`: {why[-1]}"
        raise Unsupported("systemd", have=have, need="systemd as service manager",
                          cure="leeward daemon start does without")


def program() -> list[str]:
    # -P: no module may be imported from the current folder.
    return [sys.executable, "-P", "-m", "leeward_cli", "daemon", "run"]


def executable() -> str:
    """The path of this installation's program `leeward`, without links, as security modules see it."""
    own = os.path.join(sysconfig.get_path("scripts"), "leeward")
    return os.path.realpath(own if os.path.exists(own) else shutil.which("leeward") or "/usr/bin/leeward")


def unreachable(path: str) -> str:
    """The first folder or file on *path* that other users can't enter or read; "" if they can read *path*."""
    real = Path(os.path.realpath(path))
    for part in (*reversed(real.parents), real):
        mode = part.stat().st_mode
        if not mode & stat.S_IXOTH or (part == real and not mode & stat.S_IROTH):
            return str(part)
    return ""


def check_reachable() -> None:
    """Raise BadRequest if the system's service, which has a user of its own, can't read a part of this installation."""
    for path in (sys.executable, *(os.path.dirname(str(package.__file__)) for package in (leeward, leeward_cli))):
        if os.path.realpath(path).startswith(("/tmp/", "/var/tmp/")):
            raise BadRequest(f"the service has a private /tmp, and wouldn't find {quoted(path)} in it: install leeward"
                             " elsewhere, in /opt/leeward say, and run that installation's `leeward daemon install`")
        barred = unreachable(path)
        if barred:
            raise BadRequest(f"the service runs as another user, who can't read {quoted(barred)}: install leeward"
                             " where every user can read it, in /opt/leeward say, and run that installation's"
                             " `leeward daemon install`")


def install(place: Place, group: str = "") -> list[Path]:
    """Write, enable and start the units; if that fails they are removed again. Returns their paths."""
    command = program()
    if place.live:
        place.manager("show-environment")  # whoever has no systemd needs no cure of anything else
    if not place.user:
        check_reachable()
    texts = units(Installation(place.user, command, group))
    for name in texts:
        _check_ours(place.folder / name)
    written: list[Path] = []
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            written.append(place.folder / name)
            _write(written[-1], text)
        if place.live:
            place.manager("daemon-reload")
            place.manager("enable", "--now", SOCKET, SERVICE)
        else:
            for link in _wanted(place):
                link.parent.mkdir(exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(f"../{link.name}")
    except (OSError, Unsupported) as error:
        with contextlib.suppress(Unsupported):
            uninstall(place)
        if isinstance(error, Unsupported):
            raise
        raise BadRequest(f"{error.filename}: {reason_of(error)}") from None
    return written


def uninstall(place: Place) -> list[Path]:
    """
    Stop and disable the units, and remove the files that `install` has written; return the removed paths. Unsupported, once
    they are removed, if systemd runs and couldn't be told to stop the units.
    """
    paths = [place.folder / name for name in (SERVICE, SOCKET)]
    for path in paths:
        _check_ours(path)
    there = [path for path in paths if path.exists()]
    have = ""
    if there and place.live:
        try:
            place.manager("disable", "--now", *(path.name for path in there))
            place.manager("clean", "--what=state", SERVICE, check=False)  # what sleeps there wakes by this service alone
        except Unsupported as error:
            have = error.have
    for wants in _wanted(place):
        wants.unlink(missing_ok=True)
        _remove_empty(wants.parent, place.folder.parent)
    try:
        for path in there:
            path.unlink()
    except OSError as error:
        raise BadRequest(f"{error.filename}: {reason_of(error)}") from None
    if place.user or not place.live:
        _remove_empty(place.folder, place.folder.parents[2])
    with contextlib.suppress(OSError):
        place.runtime.rmdir()  # systemd has made it for the socket, and doesn't remove it
    if there and place.live:
        with contextlib.suppress(Unsupported):
            place.manager("daemon-reload", check=False)
            place.manager("reset-failed", SERVICE, SOCKET, check=False)
    if have and os.path.isdir(_BOOTED):
        raise Unsupported("systemd", have=have, need="systemd to stop the service", cure=(
            "the units are removed, but what runs of them goes on, and is started again if it fails, until"
            f" `systemctl {'--user ' * place.user}stop {SOCKET} {SERVICE}`"))
    return there


def still_starts(place: Place) -> str:
    """What starts a daemon once the units of *place* are removed: another unit of that name, or clients; "" for nothing."""
    unit = autostart.unit(not place.user)
    if unit:
        return f"{unit}, which `leeward daemon install` didn't write, has the socket now: systemd starts it if it is enabled"
    try:
        if not autostart.may_start(client_socket(None)):
            return ""
    except BadRequest:  # of a configuration, with which no client runs
        return ""
    return (f"clients of yours start a daemon by themselves from now on, one that ends after {autostart.IDLE_S // 60}"
            f" minutes without a request; {autostart.VARIABLE}=0 prevents that")


def _wanted(place: Place) -> list[Path]:
    target = "default.target" if place.user else "multi-user.target"
    return [place.folder / f"{target}.wants" / SERVICE, place.folder / "sockets.target.wants" / SOCKET]


def _check_ours(path: Path) -> None:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadRequest(f"{path}: {reason_of(error)}") from None
    if path.is_symlink() or not text.startswith(MARK):
        raise BadRequest(f"{path} is there, and `leeward daemon install` didn't write it; it stays as it is")


def _write(path: Path, text: str) -> None:
    """Write a unit completely or not at all, readable by all users."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        os.chmod(part, 0o644)
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _remove_empty(folder: Path, upto: Path) -> None:
    """Remove *folder* and the folders above it, up to but without *upto*, until one isn't empty."""
    with contextlib.suppress(OSError):
        while folder != upto and upto in folder.parents:
            folder.rmdir()
            folder = folder.parent
